"""Replies for consumers outside: lease some, work on them, acknowledge what is done.

Nothing is deleted before it is acknowledged, and only the reader who holds a reply can do that.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from commandbus.access.model import Caller, Scope
from commandbus.commands.replies import LeasedReply
from commandbus.http.platform import Here
from commandbus.http.schemas.base import DomainPath
from commandbus.http.schemas.service import (
    Acknowledged,
    AckReplies,
    LeaseReplies,
    ReplyErrorView,
    ReplyList,
    ReplyView,
)
from commandbus.http.security import requires

router = APIRouter(prefix="/replies/{domain}", tags=["replies"])

# Who sends commands is who may take the answers.
Sender = Annotated[Caller, requires(Scope.SEND)]


def _view(held: LeasedReply) -> ReplyView:
    reply = held.reply
    return ReplyView(
        msg_id=held.msg_id,
        receipt=held.receipt,
        command_id=reply.command_id,
        correlation_id=reply.correlation_id,
        domain=reply.domain,
        type=reply.type,
        outcome=reply.outcome,
        completed_at=reply.completed_at,
        data=reply.data,
        error=None if reply.error is None else ReplyErrorView.model_validate(reply.error),
    )


@router.post("/lease")
async def lease_replies(
    domain: DomainPath,
    form: LeaseReplies,
    here: Here,
    caller: Sender,  # noqa: ARG001  (asked for its check)
) -> ReplyList:
    """Take replies for a while. Those that are not acknowledged in time come again."""
    held = await here.bus.lease_replies(domain, limit=form.limit, vt_seconds=form.vt_seconds)
    return ReplyList(items=[_view(each) for each in held])


@router.post("/ack")
async def acknowledge_replies(
    domain: DomainPath,
    form: AckReplies,
    here: Here,
    caller: Sender,  # noqa: ARG001  (asked for its check)
) -> Acknowledged:
    """Done with these. One that somebody else has leased since is theirs, and listed as lost."""
    receipts = {each.msg_id: each.receipt for each in form.replies}
    done = await here.bus.acknowledge_replies(domain, receipts)
    return Acknowledged(acknowledged=sorted(done), lost=sorted(set(receipts) - done))

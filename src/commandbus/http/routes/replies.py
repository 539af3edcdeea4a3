"""Replies for consumers outside: lease some, work on them, acknowledge what is done.

Nothing is deleted before it is acknowledged, and only the consumer that has leased a reply can do
that.
"""

from __future__ import annotations

from fastapi import APIRouter

from commandbus.access.model import Scope
from commandbus.http.auth.scopes import requires
from commandbus.http.platform import Here
from commandbus.http.schemas.base import DomainPath
from commandbus.http.schemas.service import Acknowledged, AckReplies, LeaseReplies, ReplyView
from commandbus.http.schemas.views import ListView
from commandbus.http.strict import StrictRoute

# A caller who may send commands may also take their replies.
router = APIRouter(
    prefix="/replies/{domain}",
    tags=["replies"],
    dependencies=[requires(Scope.SEND)],
    route_class=StrictRoute,
)


@router.post("/lease")
async def lease_replies(domain: DomainPath, form: LeaseReplies, here: Here) -> ListView[ReplyView]:
    """Lease replies. Those that are not acknowledged in time come again."""
    leased = await here.bus.lease_replies(domain, limit=form.limit, vt_seconds=form.vt_seconds)
    items = [ReplyView.of(each.reply, msg_id=each.msg_id, receipt=each.receipt) for each in leased]
    return ListView[ReplyView](items=items)


@router.post("/ack")
async def acknowledge_replies(domain: DomainPath, form: AckReplies, here: Here) -> Acknowledged:
    """Acknowledge replies. One that another consumer has leased since is listed as lost."""
    receipts = {each.msg_id: each.receipt for each in form.replies}
    done = await here.bus.acknowledge_replies(domain, receipts)
    return Acknowledged(acknowledged=sorted(done), lost=sorted(set(receipts) - done))

"""Replies, domains, health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from commandbus.access.model import Scope
from commandbus.http.schemas.base import MAX_PAGE, Form, ListOf, Whole, example
from commandbus.http.schemas.flow import PauseView
from commandbus.http.schemas.views import View, view_of
from commandbus.models import Reply, ReplyError
from commandbus.upkeep.figures import DomainFigures

Number = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]


class LeaseReplies(Form):
    """How many replies, and for how many seconds they are leased."""

    limit: Whole = Field(100, ge=1, le=MAX_PAGE)
    vt_seconds: Whole = Field(
        30,
        ge=1,
        le=43_200,
        description="Seconds; replies that are not acknowledged by then come again.",
    )


@view_of(ReplyError)
class ReplyErrorView(View):
    """Why a command did not succeed."""


@view_of(Reply)
class ReplyView(View):
    """A reply, and what acknowledges it. A consumer must be ready to see one twice."""

    msg_id: int
    receipt: int
    data: Any = None
    error: ReplyErrorView | None


class Receipt(Form):
    """One reply, as it was leased."""

    msg_id: Number
    receipt: Number


class AckReplies(Form):
    """The replies that are done, as they were leased."""

    model_config = example(replies=[{"msg_id": 1, "receipt": 1}])

    replies: ListOf[Receipt] = Field(min_length=1, max_length=MAX_PAGE)


class Acknowledged(View):
    """`lost` are those that another consumer has leased since."""

    acknowledged: list[int]
    lost: list[int]


@view_of(DomainFigures, hide=("heartbeat_seconds", "paused"))
class DomainView(View):
    """How many commands wait, run and are parked in one domain."""

    paused: PauseView | None = None
    paused_types: list[PauseView] = Field(default_factory=list)


class Whoami(View):
    """The user, scopes and domains of the token."""

    user_id: str
    scopes: list[Scope]
    domains: list[str] | None


class Health(View):
    """Whether the service works, and the result of each check."""

    model_config = example(status="ok", checks={})

    status: Literal["ok", "failing"]
    checks: dict[str, str]

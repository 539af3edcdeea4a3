"""Replies, domains, health."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from commandbus.access.model import Scope
from commandbus.http.schemas.base import MAX_PAGE, Form, View
from commandbus.models import ReplyOutcome

Number = Annotated[int, Field(ge=1, le=2**63 - 1)]


class LeaseReplies(Form):
    """How many replies, and for how long they are the caller's."""

    limit: int = Field(100, ge=1, le=MAX_PAGE)
    vt_seconds: int = Field(30, ge=1, le=43_200, description="Unacknowledged they come again.")


class ReplyErrorView(View):
    """Why a command did not succeed."""

    code: str | None
    message: str | None
    error_class: str | None


class ReplyView(View):
    """A reply, and what acknowledges it. A consumer must be ready to see one twice."""

    msg_id: int
    receipt: int
    command_id: UUID
    correlation_id: UUID
    domain: str
    type: str
    outcome: ReplyOutcome
    completed_at: datetime
    data: Any = None
    error: ReplyErrorView | None


class ReplyList(View):
    """Replies that are the caller's for a while."""

    items: list[ReplyView]


class Receipt(Form):
    """One reply that is done with."""

    msg_id: Number
    receipt: Number


class AckReplies(Form):
    """The replies that are done with, as they were leased."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"replies": [{"msg_id": 1, "receipt": 1}]}]}
    )

    replies: list[Receipt] = Field(min_length=1, max_length=MAX_PAGE)


class Acknowledged(View):
    """Which were the caller's still. The others go to whoever leased them since."""

    acknowledged: list[int]
    lost: list[int]


class DomainView(View):
    """How much waits, runs and is parked in one domain."""

    domain: str
    ready: int
    delayed: int
    oldest_seconds: float
    parked: int
    workers: int
    concurrency: int
    in_flight: int
    batch_remaining: int


class DomainList(View):
    """The domains that the caller reaches."""

    items: list[DomainView]


class Whoami(View):
    """Who the service takes the caller for."""

    user_id: str
    scopes: list[Scope]
    domains: list[str] | None


class Health(View):
    """Whether it is well."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok", "checks": {}}]})

    status: Literal["ok", "failing"]
    checks: dict[str, str]

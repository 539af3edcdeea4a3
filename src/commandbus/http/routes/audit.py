"""Who did what, and when."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from commandbus.access.model import Caller, Scope
from commandbus.http.platform import Here
from commandbus.http.schemas.base import Cursor, DomainQuery, Limit, Moment
from commandbus.http.schemas.commands import AuditEventView, AuditPageView
from commandbus.http.security import reached_domain, requires
from commandbus.models import AuditEventType

router = APIRouter(tags=["audit"])

Reader = Annotated[Caller, requires(Scope.READ)]


@router.get("/audit")
async def list_audit(
    here: Here,
    caller: Reader,
    domain: DomainQuery = None,
    command_id: UUID | None = None,
    batch_id: UUID | None = None,
    actor: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    event_type: Annotated[list[AuditEventType] | None, Query()] = None,
    since: Moment = None,
    until: Moment = None,
    oldest_first: bool = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AuditPageView:
    """Search the audit, newest event first."""
    page = await here.bus.search.audit(
        domain=reached_domain(caller, domain), command_id=command_id, batch_id=batch_id,
        actor=actor, event_types=event_type or None, since=since, until=until,
        newest_first=not oldest_first, limit=limit, cursor=cursor,
    )  # fmt: skip
    return AuditPageView(
        items=[AuditEventView.model_validate(event) for event in page.events],
        next_cursor=page.next_cursor,
        searched_to=page.searched_to,
    )

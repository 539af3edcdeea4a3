"""Who did what, and when."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from commandbus.access.model import Scope
from commandbus.http.auth.scopes import ReachedDomain, Sight, requires
from commandbus.http.platform import Here
from commandbus.http.schemas.base import Moment, PageOf50
from commandbus.http.schemas.commands import AuditEventView
from commandbus.http.schemas.views import SearchPageView
from commandbus.models import AuditEventType

router = APIRouter(tags=["audit"])


def _criteria(
    domain: ReachedDomain,
    viewer: Sight,
    command_id: UUID | None = None,
    batch_id: UUID | None = None,
    actor: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    event_type: Annotated[list[AuditEventType] | None, Query()] = None,
    since: Moment = None,
    until: Moment = None,
    oldest_first: bool = False,
) -> dict[str, Any]:
    return {
        "domain": domain, "command_id": command_id, "batch_id": batch_id, "actor": actor,
        "event_types": event_type or None, "since": since, "until": until,
        "newest_first": not oldest_first, "viewer": viewer,
    }  # fmt: skip


#: What a search, and an export, of the audit is given.
AuditCriteria = Annotated[dict[str, Any], Depends(_criteria)]


@router.get("/audit", dependencies=[requires(Scope.READ)])
async def list_audit(
    here: Here, criteria: AuditCriteria, paging: PageOf50
) -> SearchPageView[AuditEventView]:
    """Search the audit, newest event first."""
    page = await here.bus.search.audit(**criteria, **paging)
    return SearchPageView[AuditEventView].of(page)

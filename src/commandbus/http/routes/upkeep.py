"""The doctor, retention, chores, settings, seals; what people did, and what an id is."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from commandbus.http.auth.scopes import Admin, Operator, Reader, Sight, reached_domain
from commandbus.http.platform import Here, accepted
from commandbus.http.problems import not_found
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import DomainQuery, Moment, PageOf50
from commandbus.http.schemas.upkeep import (
    CheckRunView,
    ChoreView,
    DoctorView,
    FixFindings,
    IdentifiedView,
    PersonEventView,
    RetentionView,
    SealStateView,
    SettingsView,
    StartDoctor,
    check_run_view,
    seal_state_view,
)
from commandbus.http.schemas.views import ListView, SearchPageView
from commandbus.http.strict import StrictRoute
from commandbus.models import AuditEventType
from commandbus.upkeep.states import shown_settings

router = APIRouter(tags=["upkeep"], route_class=StrictRoute)


@router.get("/doctor")
async def show_doctor(here: Here, caller: Reader, viewer: Sight) -> DoctorView:
    """Show what the doctor found last, no matter who ran it. Never begins a run."""
    runs = here.bus.upkeep.runs
    return DoctorView.show(
        await runs.last(), caller.domains, viewer, await runs.well_since(caller.domains)
    )


@router.post("/doctor/runs", status_code=202)
async def start_doctor(
    here: Here, caller: Operator, response: Response, form: StartDoctor | None = None
) -> CheckRunView:
    """Examine the database, in the background; one run at a time. It holds back vacuum."""
    wanted = form or StartDoctor(domain=None, full=False)
    run = await here.bus.upkeep.runs.start(
        domain=reached_domain(caller, wanted.domain), full=wanted.full, operator=caller.user_id
    )
    accepted(response, here.url("/api/v1/doctor"))
    return check_run_view(run)


@router.post("/doctor/fixes", status_code=202)
async def fix_findings(
    form: FixFindings, here: Here, caller: Admin, response: Response
) -> CheckRunView:
    """Repair what the last run has found (`fixable`), then examine again, in the background."""
    run = await here.bus.upkeep.runs.fix(
        form.run_id,
        form.reason,
        domain=reached_domain(caller, form.domain),
        operator=caller.user_id,
    )
    accepted(response, here.url("/api/v1/doctor"))
    return check_run_view(run)


@router.get("/retention")
async def list_retention(here: Here, caller: Reader) -> ListView[RetentionView]:
    """List the rules that say how long finished things are kept; without one, for ever."""
    items = [
        RetentionView.of(
            each, keep_seconds=None if each.keep is None else each.keep.total_seconds()
        )
        for each in await here.bus.upkeep.get_retention()
        if each.domain is None or caller.reaches(each.domain)
    ]
    return ListView[RetentionView](items=items)


@router.get("/chores")
async def list_chores(here: Here, caller: Reader) -> ListView[ChoreView]:
    """List what one process does for all, and when each was begun last."""
    found = await here.bus.upkeep.chores(caller.domains)
    return ListView[ChoreView](items=[ChoreView.of(each, domain=each.domain) for each in found])


@router.get("/settings")
async def show_settings(
    here: Here,
    caller: Admin,  # noqa: ARG001  (names the scope)
) -> SettingsView:
    """Show which settings hold, of the database and of this service; secrets are masked."""
    found = await here.bus.upkeep.settings_overview()
    return SettingsView.of(found, of_service=shown_settings(here.settings))


@router.get("/audit/people")
async def list_people(
    here: Here,
    caller: Reader,
    viewer: Sight,
    paging: PageOf50,
    domain: DomainQuery = None,
    actor: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    event_type: Annotated[list[AuditEventType] | None, Query()] = None,
    since: Moment = None,
    until: Moment = None,
) -> SearchPageView[PersonEventView]:
    """List what people did, newest first; many events of one act are one item."""
    page = await here.bus.search.people(
        domains=reached(caller, domain), actor=actor, event_types=event_type or None,
        since=since, until=until, viewer=viewer, **paging,
    )  # fmt: skip
    return SearchPageView[PersonEventView].of(page)


@router.get("/audit/seals")
async def show_seals(here: Here, caller: Reader) -> SealStateView:
    """Show how far the audit is sealed, and when it was last verified.

    Findings are for callers of all domains: they are about the whole database.
    """
    state = await here.bus.upkeep.seal_state()
    return seal_state_view(state, has_findings=caller.domains is None)


@router.get("/ids/{some_id}")
async def identify(
    some_id: UUID, here: Here, caller: Reader, viewer: Sight
) -> ListView[IdentifiedView]:
    """Tell what an id is the id of: a command, a batch, a ticket, a bulk operation."""
    found = await here.bus.search.identify(some_id, domains=caller.domains, viewer=viewer)
    if not found:
        raise not_found("nothing has this id")
    return ListView[IdentifiedView](items=[IdentifiedView.of(each) for each in found])

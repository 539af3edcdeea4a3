"""The domains and how they stand; and the caller of a token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError
from commandbus.flow import Pause
from commandbus.http.auth.scopes import Operator, Reader, Sight, requires
from commandbus.http.platform import Here, Platform
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import DomainPath, PageOf50, TypeQuery
from commandbus.http.schemas.commands import CommandView
from commandbus.http.schemas.flow import LevelWorth, Paused, PauseDomain, PauseView, ResumeDomain
from commandbus.http.schemas.service import DomainView, Whoami
from commandbus.http.schemas.views import ListView, SearchPageView
from commandbus.http.strict import StrictRoute

router = APIRouter(tags=["service"], route_class=StrictRoute)


@router.get("/domains")
async def list_domains(here: Here, caller: Reader) -> ListView[DomainView]:
    """How many commands wait, run and are parked in each domain that the caller reaches."""
    figures = await here.bus.upkeep.figures.domains()
    paused: defaultdict[str, list[Pause]] = defaultdict(list)
    for pause in await here.bus.pauses():
        paused[pause.domain].append(pause)
    items = [
        DomainView.of(each, **_views(paused[each.domain]))
        for each in figures
        if caller.reaches(each.domain)
    ]
    return ListView[DomainView](items=items)


async def _paused(here: Platform, domain: str, *, was_paused: bool) -> Paused:
    found = await here.bus.pauses(domain)
    return Paused(domain=domain, **_views(found), was_paused=was_paused)


def _views(found: Sequence[Pause]) -> dict[str, Any]:
    whole = [PauseView.of(pause) for pause in found if pause.type is None]
    types = [PauseView.of(pause) for pause in found if pause.type is not None]
    return {"paused": whole[0] if whole else None, "paused_types": types}


@router.get("/domains/{domain}/scheduled", dependencies=[requires(Scope.READ)])
async def list_scheduled(
    domain: DomainPath, here: Here, viewer: Sight, paging: PageOf50, command_type: TypeQuery = None
) -> SearchPageView[CommandView]:
    """List commands that are due later: delayed, or backing off; the next one first."""
    page = await here.bus.search.scheduled(
        domain, command_type=command_type, viewer=viewer, **paging
    )
    return SearchPageView[CommandView].of(page)


@router.get("/domains/{domain}/waiting", dependencies=[requires(Scope.READ)])
async def list_waiting(
    domain: DomainPath, here: Here, viewer: Sight, paging: PageOf50, command_type: TypeQuery = None
) -> SearchPageView[CommandView]:
    """List commands that are due and wait for others of their key, for a limit or for a pause."""
    page = await here.bus.search.waiting(domain, command_type=command_type, viewer=viewer, **paging)
    return SearchPageView[CommandView].of(page)


@router.post("/domains/{domain}/pause")
async def pause_domain(
    domain: DomainPath, form: PauseDomain, here: Here, caller: Operator
) -> Paused:
    """Start no more commands of a domain, or of one type; what runs goes on, sends are accepted."""
    if form.until is not None and form.seconds is not None:
        raise InvalidInputError("until and seconds were both given; give one of them")
    if not await here.bus.upkeep.figures.knows_domain(domain):
        raise not_found("no such domain")
    before = await here.bus.pauses(domain)
    await here.bus.pause(
        domain, type=form.type, reason=form.reason, until=form.end(), operator=caller.user_id
    )
    was_paused = any(pause.type == form.type for pause in before)
    return await _paused(here, domain, was_paused=was_paused)


@router.post("/domains/{domain}/resume")
async def resume_domain(
    domain: DomainPath, here: Here, caller: Operator, form: ResumeDomain | None = None
) -> Paused:
    """End the pause of a domain, or of one type. A second request changes nothing."""
    wanted = form or ResumeDomain()
    resumed = await here.bus.resume(
        domain, type=wanted.type, reason=wanted.reason, operator=caller.user_id
    )
    return await _paused(here, domain, was_paused=resumed)


@router.put("/domains/{domain}/level-worth")
async def set_level_worth(
    domain: DomainPath, form: LevelWorth, here: Here, caller: Operator
) -> LevelWorth:
    """Say how many seconds of waiting one level of priority is worth in a domain."""
    if not await here.bus.upkeep.figures.knows_domain(domain):
        raise not_found("no such domain")
    await here.bus.set_level_seconds(domain, form.level_seconds, operator=caller.user_id)
    return form


@router.get("/whoami")
async def whoami(caller: Reader) -> Whoami:
    """Show the user, scopes and domains of the token."""
    return Whoami(
        user_id=caller.user_id,
        scopes=sorted(caller.scopes),
        domains=None if caller.domains is None else sorted(caller.domains),
    )

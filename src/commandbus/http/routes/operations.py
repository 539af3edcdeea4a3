"""How domains stand and move, who works, which loads are open."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from commandbus.access.model import Caller
from commandbus.http.auth.scopes import Reader, Sight, refuse_domain
from commandbus.http.platform import Here
from commandbus.http.schemas.base import MAX_PAGE, DomainPath, DomainQuery, PageOf50
from commandbus.http.schemas.operations import (
    DomainOverviewView,
    LoadItem,
    RatesView,
    TrendView,
    WorkersView,
    WorkerView,
)
from commandbus.http.schemas.views import ListView, PageView
from commandbus.http.strict import StrictRoute
from commandbus.loads.model import LoadStatus

router = APIRouter(tags=["operations"], route_class=StrictRoute)


def reached(caller: Caller, domain: str | None) -> list[str] | None:
    """The domains to look at: the one that is named, or all that the caller reaches; None: all."""
    if domain is not None:
        refuse_domain(caller, domain)
        return [domain]
    return None if caller.domains is None else sorted(caller.domains)


@router.get("/overview")
async def show_overview(
    here: Here, caller: Reader, domain: DomainQuery = None
) -> ListView[DomainOverviewView]:
    """Show how domains stand and move. Costs the same however much is queued."""
    domains, figures = reached(caller, domain), here.bus.upkeep.figures
    rates = await figures.rates(domains)
    items = []
    for each in await figures.overview(domains):
        rate = rates.get(each.domain)
        items.append(
            DomainOverviewView.of(
                each,
                later=each.later,
                rates=None if rate is None else RatesView.of(rate),
                seconds_to_drain=None if rate is None else rate.seconds_to_drain(each.ready),
            )
        )
    return ListView[DomainOverviewView](items=items)


@router.get("/domains/{domain}/failure-trends")
async def show_failure_trends(
    domain: DomainPath,
    here: Here,
    caller: Reader,  # noqa: ARG001  (names the scope)
    viewer: Sight,
    fingerprint: Annotated[
        list[Annotated[str, Query(min_length=1, max_length=100)]] | None,
        Query(max_length=MAX_PAGE),
    ] = None,
    hours: Annotated[int, Query(ge=1, le=168)] = 24,
) -> ListView[TrendView]:
    """Show how often each failure group was seen, hour by hour; those that were not are missing."""
    found = await here.bus.upkeep.figures.group_trends(
        domain, fingerprint or None, hours=hours, viewer=viewer
    )
    return ListView[TrendView](items=[TrendView.of(each) for each in found])


@router.get("/workers")
async def list_workers(here: Here, caller: Reader, domain: DomainQuery = None) -> WorkersView:
    """List workers with a sign of life in the last hour, the most silent first; 200 at most."""
    found = await here.bus.upkeep.figures.workers(reached(caller, domain), limit=MAX_PAGE + 1)
    items = [
        WorkerView.of(each, process=each.process, is_silent=each.is_silent)
        for each in found[:MAX_PAGE]
    ]
    return WorkersView(items=items, has_more=len(found) > MAX_PAGE)


@router.get("/loads")
async def list_loads(
    here: Here,
    caller: Reader,
    viewer: Sight,
    paging: PageOf50,
    domain: DomainQuery = None,
    status: LoadStatus | None = None,
    is_open: Annotated[
        bool, Query(description="Only those that load, have stopped, or are not all queued.")
    ] = False,
) -> PageView[LoadItem]:
    """List loads, newest first."""
    page = await here.bus.loads.page(
        domains=reached(caller, domain), status=status, is_open=is_open, viewer=viewer, **paging
    )
    items = [
        LoadItem.of(
            each,
            is_open=each.is_open,
            is_interrupted=each.is_interrupted,
            resume_command=each.resume_command,
        )
        for each in page.items
    ]
    return PageView[LoadItem](items=items, next_cursor=page.next_cursor)

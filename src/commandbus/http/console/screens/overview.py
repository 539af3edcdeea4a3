"""Overview: is anything wrong, where, since when, is anybody working. It changes nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from commandbus.access.visibility import sees_all
from commandbus.errors import CommandBusError
from commandbus.gates.model import ExecutionLimit
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.models import BatchMetadata
from commandbus.troubleshooting import BulkStatus
from commandbus.upkeep.known import Severity
from commandbus.upkeep.needs import Need, NeedKind, Urgency, needs_of
from commandbus.upkeep.overview import DomainOverview, DomainRates

#: Of running bulk operations and of open batches.
SHOWN = 5
#: What needs somebody, at most; the rest is counted.
NEEDS_SHOWN = 8
#: Seconds for which what stands on other screens is kept, and of how many kinds of callers.
KEPT_SECONDS = 5.0
MAX_KEPT = 200
#: Execution limits, the most waited for first.
LIMITS_SHOWN = 6
#: Loads that are not done that are looked at, to find those that stopped.
LOADS_LOOKED_AT = 100

screen = Screen(
    "overview", "Overview", order=10, group=Group.WORK, icon="overview", shortcut="o",
    domain_page="overview",
)  # fmt: skip


class Card(NamedTuple):
    """One domain."""

    at: DomainOverview
    rates: DomainRates | None
    seconds_left: float | None


class Line(NamedTuple):
    """Something that needs a person: where it leads, and how it looks."""

    text: str
    href: str
    colour: str
    icon: str


class Strip(NamedTuple):
    """What came and went in all domains, in each whole minute of the last hour."""

    hour_from: datetime
    came: list[int | None]
    went: list[int | None]
    #: About how many of what went failed or were parked.
    lost: list[int | None]


@screen.page("/", live=1.8)
async def show(view: Show, domain: DomainFilter = None) -> Page:
    """Four reads, however many domains there are."""
    if domain is not None and not view.caller.reaches(domain):
        raise not_found("no such domain")
    figures = view.bus.upkeep.figures
    domains = view.caller.domains if domain is None else frozenset({domain})
    found = await figures.overview(domains)
    rates = await figures.rates(domains)
    bulks = await view.bus.bulk.page(
        domains=domains, status=BulkStatus.RUNNING, viewer=view.viewer, limit=SHOWN
    )
    needs, beside = needs_of(found, rates), await _beside(view)
    return view.page(
        "overview/index.html",
        "Overview",
        lines=[_line(view, need) for need in needs[:NEEDS_SHOWN]] + beside.lines,
        strip=strip_of(rates.values()),
        limits=_fullest(beside.limits, domains),
        limits_in=domain,
        decisions=_approvals,
        more=max(0, len(needs) - NEEDS_SHOWN),
        cards=[_card(each, rates.get(each.domain)) for each in found],
        bulks=bulks.items,
        batches=await _open_batches(view, domains),
    )


def _card(at: DomainOverview, rates: DomainRates | None) -> Card:
    return Card(at, rates, None if rates is None else rates.seconds_to_drain(at.ready))


def strip_of(rates: Iterable[DomainRates]) -> Strip | None:
    """The hours of all domains in one; None: nobody takes samples."""
    known = [each for each in rates if each.as_of is not None]
    if not known:
        return None
    return Strip(
        known[0].hour_from,
        [_sum(minute) for minute in zip(*(each.in_hour for each in known), strict=True)],
        [_sum(minute) for minute in zip(*(each.out_hour for each in known), strict=True)],
        [_sum(minute) for minute in zip(*(each.lost_hour for each in known), strict=True)],
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    found = [each for each in counts if each is not None]
    return sum(found) if found else None


def _fullest(
    limits: Iterable[ExecutionLimit], domains: Collection[str] | None
) -> list[ExecutionLimit]:
    """Those that most wait for, then those that are fullest."""
    reached = [each for each in limits if domains is None or each.domain in domains]
    return sorted(
        reached,
        key=lambda each: (-each.waiting, -each.running / (each.max_running or 1), each.domain),
    )[:LIMITS_SHOWN]


async def _open_batches(view: View, domains: frozenset[str] | None) -> list[BatchMetadata]:
    if not sees_all(view.caller):
        return []  # the list of open ones knows no owners
    return await view.bus.batches.list_open(domains=domains, limit=SHOWN)


_LOOKS = {
    Urgency.NOW: ("failed", "warn"),
    Urgency.SOON: ("parked", "warn"),
    Urgency.KNOWN: ("waits", "pause"),
}


def _line(view: View, need: Need) -> Line:
    colour, icon = _LOOKS[need.urgency]
    if need.kind is NeedKind.PARKED:
        return Line(need.text, view.url("troubleshooting", domain=need.domain), colour, icon)
    if need.kind in {NeedKind.SILENT, NeedKind.STUCK}:
        return Line(need.text, view.url("workers", domain=need.domain), colour, icon)
    return Line(need.text, view.url("workers.domain", domain=need.domain), colour, icon)


@dataclass(slots=True)
class Kept:
    """What stands on other screens, as it was some seconds ago: for one user, or for all with the
    same rights.
    """

    at: float
    lines: list[Line] = field(default_factory=list)
    limits: list[ExecutionLimit] = field(default_factory=list)


#: Of all that look; the oldest goes.
_KEPT: OrderedDict[Hashable, Kept] = OrderedDict()


async def _beside(view: View) -> Kept:
    """What stands on other screens; read once in some seconds, beside the reads of the page."""
    key = (id(view.bus), view.visibility)
    known = _KEPT.get(key)
    if known is not None and time.monotonic() - known.at < KEPT_SECONDS:
        return known
    found = Kept(time.monotonic())
    with suppress(CommandBusError):  # the page is better without it than not at all
        found.lines += await _doctor(view)
    with suppress(CommandBusError):
        found.lines += await _loads(view)
    with suppress(CommandBusError):
        found.limits = await view.bus.limits.list(domains=view.caller.domains)
        found.lines += _waiting_line(view, found.limits)
    found.at = time.monotonic()
    _KEPT[key] = found
    _KEPT.move_to_end(key)
    while len(_KEPT) > MAX_KEPT:
        _KEPT.popitem(last=False)
    return found


async def _doctor(view: View) -> list[Line]:
    last = (await view.bus.upkeep.runs.last()).last
    found = () if last is None else last.within(view.caller.domains, view.viewer).findings
    errors = sum(each.severity is Severity.ERROR for each in found)
    if not errors:
        return []
    text = f"the doctor found {_count(errors, 'error')} in the data"
    return [Line(text, view.url("doctor"), "failed", "heart")]


async def _loads(view: View) -> list[Line]:
    found = await view.bus.loads.page(
        domains=view.caller.domains, is_open=True, viewer=view.viewer, limit=LOADS_LOOKED_AT
    )
    stopped = sum(each.is_interrupted for each in found.items)
    if not stopped:
        return []
    return [
        Line(f"{_count(stopped, 'load')} stopped half-way", view.url("loads"), "parked", "load")
    ]


def _waiting_line(view: View, limits: list[ExecutionLimit]) -> list[Line]:
    waiting = [each for each in limits if each.waiting]
    if not waiting:
        return []
    most = max(waiting, key=lambda each: each.waiting)
    text = f"{most.waiting:,} of {most.domain} wait for the limit of {most.name}"
    return [Line(text, view.url("execution_limits"), "waits", "lanes")]


def _approvals(view: View) -> list[Line]:
    """What waits for a decision of this very user: as the navigation has counted it. The region
    that all share does not have it.
    """
    waiting = view.counts.get("approvals", 0)
    if not waiting:
        return []
    text = f"{waiting:,} wait{'s' if waiting == 1 else ''} for a decision of yours"
    return [Line(text, view.url("approvals"), "waits", "s-waits")]


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"

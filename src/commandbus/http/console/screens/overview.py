"""Overview: is anything wrong, where, since when, is anybody working. It changes nothing."""

from __future__ import annotations

from typing import NamedTuple

from commandbus.access.visibility import sees_all
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.models import BatchMetadata
from commandbus.troubleshooting import BulkStatus
from commandbus.upkeep.needs import Need, NeedKind, Urgency, needs_of
from commandbus.upkeep.overview import DomainOverview, DomainRates

#: Of running bulk operations and of open batches.
SHOWN = 5
#: What needs somebody, at most; the rest is counted.
NEEDS_SHOWN = 8

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


@screen.page("/", live=2.0)
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
    needs = needs_of(found, rates)
    return view.page(
        "overview/index.html",
        "Overview",
        lines=_also(view) + [_line(view, need) for need in needs[:NEEDS_SHOWN]],
        more=max(0, len(needs) - NEEDS_SHOWN),
        cards=[_card(each, rates.get(each.domain)) for each in found],
        bulks=bulks.items,
        batches=await _open_batches(view, domains),
    )


def _card(at: DomainOverview, rates: DomainRates | None) -> Card:
    return Card(at, rates, None if rates is None else rates.seconds_to_drain(at.ready))


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


def _also(view: View) -> list[Line]:
    """What the navigation has counted already."""
    waiting = view.counts.get("approvals", 0)
    if not waiting:
        return []
    text = (
        f"{waiting:,} wait for a decision of yours"
        if waiting > 1
        else "1 waits for a decision of yours"
    )
    return [Line(text, view.url("approvals"), "waits", "s-waits")]

"""Troubleshooting: what failed for good, by cause, and what people did about it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import InvalidOperationError
from commandbus.http.auth.scopes import refuse_domain
from commandbus.http.console.formats import now
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import CursorQuery, DomainFilter, TextFilter, TypeFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.routes.troubleshooting import GroupPath
from commandbus.http.schemas.base import DomainPath, PageOf50
from commandbus.troubleshooting import BulkOperation, BulkStatus, FailureGroup, group_sentence

#: Causes on one page, the largest first; the rest is found by searching.
SHOWN = 50
#: Running operations that one look may show beside their groups.
MAX_RUNNING = 100
#: Operations before that the page of a group shows.
MAX_BEFORE = 10
#: Commands on one page of a group: each comes with its payload, which is not shown.
MAX_ITEMS = 20


async def parked_count(view: View) -> int | None:
    """How many wait, in the domains that the caller reaches."""
    counts = await view.bus.troubleshooting.counts()
    return sum(count for domain, count in counts.items() if view.caller.reaches(domain))


screen = Screen(
    "troubleshooting", "Troubleshooting", order=30, group=Group.WORK, icon="tool", shortcut="t",
    count=parked_count, is_count_shared=True, domain_page="troubleshooting",
)  # fmt: skip


@screen.page("/troubleshooting", live=1.8)
async def show(
    view: Show,
    domain: DomainFilter = None,
    search: TextFilter = None,
    command_type: TypeFilter = None,
    include_empty: bool = False,
    figures: bool = False,
) -> Page:
    """The causes, largest first, each with its trend, its running operation and its note."""
    place = place_of(view, domain)
    if place == "":
        return view.page("troubleshooting/choose.html", "Troubleshooting")
    queue, bulk = view.bus.troubleshooting, view.bus.bulk
    found = await queue.find_groups(
        place, search=search or None, command_type=command_type, include_empty=include_empty,
        viewer=view.viewer, limit=SHOWN,
    )  # fmt: skip
    running = await bulk.page(
        place, status=BulkStatus.RUNNING, viewer=view.viewer, limit=MAX_RUNNING
    )
    trends: dict[tuple[str, str], list[int]] = {}
    last: list[BulkOperation] = []
    if found.groups:
        wanted = [each.fingerprint for each in found.groups]
        trends = await _trends(view, place, wanted)
    else:
        last = (await bulk.page(place, viewer=view.viewer, limit=1)).items
    return view.page(
        "troubleshooting/index.html",
        "Troubleshooting",
        groups=[_row(each, trends, running.items) for each in found.groups],
        is_cut=found.is_cut,
        parked=sum(each.parked_count for each in found.groups),
        last=last[0] if last else None,
        place=place,
        search=search or "",
        command_type=command_type or "",
        include_empty=include_empty,
        figures=figures,
        is_filtered=bool(search or command_type),
    )


def _row(
    group: FailureGroup, trends: dict[tuple[str, str], list[int]], running: list[BulkOperation]
) -> dict[str, Any]:
    key = (group.domain, group.fingerprint)
    acting = [each for each in running if (each.domain, each.conditions.get("group")) == key]
    return {
        "key": f"{group.domain}/{group.fingerprint}", "group": group,
        "trend": trends.get(key, [0] * 24), "running": acting[0] if acting else None,
    }  # fmt: skip


async def _trends(
    view: View, domain: str | None, fingerprints: list[str]
) -> dict[tuple[str, str], list[int]]:
    found = await view.bus.upkeep.figures.group_trends(domain, fingerprints, viewer=view.viewer)
    return {(each.domain, each.fingerprint): each.hours for each in found}


@screen.page("/troubleshooting/{domain}/groups/{fingerprint}", live=1.8)
async def group(
    view: Show, domain: DomainPath, fingerprint: GroupPath, cursor: CursorQuery = None
) -> Page:
    """One cause: what is known of it, what waits, and what was done about it before."""
    queue = view.bus.troubleshooting
    found = await _group(view, domain, fingerprint)
    items = await queue.page(
        domain, group=found.fingerprint, viewer=view.viewer, limit=MAX_ITEMS, cursor=cursor
    )
    before = await view.bus.bulk.page(
        domain, group=found.fingerprint, viewer=view.viewer, limit=MAX_BEFORE
    )
    trend = await _trends(view, domain, [found.fingerprint])
    return view.page(
        "troubleshooting/group.html",
        (found.error_code or found.command_type)[:200],
        group=found,
        sentence=group_sentence(found, now()),
        items=items.items,
        next_page=None if items.next_cursor is None else view.here_with(cursor=items.next_cursor),
        first_page=None if cursor is None else view.here_with(),
        before=before.items,
        trend=trend.get((domain, found.fingerprint), [0] * 24),
    )


@screen.page("/troubleshooting/{domain}/groups/{fingerprint}/history")
async def history(view: Show, domain: DomainPath, fingerprint: GroupPath, paging: PageOf50) -> Page:
    """Every note on a cause, and who looked after it."""
    found = await _group(view, domain, fingerprint)
    if found.audit_id is None:
        raise not_found("no history of it is kept")
    events = await view.bus.search.audit(
        command_id=found.audit_id, domain=domain, viewer=view.viewer, **paging
    )
    return view.page(
        "troubleshooting/history.html",
        "Notes and owners",
        group=found,
        events=events.items,
        next_page=None if events.next_cursor is None else view.here_with(cursor=events.next_cursor),
    )


@screen.action("/troubleshooting/{domain}/groups/{fingerprint}/note", scope=Scope.OPERATE)
async def note(view: Show, domain: DomainPath, fingerprint: GroupPath, form: Fields) -> Response:
    """Put a remark on a cause, or take it off."""
    text = form.text("text")
    await _group(view, domain, fingerprint)
    await view.bus.troubleshooting.note_group(
        domain, fingerprint, text or None, operator=view.actor
    )
    said = "The note is kept." if text else "The note is taken off; the history has it."
    return view.to("troubleshooting.group", said, domain=domain, fingerprint=fingerprint)


@screen.action("/troubleshooting/{domain}/groups/{fingerprint}/assign", scope=Scope.OPERATE)
async def assign(view: Show, domain: DomainPath, fingerprint: GroupPath, form: Fields) -> Response:
    """Say who looks after a cause."""
    who = view.actor if form.checked("me") else form.text("assignee")
    await _group(view, domain, fingerprint)
    await view.bus.troubleshooting.assign_group(
        domain, fingerprint, who or None, operator=view.actor
    )
    said = f"{who} looks after it." if who else "Nobody looks after it now."
    return view.to("troubleshooting.group", said, domain=domain, fingerprint=fingerprint)


async def _group(view: View, domain: str, fingerprint: str) -> FailureGroup:
    try:
        return await view.bus.troubleshooting.require_group(fingerprint, domain, viewer=view.viewer)
    except InvalidOperationError:
        raise not_found("there is no such cause here that you may see") from None


def place_of(view: View, domain: str | None) -> str | None:
    """The domain to look in; None: all; empty: the caller has to choose one of several."""
    if domain is not None:
        refuse_domain(view.caller, domain)
        return domain
    if view.caller.domains is None:
        return None
    return next(iter(view.caller.domains)) if len(view.caller.domains) == 1 else ""

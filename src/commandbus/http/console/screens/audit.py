"""Audit: who did what to how many, when and why; the machine's events too; and its seals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query
from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.commands.people import PersonEvent
from commandbus.errors import InvalidInputError
from commandbus.http.console.formats import now
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import Blank, DomainFilter, MomentFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import PageOf50
from commandbus.models import AuditEvent, AuditEventType
from commandbus.paging import Page as PageOf

screen = Screen(
    "audit", "Audit", order=120, group=Group.TRUST, icon="book",
    domain_page="audit",
)  # fmt: skip

Actor = Annotated[str | None, Query(max_length=200)]
Kind = Annotated[AuditEventType | None, Query(description="Only this event."), Blank]
Machine = Annotated[bool, Query(description="What the machine did, too.")]
#: What can be verified with a click, as a time back from the newest seal; the second: all of it.
WINDOWS = {"day": timedelta(days=1), "all": None}
#: The events of an operation follow each other; those of one line are found by their times.
A_MOMENT = timedelta(milliseconds=1)


class Wanted(NamedTuple):
    """The filter in the address."""

    domain: str | None
    actor: str | None
    event_type: AuditEventType | None
    since: datetime | None
    until: datetime | None
    machine: bool


def _wanted(
    domain: DomainFilter = None,
    actor: Actor = None,
    event_type: Kind = None,
    since: MomentFilter = None,
    until: MomentFilter = None,
    machine: Machine = False,
) -> Wanted:
    return Wanted(domain, actor or None, event_type, since, until, machine)


Criteria = Annotated[Wanted, Depends(_wanted)]


def search_of(view: View, wanted: Wanted) -> Callable[..., Awaitable[PageOf[Any]]]:
    """The search that this filter means, for pages: only of domains that the caller reaches."""
    search = view.bus.search
    return partial(
        search.audit if wanted.machine else search.people,
        domains=reached(view.caller, wanted.domain),
        actor=wanted.actor,
        event_types=None if wanted.event_type is None else [wanted.event_type],
        since=wanted.since, until=wanted.until, viewer=view.viewer,
    )  # fmt: skip


@screen.page("/audit", live=5.0)
async def show(view: Show, paging: PageOf50, wanted: Criteria) -> Page:
    """What people did, newest first; one switch adds the events of workers and senders. Rows stay
    where they are: a bar says how many are newer. A search that walks far is not repeated.
    """
    found: PageOf[AuditEvent] | PageOf[PersonEvent] = await search_of(view, wanted)(**paging)
    chosen = {name: value for name, value in wanted._asdict().items() if name != "machine"}
    return view.page(
        "audit/index.html",
        "Audit",
        final=bool(
            paging.get("cursor") or found.searched_to or (wanted.until and wanted.until < now())
        ),
        events=found.items,
        searched_to=found.searched_to,
        next=view.here_with(cursor=found.next_cursor) if found.next_cursor else None,
        first=view.here_with() if paging.get("cursor") else None,
        chips=_chips(view, **chosen),
        machine=wanted.machine,
        kinds=[("", "every event"), *((each.value, each.value) for each in AuditEventType)],
        chosen={name: "" if value is None else value for name, value in chosen.items()},
        inside={
            each.audit_id: _inside(view, each)
            for each in found.items
            if isinstance(each, PersonEvent) and each.events > 1
        },
        things={each.audit_id: href for each in found.items if (href := _thing(view, each))},
        exports=[
            (form, view.url("audit.export", form=form, **_plain(view))) for form in ("csv", "jsonl")
        ],
        sealed=await view.bus.upkeep.seal_state(),
    )


def _inside(view: View, line: PersonEvent) -> str:
    """Where the single events of a line are that stands for several."""
    since, until = line.first_ts, line.ts + A_MOMENT
    return view.url(
        "audit", machine="true", actor=line.actor, event_type=line.event_type, domain=line.domain,
        since=since.isoformat(), until=until.isoformat(),
    )  # fmt: skip


def _thing(view: View, event: AuditEvent | PersonEvent) -> str:
    """Where the one thing is that an event is about; empty: it is about none, or about several."""
    kind, several = event.event_type, isinstance(event, PersonEvent) and event.events > 1
    if event.domain == "*" or several or event.command_id.int == 0:
        return ""
    if kind.startswith("SCHEDULE_"):
        name = (event.details or {}).get("schedule")
        return view.url("schedules.one", domain=event.domain, name=name) if name else ""
    if kind.startswith("GROUP_"):
        mark = (event.details or {}).get("group")
        page = "troubleshooting.group"
        return view.url(page, domain=event.domain, fingerprint=mark) if mark else ""
    if kind.startswith("BULK_"):
        return view.url("bulk.operation", operation_id=event.command_id)
    if kind.startswith("BATCH_"):
        return view.url("batches.batch", domain=event.domain, batch_id=event.command_id)
    return view.url("command", domain=event.domain, command_id=event.command_id)


def _plain(view: View) -> dict[str, str]:
    return {name: each for name, each in view.request.query_params.items() if name != "cursor"}


@screen.action("/audit/verify", scope=Scope.OPERATE)
async def verify(view: Show, form: Fields) -> Response:
    """Compare the audit with its seals, in the background; one verification at a time."""
    if view.caller.domains is not None:
        raise not_found("the seals are about all domains, and you do not reach all of them")
    window = form.text("window") or "day"
    if window not in WINDOWS:
        raise InvalidInputError("choose what is to be verified: the last day, or all")
    await view.bus.upkeep.runs.verify(window=WINDOWS[window], operator=view.actor)
    return view.to("audit", "The verification has begun; its result will be here.")


def _chips(view: View, **chosen: object) -> list[tuple[str, object, str]]:
    return [
        (name.replace("_", " "), value, view.here_with(**{name: None}))
        for name, value in chosen.items()
        if value is not None
    ]

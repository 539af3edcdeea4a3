"""Audit: who did what to how many, when and why; the machine's events too; and its seals."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from commandbus.commands.people import PersonEvent
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show, View
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import Moment, PageOf50
from commandbus.models import AuditEvent, AuditEventType
from commandbus.paging import Page as PageOf

screen = Screen(
    "audit", "Audit", order=120, group=Group.TRUST, icon="book",
    domain_page="audit",
)  # fmt: skip

Actor = Annotated[str | None, Query(max_length=200)]
Kind = Annotated[AuditEventType | None, Query(description="Only this event.")]
Machine = Annotated[bool, Query(description="What the machine did, too.")]


@screen.page("/audit")
async def show(
    view: Show,
    paging: PageOf50,
    domain: DomainFilter = None,
    actor: Actor = None,
    event_type: Kind = None,
    since: Moment = None,
    until: Moment = None,
    machine: Machine = False,
) -> Page:
    """What people did, newest first; one switch adds the events of workers and senders."""
    kinds = None if event_type is None else [event_type]
    who = actor or None
    found: PageOf[AuditEvent] | PageOf[PersonEvent]
    if machine:
        found = await view.bus.search.audit(
            domains=reached(view.caller, domain), actor=who, event_types=kinds, since=since,
            until=until, viewer=view.viewer, **paging,
        )  # fmt: skip
    else:
        found = await view.bus.search.people(
            domains=reached(view.caller, domain), actor=who, event_types=kinds, since=since,
            until=until, viewer=view.viewer, **paging,
        )  # fmt: skip
    return view.page(
        "audit/index.html",
        "Audit",
        events=found.items,
        searched_to=found.searched_to,
        next=view.here_with(cursor=found.next_cursor) if found.next_cursor else None,
        first=view.here_with() if paging.get("cursor") else None,
        chips=_chips(
            view, domain=domain, actor=who, event_type=event_type, since=since, until=until
        ),
        machine=machine,
        kinds=[("", "every event"), *((each.value, each.value) for each in AuditEventType)],
        chosen={"domain": domain or "", "actor": who or "", "event_type": event_type or ""},
        sealed=await view.bus.upkeep.seal_state(),
    )


def _chips(view: View, **chosen: object) -> list[tuple[str, str, str]]:
    return [
        (name.replace("_", " "), str(value), view.here_with(**{name: None}))
        for name, value in chosen.items()
        if value is not None
    ]

"""Governed batches, once they are there: status, list, retry, cancel. The same for all of them, and
for those of one path.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response

from commandbus.access.model import Caller, Scope
from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    ChildTicket,
    TicketAction,
    TicketStatus,
)
from commandbus.http.platform import Here, Platform, path_of
from commandbus.http.schemas.base import Cursor, Limit
from commandbus.http.schemas.commands import WithReason
from commandbus.http.schemas.governed import (
    ChildStatusQuery,
    ChildView,
    OwnerFilter,
    RetriedView,
    RetryForm,
    StatusView,
    TicketPageView,
    TicketView,
    TypeFilter,
)
from commandbus.http.security import requires
from commandbus.http.waiting import wait_of
from commandbus.paging import Page

#: Where all batches are.
BATCHES = "/api/v1/batches"

Prefer = Annotated[
    str | None,
    Header(
        max_length=200,
        description="`wait=N`: answer when it has ended, or, with If-None-Match, when it is "
        "another; or after N seconds.",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=1_000, description="The ETag of what you have.")
]

_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_STATUS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "ETag": {"schema": {"type": "string"}},
            "Preference-Applied": {"schema": {"type": "string"}},
        }
    },
    304: {"description": "It is still what the ETag in If-None-Match says."},
}


@dataclass(frozen=True, slots=True)
class Group:
    """The batches that are under one path."""

    base: str
    #: Their types; None: all.
    among: frozenset[str] | None
    #: What submitting them needs.
    permissions: frozenset[Scope]

    def acting(self) -> Any:
        """Who may act on them: owners, who need what submitting needs, and operators."""
        first, *others = sorted(self.permissions, key=lambda scope: scope is not Scope.SEND)
        return requires(first, *sorted({*others, Scope.OPERATE} - {first}))


# -- what is shown


def links_of(request: Request, ticket: BatchTicket, group: Group) -> dict[str, str]:
    """What makes sense to ask for next."""
    own = path_of(request, f"{group.base}/{ticket.ticket_id}")
    general = path_of(request, f"{BATCHES}/{ticket.ticket_id}")
    links = {"self": own, "children": f"{general}/children", "events": f"{general}/events"}
    at = {
        TicketAction.CANCEL: ("cancel", f"{own}/cancel"),
        TicketAction.APPROVE: ("decision", f"{general}/decision"),
        TicketAction.REJECT: ("decision", f"{general}/decision"),
        TicketAction.RETRY: ("retry", f"{own}/retry"),
    }
    return links | dict(at[action] for action in ticket.actions)


def ticket_values(request: Request, ticket: BatchTicket, group: Group) -> dict[str, Any]:
    """The fields of a TicketView."""
    values = {spec.name: getattr(ticket, spec.name) for spec in fields(ticket)}
    links = links_of(request, ticket, group)
    return values | {
        "batch_id": values.pop("ticket_id"),
        "status_url": links["self"],
        "links": links,
    }


def ticket_view(request: Request, ticket: BatchTicket, group: Group) -> TicketView:
    """A ticket, for the client."""
    return TicketView(**ticket_values(request, ticket, group))


def _tag(here: Platform, ticket: BatchTicket, page: Page[ChildTicket]) -> str:
    """Another one whenever the ticket, or a child that is shown, is another."""
    children = hashlib.sha256(repr(page).encode()).hexdigest()[:12]
    return f"{here.bus.governance.version(ticket)}-{children}"


@dataclass(frozen=True, slots=True)
class _Look:
    """Which part of which batch is looked at."""

    batch_id: UUID
    cursor: str | None
    limit: int
    status: ChildStatus | None


async def _look(
    here: Platform, caller: Caller, group: Group, look: _Look
) -> tuple[BatchTicket, Page[ChildTicket], str]:
    governance = here.bus.governance
    ticket = await governance.require(caller, look.batch_id, among=group.among)
    page = await governance.page_children(
        caller, look.batch_id, cursor=look.cursor, limit=look.limit, status=look.status
    )
    return ticket, page, _tag(here, ticket, page)


async def _long_look(
    here: Platform, caller: Caller, group: Group, look: _Look, known: set[str], seconds: float
) -> tuple[BatchTicket, Page[ChildTicket], str, bool]:
    """Look; if that is nothing new, wait for a change (or the end) and look again."""
    ticket, page, tag = await _look(here, caller, group, look)
    is_news = tag not in known if known else not ticket.is_open
    if is_news or not seconds:
        return ticket, page, tag, False
    governance = here.bus.governance
    seen = governance.version(ticket) if known else None
    with here.polls.place():
        waiting = governance.wait(caller, look.batch_id, seen=seen, timeout=seconds)
        await here.polls.unless_closing(waiting, ticket)
    return *(await _look(here, caller, group, look)), True


# -- routes


def add_ticket_routes(router: APIRouter, group: Group, name: str) -> None:
    """Add list, status, retry and cancel below the path of a group."""
    _add_looking(router, group, name)
    _add_acting(router, group, name)


def _add_looking(router: APIRouter, group: Group, name: str) -> None:
    @router.get(group.base, name=f"list_{name}", summary="List batches, newest first")
    async def list_tickets(
        request: Request,
        here: Here,
        caller: Annotated[Caller, requires(Scope.READ)],
        batch_type: TypeFilter = None,
        status: TicketStatus | None = None,
        created_by: OwnerFilter = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> TicketPageView:
        """Your own; whoever may operate or approve sees those of others too."""
        page = await here.bus.governance.page(
            caller, batch_type=batch_type, status=status, created_by=created_by, cursor=cursor,
            limit=limit, among=group.among,
        )  # fmt: skip
        return TicketPageView(
            items=[ticket_view(request, each, group) for each in page.items],
            next_cursor=page.next_cursor,
        )

    @router.get(
        f"{group.base}/{{batch_id}}",
        name=f"get_{name}",
        summary="Show a batch and its children",
        response_model=StatusView,
        responses=_STATUS_RESPONSES,
    )
    async def get_ticket(
        batch_id: UUID,
        request: Request,
        here: Here,
        caller: Annotated[Caller, requires(Scope.READ)],
        limit: Limit = 100,
        status: ChildStatusQuery = None,
        prefer: Prefer = None,
        if_none_match: IfNoneMatch = None,
        cursor: Cursor = None,
    ) -> Response:
        """The counts, and a page of its children; `Prefer: wait=N` for a long poll."""
        seconds = wait_of(prefer, here.settings.max_wait_seconds)
        known = set(_TAG.findall(if_none_match or ""))
        look = _Look(batch_id, cursor, limit, status)
        ticket, page, tag, has_waited = await _long_look(here, caller, group, look, known, seconds)
        headers = {"ETag": f'"{tag}"'}
        if has_waited:
            headers["Preference-Applied"] = f"wait={seconds:g}"
        if tag in known or (if_none_match or "").strip() == "*":
            return Response(status_code=304, headers=headers)
        shown = StatusView(
            **ticket_values(request, ticket, group),
            children=[ChildView.model_validate(each) for each in page.items],
            next_cursor=page.next_cursor,
        )
        return Response(shown.model_dump_json(), headers=headers, media_type="application/json")


def _add_acting(router: APIRouter, group: Group, name: str) -> None:
    acting = group.acting()

    @router.post(
        f"{group.base}/{{batch_id}}/retry",
        name=f"retry_{name}",
        summary="Send the failed children again",
        status_code=202,
    )
    async def retry_ticket(
        batch_id: UUID,
        request: Request,
        response: Response,
        here: Here,
        form: RetryForm | None = None,
        caller: Caller = acting,
    ) -> RetriedView:
        """Only the failed ones, up to the attempts that their type allows. A second click finds
        nothing to do.
        """
        reason = None if form is None else form.reason
        done = await here.bus.governance.retry(caller, batch_id, reason=reason, among=group.among)
        values = ticket_values(request, done.ticket, group)
        response.headers["Location"] = values["status_url"]
        return RetriedView(**values, retried=list(done.retried), exhausted=list(done.exhausted))

    @router.post(
        f"{group.base}/{{batch_id}}/cancel",
        name=f"cancel_{name}",
        summary="Cancel what is pending",
    )
    async def cancel_ticket(
        batch_id: UUID,
        form: WithReason,
        request: Request,
        here: Here,
        caller: Caller = acting,
    ) -> TicketView:
        """What a worker holds already goes on."""
        ticket = await here.bus.governance.cancel(caller, batch_id, form.reason, among=group.among)
        return ticket_view(request, ticket, group)

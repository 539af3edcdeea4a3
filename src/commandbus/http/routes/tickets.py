"""Governed batches, once they are there: status, list, retry, cancel. The same for all of them, and
for those of one path.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
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
from commandbus.http.auth.scopes import Reader, requires
from commandbus.http.platform import Here, Platform, Wait, path_of
from commandbus.http.schemas.base import PageOf50, PageOf100, Paging
from commandbus.http.schemas.commands import WithReason
from commandbus.http.schemas.governed import (
    ChildStatusQuery,
    OwnerFilter,
    RetriedView,
    RetryForm,
    StatusView,
    TicketView,
    TypeFilter,
)
from commandbus.http.schemas.views import PageView
from commandbus.paging import Page

#: Where all batches are.
BATCHES = "/api/v1/batches"

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
    """What can be asked for, and done, next."""
    own = path_of(request, f"{group.base}/{ticket.ticket_id}")
    general = path_of(request, f"{BATCHES}/{ticket.ticket_id}")
    links = {"self": own, "children": f"{general}/children", "events": f"{general}/events"}
    actions = {
        TicketAction.CANCEL: ("cancel", f"{own}/cancel"),
        TicketAction.RETRY: ("retry", f"{own}/retry"),
        TicketAction.APPROVE: ("decision", f"{general}/decision"),
        TicketAction.REJECT: ("decision", f"{general}/decision"),
    }
    return links | dict(actions[action] for action in ticket.actions)


def ticket_view(request: Request, ticket: BatchTicket, group: Group) -> TicketView:
    """A ticket, for the client."""
    return TicketView.of(ticket, **_addresses(request, ticket, group))


def _addresses(request: Request, ticket: BatchTicket, group: Group) -> dict[str, Any]:
    links = links_of(request, ticket, group)
    return {"status_url": links["self"], "links": links}


def _tag(here: Platform, ticket: BatchTicket, page: Page[ChildTicket]) -> str:
    """A text that changes whenever the ticket, or a child that is shown, changes."""
    children = hashlib.sha256(repr(page).encode()).hexdigest()[:12]
    return f"{here.bus.governance.version(ticket)}-{children}"


@dataclass(frozen=True, slots=True)
class _Look:
    """Which part of which batch is looked at."""

    batch_id: UUID
    status: ChildStatus | None
    paging: Paging


async def _look(
    here: Platform, caller: Caller, group: Group, look: _Look
) -> tuple[BatchTicket, Page[ChildTicket], str]:
    governance = here.bus.governance
    ticket = await governance.require(caller, look.batch_id, among=group.among)
    page = await governance.page_children(caller, look.batch_id, status=look.status, **look.paging)
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
        caller: Reader,
        paging: PageOf50,
        batch_type: TypeFilter = None,
        status: TicketStatus | None = None,
        created_by: OwnerFilter = None,
    ) -> PageView[TicketView]:
        """Your own batches; callers who may operate or approve see those of others too."""
        page = await here.bus.governance.page(
            caller, batch_type=batch_type, status=status, created_by=created_by,
            among=group.among, **paging,
        )  # fmt: skip
        items = [ticket_view(request, each, group) for each in page.items]
        return PageView[TicketView](items=items, next_cursor=page.next_cursor)

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
        caller: Reader,
        paging: PageOf100,
        wait: Wait,
        status: ChildStatusQuery = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """The counts, and a page of its children; `Prefer: wait=N` for a long poll."""
        known = set(_TAG.findall(if_none_match or ""))
        look = _Look(batch_id, status, paging)
        ticket, page, tag, has_waited = await _long_look(here, caller, group, look, known, wait)
        headers = {"ETag": f'"{tag}"'}
        if has_waited:
            headers["Preference-Applied"] = f"wait={wait:g}"
        if tag in known or (if_none_match or "").strip() == "*":
            return Response(status_code=304, headers=headers)
        shown = StatusView.of(
            ticket,
            **_addresses(request, ticket, group),
            children=page.items,
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
        """Only the failed ones, up to the attempts that their type allows. A second request finds
        nothing to do.
        """
        reason = None if form is None else form.reason
        done = await here.bus.governance.retry(caller, batch_id, reason=reason, among=group.among)
        addresses = _addresses(request, done.ticket, group)
        response.headers["Location"] = addresses["status_url"]
        return RetriedView.of(
            done.ticket, **addresses, retried=done.retried, exhausted=done.exhausted
        )

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
        """Commands that a worker has leased continue."""
        ticket = await here.bus.governance.cancel(caller, batch_id, form.reason, among=group.among)
        return ticket_view(request, ticket, group)

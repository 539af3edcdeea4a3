"""Governed batches that exist: list, status, retry, cancel. The same routes for all batches, and
for those of one path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import APIRouter, Header, Response

from commandbus.access.model import Caller, Scope
from commandbus.governance.model import BatchTicket, ChildTicket, TicketAction, TicketStatus
from commandbus.http.auth.scopes import Reader, requires
from commandbus.http.platform import Here, Platform, Wait
from commandbus.http.schemas.base import PageOf50, PageOf100
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
from commandbus.http.schemas.views import PageView, View
from commandbus.paging import Page

#: Where all batches are.
BATCHES = "/api/v1/batches"

IfNoneMatch = Annotated[
    str | None, Header(max_length=1_000, description="The ETag of what you have.")
]
ViewType = TypeVar("ViewType", bound=View)

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

    def view(
        self, here: Platform, ticket: BatchTicket, view: type[ViewType], **more: Any
    ) -> ViewType:
        """A ticket, with the addresses of what can be asked for, and done, next."""
        own = here.url(f"{self.base}/{ticket.ticket_id}")
        general = here.url(f"{BATCHES}/{ticket.ticket_id}")
        links = {"self": own, "children": f"{general}/children", "events": f"{general}/events"}
        actions = {
            TicketAction.CANCEL: ("cancel", f"{own}/cancel"),
            TicketAction.RETRY: ("retry", f"{own}/retry"),
            TicketAction.APPROVE: ("decision", f"{general}/decision"),
            TicketAction.REJECT: ("decision", f"{general}/decision"),
        }
        links |= dict(actions[action] for action in ticket.actions)
        if ticket.status is TicketStatus.PENDING_APPROVAL:
            links["review"] = f"{general}/review"
        return view.of(ticket, status_url=own, links=links, **more)


ALL = Group(BATCHES, None)


def add_ticket_routes(
    router: APIRouter, group: Group, name: str, permissions: Collection[Scope]
) -> None:
    """Add list, status, retry and cancel below the path of a group.

    `permissions` are those that submitting the batches of the group needs.
    """
    _add_reading(router, group, name)
    _add_acting(router, group, name, permissions)


def _add_reading(router: APIRouter, group: Group, name: str) -> None:
    @router.get(group.base, name=f"list_{name}", summary="List batches, newest first")
    async def list_tickets(
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
        items = [group.view(here, each, TicketView) for each in page.items]
        return PageView[TicketView].of(page, items=items)

    @router.get(
        f"{group.base}/{{batch_id}}",
        name=f"get_{name}",
        summary="Show a batch and its children",
        response_model=StatusView,
        responses=_STATUS_RESPONSES,
    )
    async def get_ticket(
        batch_id: UUID,
        here: Here,
        caller: Reader,
        paging: PageOf100,
        wait: Wait,
        status: ChildStatusQuery = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """The counts, and a page of its children; `Prefer: wait=N` for a long poll."""
        governance = here.bus.governance
        known = set(_TAG.findall(if_none_match or ""))
        headers = {}

        async def read() -> tuple[BatchTicket, Page[ChildTicket], str]:
            ticket = await governance.require(caller, batch_id, among=group.among)
            page = await governance.page_children(caller, batch_id, status=status, **paging)
            # The tag changes whenever the ticket, or a child that is shown, changes.
            children = hashlib.sha256(repr(page).encode()).hexdigest()[:12]
            return ticket, page, f"{governance.version(ticket)}-{children}"

        ticket, page, tag = await read()
        is_news = tag not in known if known else not ticket.is_open
        if wait and not is_news:
            # Without an ETag the client waits for the end of the batch, otherwise for any change.
            seen = governance.version(ticket) if known else None
            await here.wait(
                lambda: governance.wait(caller, batch_id, seen=seen, timeout=wait), ticket
            )
            ticket, page, tag = await read()
            headers["Preference-Applied"] = f"wait={wait:g}"
        headers["ETag"] = f'"{tag}"'
        if tag in known or (if_none_match or "").strip() == "*":
            return Response(status_code=304, headers=headers)
        shown = group.view(
            here, ticket, StatusView, children=page.items, next_cursor=page.next_cursor
        )
        return Response(shown.model_dump_json(), headers=headers, media_type="application/json")


def _add_acting(router: APIRouter, group: Group, name: str, permissions: Collection[Scope]) -> None:
    # Owners, who need what submitting needs, and operators. The document names the first scope.
    first, *others = sorted(permissions, key=lambda scope: (scope is not Scope.SUBMIT, scope))
    acting = requires(first, *sorted({*others, Scope.OPERATE} - {first}))

    @router.post(
        f"{group.base}/{{batch_id}}/retry",
        name=f"retry_{name}",
        summary="Send the failed children again",
        status_code=202,
    )
    async def retry_ticket(
        batch_id: UUID,
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
        view = group.view(
            here, done.ticket, RetriedView, retried=done.retried, exhausted=done.exhausted
        )
        response.headers["Location"] = view.status_url
        return view

    @router.post(
        f"{group.base}/{{batch_id}}/cancel", name=f"cancel_{name}", summary="Cancel what is pending"
    )
    async def cancel_ticket(
        batch_id: UUID, form: WithReason, here: Here, caller: Caller = acting
    ) -> TicketView:
        """Commands that a worker has leased continue."""
        ticket = await here.bus.governance.cancel(caller, batch_id, form.reason, among=group.among)
        return group.view(here, ticket, TicketView)

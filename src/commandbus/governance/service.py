"""Governance: the verbs of governed batches. Each checks its caller itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, LiteralString
from uuid import UUID

from commandbus.access.callers import (
    demand,
    demand_action,
    demand_submission,
    is_visible,
    may_act,
    owns,
    sees_all,
)
from commandbus.access.model import Caller, Scope
from commandbus.commands.sending import Preparer
from commandbus.database.store import Listener, Store
from commandbus.errors import TicketNotFoundError
from commandbus.governance.approvals import Approvals
from commandbus.governance.governed import Governed
from commandbus.governance.limits import check_user
from commandbus.governance.model import (
    BatchTicket,
    ChildRetry,
    ChildStatus,
    ChildTicket,
    Item,
    Submission,
    TicketAction,
    TicketStatus,
)
from commandbus.governance.submission import check_reason, check_request, submit
from commandbus.governance.tickets import page_children, page_tickets, tickets_by_id
from commandbus.governance.types import BatchTypes
from commandbus.governance.watch import Watch, version
from commandbus.handler import HandlerRegistry
from commandbus.names import check_choice_or_none, check_text, check_uuid
from commandbus.paging import Page, check_page
from commandbus.settings import Settings, check_number

#: Dispatches of a child whose batch type this process does not know.
DEFAULT_MAX_ATTEMPTS = 3
#: Only tickets of these batch types are there; None: all of them.
Among = frozenset[str] | None

_RETRY: LiteralString = (
    "select retried, exhausted from {schema}.retry_ticket(%s, %s, %s, %s, cast(%s as text))"
)


class Governance(Governed):
    """`bus.governance`: submits governed batches, shows their tickets, and acts on them.

    Types can be declared on any bus; everything else needs PostgreSQL.
    """

    types: BatchTypes

    def __init__(
        self,
        store: Store,
        preparer: Preparer,
        settings: Settings,
        registry: HandlerRegistry,
        listener: Callable[[], Listener],
    ) -> None:
        super().__init__(store, preparer, settings)
        self._self_approval = settings.self_approval
        self._watch = Watch(store, listener)
        self._approvals = Approvals(store, registry, self_approval=settings.self_approval)
        self.declare(self._approvals.batch_type)

    # -- submission

    async def submit(
        self,
        caller: Caller,
        batch_type: str,
        items: Sequence[Item],
        *,
        request_id: UUID | None = None,
        reason: str | None = None,
    ) -> Submission:
        """Create a governed batch, or nothing.

        In this order: permission, shape and size, repeat of `request_id`, limits, the items, and
        then all of it in the same transaction. A repeat gets the batch that is there, and is
        charged nothing.
        """
        declared = self.types.require(batch_type)
        demand_submission(caller, declared)
        check_user(caller.user_id)
        request = check_request(caller, declared, items, request_id, reason, self._preparer)
        await self.register()
        return await submit(self._store, request, self._defaults)

    # -- looking

    async def get(
        self, caller: Caller, ticket_id: UUID, *, among: Among = None
    ) -> BatchTicket | None:
        """One ticket, or None if there is none that the caller may see.

        Owners see their own; operators and approvers see all of their domains.
        """
        demand(caller, Scope.READ, "looking at a batch")
        return await self._visible(caller, ticket_id, among)

    async def require(self, caller: Caller, ticket_id: UUID, *, among: Among = None) -> BatchTicket:
        """One ticket; TicketNotFoundError if there is none that the caller may see."""
        return _present(await self.get(caller, ticket_id, among=among), ticket_id)

    async def page(
        self,
        caller: Caller,
        *,
        batch_type: str | None = None,
        status: TicketStatus | None = None,
        created_by: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        among: Among = None,
    ) -> Page[BatchTicket]:
        """Tickets that the caller may see, newest first."""
        demand(caller, Scope.READ, "listing batches")
        check_page(limit)
        wanted = check_choice_or_none(TicketStatus, status, "status")
        if batch_type is not None:
            kind = check_text(batch_type, "batch_type", max_length=64)
            among = frozenset({kind}) if among is None else among & {kind}
        owner = None if created_by is None else check_user(created_by)
        if not sees_all(caller):
            if owner not in {None, caller.user_id}:
                return Page([], None)
            owner = caller.user_id
        return await page_tickets(
            self._store.gateway, owner, caller.domains, among, wanted, limit=limit, cursor=cursor
        )

    async def page_children(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        status: ChildStatus | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ChildTicket]:
        """Children of a ticket, in the order of the request."""
        check_page(limit)
        wanted = check_choice_or_none(ChildStatus, status, "status")
        ticket = await self.require(caller, ticket_id)
        return await page_children(
            self._store.gateway, ticket.ticket_id, status=wanted, limit=limit, cursor=cursor
        )

    def allowed_actions(self, caller: Caller, ticket: BatchTicket) -> tuple[TicketAction, ...]:
        """What this caller may do with the ticket in its state."""
        acts = may_act(caller, ticket, self._permission(ticket))
        decides = (
            caller.may(Scope.APPROVE)
            and is_visible(caller, ticket)
            and (self._self_approval or not owns(caller, ticket))
        )
        deciding = {TicketAction.APPROVE, TicketAction.REJECT}
        return tuple(a for a in ticket.actions if (decides if a in deciding else acts))

    @staticmethod
    def version(ticket: BatchTicket) -> str:
        """A strong ETag of the ticket: another one after every change that can be seen of it."""
        return version(ticket)

    async def wait(
        self, caller: Caller, ticket_id: UUID, *, seen: str | None, timeout: float
    ) -> BatchTicket:
        """The ticket as soon as its version is not `seen`; with None: as soon as it has ended.

        After `timeout` seconds: the ticket as it is.
        """
        check_number(timeout, "timeout", 0, 3_600)
        ticket = await self.require(caller, ticket_id)
        try:
            changed = await self._watch.wait(ticket, seen, timeout)
        except TimeoutError:
            changed = await self._visible(caller, ticket.ticket_id)
        return _present(changed, ticket.ticket_id)

    # -- acting

    async def retry(
        self, caller: Caller, ticket_id: UUID, *, reason: str | None = None, among: Among = None
    ) -> ChildRetry:
        """Send failed children again, unless they were sent as often as their type allows.

        For its owner, and for operators. A repeat finds nothing to do.
        """
        ticket = await self._require_for_action(caller, ticket_id, "retrying a batch", among)
        declared = self.types.get(ticket.batch_type)
        cap = DEFAULT_MAX_ATTEMPTS if declared is None else declared.max_attempts
        text = None if reason is None else check_reason(reason)
        ((retried, exhausted),) = await self._store.gateway.rows(
            _RETRY,
            (ticket.domain, ticket.ticket_id, cap, caller.user_id, text),
            domain=ticket.domain,
        )
        after = await self._stored(ticket.ticket_id)
        return ChildRetry(after, tuple(retried or ()), tuple(exhausted or ()))

    async def cancel(
        self, caller: Caller, ticket_id: UUID, reason: str, *, among: Among = None
    ) -> BatchTicket:
        """Cancel what is pending; what a worker has goes on. For its owner, and for operators."""
        text = check_reason(reason)
        ticket = await self._require_for_action(caller, ticket_id, "canceling a batch", among)
        while await self._store.cancel_batch(
            ticket.domain, ticket.ticket_id, reason=text, actor=caller.user_id
        ):
            pass
        return await self._stored(ticket.ticket_id)

    async def decide(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        approve: bool,
        reason: str | None,
        conn: Any = None,
    ) -> BatchTicket:
        """Approve or reject a batch that waits for it; a rejection needs a reason.

        No user decides about their own batch, unless the setting `self_approval` allows it. The
        same decision twice changes nothing; the opposite one is refused. With `conn` it is part of
        the caller's transaction.
        """
        demand(caller, Scope.APPROVE, "deciding about a batch")
        text = None if reason is None else check_reason(reason)
        ticket = _present(await self._visible(caller, ticket_id, conn=conn), ticket_id)
        await self._approvals.decide(
            ticket, caller.user_id, approve=approve, reason=text, conn=conn
        )
        return await self._stored(ticket.ticket_id, conn=conn)

    def register_handlers(self) -> None:
        """Register the handler that carries out approvals which were submitted as a batch."""
        self._approvals.register_handlers()

    async def close(self) -> None:
        """Stop watching tickets."""
        await self._watch.close()

    async def _stored(self, ticket_id: UUID, *, conn: Any = None) -> BatchTicket:
        found = await tickets_by_id(self._store.gateway, [ticket_id], conn=conn)
        return _present(found[0] if found else None, ticket_id)

    async def _visible(
        self, caller: Caller, ticket_id: UUID, among: Among = None, *, conn: Any = None
    ) -> BatchTicket | None:
        ids = [check_uuid(ticket_id, "ticket_id")]
        found = await tickets_by_id(self._store.gateway, ids, conn=conn)
        seen = (t for t in found if is_visible(caller, t) and _is_among(t, among))
        return next(seen, None)

    async def _require_for_action(
        self, caller: Caller, ticket_id: UUID, what: str, among: Among
    ) -> BatchTicket:
        ticket = await self._stored(check_uuid(ticket_id, "ticket_id"))
        if not _is_among(ticket, among):
            raise TicketNotFoundError(ticket.ticket_id)
        demand_action(caller, ticket, self._permission(ticket), what)
        return ticket

    def _permission(self, ticket: BatchTicket) -> Scope:
        declared = self.types.get(ticket.batch_type)
        return Scope.SUBMIT if declared is None else declared.permission


def _present(ticket: BatchTicket | None, ticket_id: UUID) -> BatchTicket:
    if ticket is None:
        raise TicketNotFoundError(check_uuid(ticket_id, "ticket_id"))
    return ticket


def _is_among(ticket: BatchTicket, among: Among) -> bool:
    return among is None or ticket.batch_type in among

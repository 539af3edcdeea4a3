"""Governance: the verbs of governed batches. Each checks its caller itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import LiteralString
from uuid import UUID

from commandbus.access.callers import demand, demand_action, demand_submission, may_act
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible, owns, sees_all
from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer
from commandbus.database.store import Listener, Store
from commandbus.errors import TicketNotFoundError
from commandbus.governance.deciding import Among, is_among, present
from commandbus.governance.examining import Examining
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
from commandbus.governance.tickets import child_of, page_children, page_tickets
from commandbus.governance.types import BatchTypes
from commandbus.governance.watch import Watch, version
from commandbus.handlers.registry import HandlerRegistry
from commandbus.names import check_choice_or_none, check_text, check_uuid
from commandbus.paging import Page, check_page
from commandbus.settings import Settings, check_number

#: Dispatches of a child whose batch type this process does not know.
DEFAULT_MAX_ATTEMPTS = 3

_RETRY: LiteralString = (
    "select retried, exhausted from {schema}.retry_ticket(%s, %s, %s, %s, cast(%s as text))"
)


class Governance(Examining):
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
        super().__init__(store, preparer, settings, registry)
        self._expires_seconds = settings.approval_expires_seconds
        self._watch = Watch(store, listener)
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
        with self._preparer.drafting.around(
            declared.domain, len(request.commands), is_many=True
        ) as drafts:
            request = replace(
                request,
                commands=[drafted(declared.domain, each, drafts) for each in request.commands],
            )
            return await submit(self._store, request, self._defaults, self._expires_seconds)

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
        return present(await self.get(caller, ticket_id, among=among), ticket_id)

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

    async def child(self, ticket_id: UUID, command_id: UUID) -> ChildTicket | None:
        """What a command is in the batch that it belongs to, or None if that is not governed.

        For those who may see the command: no caller is asked for.
        """
        ids = check_uuid(ticket_id, "ticket_id"), check_uuid(command_id)
        return await child_of(self._store.gateway, *ids)

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
        return present(changed, ticket.ticket_id)

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

    def register_handlers(self) -> None:
        """Register the handler that carries out approvals which were submitted as a batch."""
        self._approvals.register_handlers()

    async def close(self) -> None:
        """Stop watching tickets."""
        await self._watch.close()

    async def _require_for_action(
        self, caller: Caller, ticket_id: UUID, what: str, among: Among
    ) -> BatchTicket:
        ticket = await self._stored(check_uuid(ticket_id, "ticket_id"))
        if not is_among(ticket, among):
            raise TicketNotFoundError(ticket.ticket_id)
        demand_action(caller, ticket, self._permission(ticket), what)
        return ticket

    def _permission(self, ticket: BatchTicket) -> Scope:
        declared = self.types.get(ticket.batch_type)
        return Scope.SUBMIT if declared is None else declared.permission

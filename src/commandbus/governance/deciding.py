"""Deciding: what waits for a decision, what it consists of, and the decision itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible
from commandbus.commands.preparing import Preparer
from commandbus.database.store import Store
from commandbus.errors import TicketNotFoundError
from commandbus.governance.approvals import Approvals
from commandbus.governance.governed import Governed
from commandbus.governance.model import BatchTicket, Review, Undecided
from commandbus.governance.review import children_of, page_undecided, review_of
from commandbus.governance.submission import check_reason
from commandbus.governance.tickets import tickets_by_id
from commandbus.handlers.registry import HandlerRegistry
from commandbus.names import check_uuid
from commandbus.paging import Page, check_page
from commandbus.settings import Settings, check_number

#: Only tickets of these batch types are there; None: all of them.
Among = frozenset[str] | None


class Deciding(Governed):
    """The verbs of those who approve."""

    def __init__(
        self, store: Store, preparer: Preparer, settings: Settings, registry: HandlerRegistry
    ) -> None:
        super().__init__(store, preparer, settings)
        self._registry = registry
        self._self_approval = settings.self_approval
        self._approvals = Approvals(
            store, registry, self.types, self_approval=settings.self_approval
        )

    async def decide(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        approve: bool,
        reason: str | None,
        digest: str | None = None,
        conn: Any = None,
    ) -> BatchTicket:
        """Approve or reject a batch that waits for it; a rejection needs a reason.

        `digest` is the `content_digest` that the caller has seen: if the batch has another one,
        nothing changes and InvalidOperationError is raised. No user decides about their own batch,
        unless the setting `self_approval` allows it. The same decision twice changes nothing; the
        opposite one is refused. With `conn` it is part of the caller's transaction.
        """
        demand(caller, Scope.APPROVE, "deciding about a batch")
        text = None if reason is None else check_reason(reason)
        ticket = present(await self._visible(caller, ticket_id, conn=conn), ticket_id)
        await self._approvals.decide(
            ticket, caller.user_id, approve=approve, reason=text, digest=digest, conn=conn
        )
        return await self._stored(ticket.ticket_id, conn=conn)

    async def decide_edit(
        self,
        caller: Caller,
        ticket_id: UUID,
        sequence_no: int,
        *,
        approve: bool,
        reason: str | None,
        digest: str | None = None,
        conn: Any = None,
    ) -> BatchTicket:
        """Approve or reject the edit of a child.

        Approved, the child is sent again with exactly that payload; the approval must name the
        digest of the edit. Rejected, it waits for an operator as before. No user decides about
        their own edit, nor about one in their own batch, unless `self_approval` allows that.
        """
        demand(caller, Scope.APPROVE, "deciding about an edit")
        check_number(sequence_no, "sequence_no", 1, 2**31 - 1, is_whole=True)
        text = None if reason is None else check_reason(reason)
        ticket = present(await self._visible(caller, ticket_id, conn=conn), ticket_id)
        await self._approvals.decide_edit(
            ticket, sequence_no, caller.user_id,
            approve=approve, reason=text, digest=digest, conn=conn,
        )  # fmt: skip
        return await self._stored(ticket.ticket_id, conn=conn)

    async def review(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        limit: int = 200,
        cursor: str | None = None,
        among: Among = None,
    ) -> Review:
        """What a decision is about: the ticket, its children, their payloads with secrets masked.

        Callers with the scope `approve` see what waits for a decision: the whole batch, or the
        children whose edits wait. Everything else needs the scope `read-payload`.
        """
        check_page(limit)
        ticket = present(await self._visible(caller, ticket_id, among), ticket_id)
        if not may_review(caller, ticket):
            demand(caller, Scope.READ_PAYLOAD, "the payloads of a batch that is decided")
        page = await children_of(
            self._store, ticket, only_edits=sees_only_edits(caller, ticket), limit=limit,
            cursor=cursor,
        )  # fmt: skip
        return review_of(ticket, page, await self._secret_keys(ticket))

    async def page_undecided(
        self,
        caller: Caller,
        *,
        newest_first: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Undecided]:
        """What waits for a decision in the caller's domains: batches and edits together."""
        demand(caller, Scope.APPROVE, "listing what waits for a decision")
        check_page(limit)
        return await page_undecided(
            self._store.gateway, caller.domains,
            newest_first=newest_first, limit=limit, cursor=cursor,
        )  # fmt: skip

    async def item_type(self, batch_id: UUID) -> type[Any] | None:
        """What the payloads of a batch must fit, if it is governed and declared here."""
        found = await tickets_by_id(self._store.gateway, [batch_id])
        declared = self.types.get(found[0].batch_type) if found else None
        return None if declared is None else declared.payload_type

    async def _secret_keys(self, ticket: BatchTicket) -> frozenset[str]:
        """The keys that are marked as secret: by the batch type, and by handlers anywhere."""
        command_type = await self._approvals.command_type(ticket)
        known = await self._store.secret_keys(ticket.domain, command_type)
        return self._marked(ticket, command_type, known)

    def _marked(
        self, ticket: BatchTicket, command_type: str, known: Iterable[str]
    ) -> frozenset[str]:
        """Those that the database knows of, and those that are declared here."""
        declared = self.types.get(ticket.batch_type)
        own = frozenset[str]() if declared is None else declared.secret_keys
        return own.union(known, self._registry.marked(ticket.domain, command_type))

    async def _stored(self, ticket_id: UUID, *, conn: Any = None) -> BatchTicket:
        found = await tickets_by_id(self._store.gateway, [ticket_id], conn=conn)
        return present(found[0] if found else None, ticket_id)

    async def _visible(
        self, caller: Caller, ticket_id: UUID, among: Among = None, *, conn: Any = None
    ) -> BatchTicket | None:
        ids = [check_uuid(ticket_id, "ticket_id")]
        found = await tickets_by_id(self._store.gateway, ids, conn=conn)
        seen = (t for t in found if is_visible(caller, t) and is_among(t, among))
        return next(seen, None)


def may_review(caller: Caller, ticket: BatchTicket) -> bool:
    """Whether the caller may see payloads of this ticket: to decide, or because of its scope."""
    waits = ticket.is_undecided or ticket.edit_count > 0
    return caller.may(Scope.READ_PAYLOAD) or (waits and caller.may(Scope.APPROVE))


def sees_only_edits(caller: Caller, ticket: BatchTicket) -> bool:
    """Whether of its children only those whose edits wait may be seen."""
    return not (ticket.is_undecided or caller.may(Scope.READ_PAYLOAD))


def present(ticket: BatchTicket | None, ticket_id: UUID) -> BatchTicket:
    """The ticket; TicketNotFoundError if there is none."""
    if ticket is None:
        raise TicketNotFoundError(check_uuid(ticket_id, "ticket_id"))
    return ticket


def is_among(ticket: BatchTicket, among: Among) -> bool:
    """Whether it is one of these batch types."""
    return among is None or ticket.batch_type in among

"""Governance: the verbs of governed batches. Each checks its caller itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from commandbus.access.callers import (
    demand,
    demand_action,
    demand_submission,
    is_visible,
    sees_all,
)
from commandbus.commands.sending import Preparer
from commandbus.database.store import Listener
from commandbus.errors import (
    BatchSizeExceededError,
    DatabaseUnavailableError,
    InvalidBatchRequestError,
    InvalidInputError,
    RateLimitExceededError,
    TicketNotFoundError,
)
from commandbus.governance.approvals import Approvals
from commandbus.governance.cursors import cursor_of, place_of
from commandbus.governance.items import Checked, check_items, refused
from commandbus.governance.limits import LimitVerbs, check_user, defaults_of
from commandbus.governance.model import (
    BatchTicket,
    Caller,
    ChildPage,
    ChildRetry,
    ChildStatus,
    Item,
    Scope,
    Submission,
    TicketPage,
    TicketStatus,
)
from commandbus.governance.types import BatchType, BatchTypes
from commandbus.governance.watch import Watch, version
from commandbus.handler import HandlerRegistry
from commandbus.names import check_text, check_uuid
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings, check_number
from commandbus.store.governing import (
    GovernanceStore,
    NewTicket,
    Request,
    SubmissionTransaction,
    TicketSearch,
    Verdict,
)

#: Seconds that a type's own check may take: other submissions wait for it.
CHECK_SECONDS = 5.0
#: Dispatches of a child whose batch type this process does not know.
DEFAULT_MAX_ATTEMPTS = 3
#: Only tickets of these batch types are there; None: all of them.
Among = frozenset[str] | None


class Governance(LimitVerbs):
    """Submits governed batches, shows their tickets, and acts on them."""

    def __init__(
        self,
        store: GovernanceStore,
        types: BatchTypes,
        preparer: Preparer,
        settings: Settings,
        registry: HandlerRegistry,
        listener: Callable[[], Listener],
    ) -> None:
        self.types = types
        self._store = store
        self._preparer = preparer
        self._settings = settings
        self._defaults = defaults_of(settings)
        self._watch = Watch(store, listener)
        self._approvals = Approvals(store, registry, self_approval=settings.self_approval)
        types.declare(self._approvals.batch_type)

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
        """Create a governed batch, or nothing (decision C40).

        In this order: permission, shape and size, repeat of `request_id`, limits, the items, and
        then all of it in the same transaction. A repeat gets the batch that is there, and is
        charged nothing.
        """
        declared = self.types.get(batch_type)
        demand_submission(caller, declared)
        check_user(caller.user_id)
        key = None if request_id is None else _request_id(request_id)
        text = None if reason is None else _reason(reason)
        checked = check_items(declared, items, text, self._preparer)
        request = Request(
            caller.user_id, declared.name, len(checked.items), key, checked.digest, self._defaults
        )
        # The queues of a new domain are made beforehand: DDL has no place in the transaction.
        await self._store.ensure_domain(declared.domain)
        async with self._store.submission() as transaction:
            verdict = await transaction.begin(request)
            if verdict.word == "replay" and verdict.ticket_id is not None:
                found = await transaction.find(verdict.ticket_id)
                if found is None:
                    raise TicketNotFoundError(verdict.ticket_id)
                return Submission(found, True, verdict.limits)
            _refuse(request, verdict)
            await _check_items(declared, transaction, caller, checked)
            new = NewTicket(
                uuid4(), declared.domain, declared.requires_approval, text, _origin(caller)
            )
            ticket, limits = await transaction.create(request, new, checked.commands)
        return Submission(ticket, False, limits)

    # -- looking

    async def get(self, caller: Caller, ticket_id: UUID, *, among: Among = None) -> BatchTicket:
        """One ticket. Owners see their own, who may operate or approve sees all of its domains."""
        demand(caller, Scope.READ, "looking at a batch")
        return await self._visible(caller, ticket_id, among)

    async def children(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        after: int = 0,
        limit: int = 100,
        status: ChildStatus | None = None,
    ) -> ChildPage:
        """Children in the order of the request, from the one after `after` on."""
        check_page(limit)
        check_number(after, "after", 0, 2**31 - 1, is_whole=True)
        wanted = None if status is None else _word(ChildStatus, status)
        ticket = await self.get(caller, ticket_id)
        found = await self._store.list_children(
            ticket.ticket_id, after=after, limit=limit + 1, status=wanted
        )
        page = tuple(found[:limit])
        return ChildPage(page, page[-1].sequence_no if len(found) > limit else None)

    async def list(
        self,
        caller: Caller,
        *,
        batch_type: str | None = None,
        status: TicketStatus | None = None,
        created_by: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
        among: Among = None,
    ) -> TicketPage:
        """Tickets that the caller may see, newest first."""
        demand(caller, Scope.READ, "listing batches")
        check_page(limit)
        wanted = None if status is None else _word(TicketStatus, status)
        kinds = among
        if batch_type is not None:
            kind = check_text(batch_type, "batch_type", max_length=64)
            kinds = frozenset({kind}) if among is None else among & {kind}
        owner = None if created_by is None else check_user(created_by)
        if not sees_all(caller):
            if owner not in {None, caller.user_id}:
                return TicketPage((), None)
            owner = caller.user_id
        before: tuple[datetime, UUID] | None = None if cursor is None else place_of(cursor)
        found = await self._store.list_tickets(
            TicketSearch(caller.domains, owner, kinds, wanted, before), limit=limit + 1
        )
        page = tuple(found[:limit])
        following = cursor_of(page[-1]) if len(found) > limit else None
        return TicketPage(page, following)

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
        ticket = await self.get(caller, ticket_id)
        try:
            changed = await self._watch.wait(ticket, seen, timeout)
        except TimeoutError:
            return await self._visible(caller, ticket.ticket_id)
        if changed is None:
            raise TicketNotFoundError(ticket.ticket_id)
        return changed

    # -- acting

    async def retry(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        reason: str | None = None,
        among: Among = None,
    ) -> ChildRetry:
        """Send failed children again, unless they were sent as often as their type allows.

        For its owner, and for operators. A second click finds nothing to do.
        """
        ticket = await self._actable(caller, ticket_id, "retrying a batch", among)
        declared = self.types.find(ticket.batch_type)
        retried, exhausted = await self._store.retry_ticket(
            ticket,
            cap=DEFAULT_MAX_ATTEMPTS if declared is None else declared.max_attempts,
            actor=caller.user_id,
            reason=None if reason is None else _reason(reason),
        )
        return ChildRetry(await self._found(ticket.ticket_id), retried, exhausted)

    async def cancel(
        self, caller: Caller, ticket_id: UUID, reason: str, *, among: Among = None
    ) -> BatchTicket:
        """Cancel what is pending; what a worker holds goes on. For its owner, and for operators."""
        text = _reason(reason)
        ticket = await self._actable(caller, ticket_id, "canceling a batch", among)
        while await self._store.cancel_batch(
            ticket.domain, ticket.ticket_id, reason=text, actor=caller.user_id
        ):
            pass
        return await self._found(ticket.ticket_id)

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

        Nobody decides its own batch, unless the setting `self_approval` says so. The same decision
        twice changes nothing; the other way is refused. With `conn` it is part of the caller's
        transaction.
        """
        demand(caller, Scope.APPROVE, "deciding about a batch")
        text = None if reason is None else _reason(reason)
        ticket = await self._visible(caller, ticket_id, conn=conn)
        await self._approvals.decide(
            ticket, caller.user_id, approve=approve, reason=text, conn=conn
        )
        return await self._found(ticket.ticket_id, conn=conn)

    def register_handlers(self) -> None:
        """Register the handler that carries out approvals which were submitted as a batch."""
        self._approvals.register_handlers()

    async def close(self) -> None:
        """Stop watching tickets."""
        await self._watch.close()

    async def _found(self, ticket_id: UUID, *, conn: Any = None) -> BatchTicket:
        found = await self._store.get_tickets([ticket_id], conn=conn)
        if not found:
            raise TicketNotFoundError(ticket_id)
        return found[0]

    async def _visible(
        self, caller: Caller, ticket_id: UUID, among: Among = None, *, conn: Any = None
    ) -> BatchTicket:
        ticket = await self._found(check_uuid(ticket_id, "ticket_id"), conn=conn)
        if not is_visible(caller, ticket) or not _is_among(ticket, among):
            raise TicketNotFoundError(ticket.ticket_id)
        return ticket

    async def _actable(
        self, caller: Caller, ticket_id: UUID, what: str, among: Among
    ) -> BatchTicket:
        ticket = await self._found(check_uuid(ticket_id, "ticket_id"))
        if not _is_among(ticket, among):
            raise TicketNotFoundError(ticket.ticket_id)
        declared = self.types.find(ticket.batch_type)
        permission = Scope.SEND if declared is None else declared.permission
        demand_action(caller, ticket, permission, what)
        return ticket


def _is_among(ticket: BatchTicket, among: Among) -> bool:
    return among is None or ticket.batch_type in among


def _refuse(request: Request, verdict: Verdict) -> None:
    refusal = verdict.refusal
    match verdict.word:
        case "mismatch":
            raise InvalidBatchRequestError(
                f"request_id {request.request_id} was used before with another body; repeat a "
                "request as it was, or take a new request_id"
            )
        case "size":
            raise BatchSizeExceededError(request.size, refusal["max_value"], contact_admin=True)
        case "limit":
            raise RateLimitExceededError(
                refusal["limit_type"],
                refusal["scope"],
                refusal["current_value"],
                refusal["max_value"],
                max(1, refusal["retry_after"]),
                contact_admin=refusal["scope"] == "user",
            )
        case _:
            return


async def _check_items(
    batch_type: BatchType, transaction: SubmissionTransaction, caller: Caller, checked: Checked
) -> None:
    if checked.errors:
        raise refused(checked.errors)
    if batch_type.check is None:
        return
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            errors = await batch_type.check(transaction.conn, caller, checked.items)
    except TimeoutError:
        raise DatabaseUnavailableError(
            f"the check of {batch_type.name} took more than {CHECK_SECONDS:g} s; nothing was "
            "created, repeat the request"
        ) from None
    if errors:
        raise refused(errors)


def _origin(caller: Caller) -> dict[str, Any]:
    return {} if caller.token_id is None else {"token_id": caller.token_id}


def _request_id(request_id: Any) -> UUID:
    try:
        return check_uuid(request_id, "request_id")
    except InvalidInputError as error:
        raise InvalidBatchRequestError(str(error)) from None


def _reason(reason: Any) -> str:
    try:
        return redact_text(check_text(reason, "reason"))
    except InvalidInputError as error:
        raise InvalidBatchRequestError(str(error)) from None


def _word(kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInputError(f"no status {value!r}; use one of {', '.join(kind)}") from None

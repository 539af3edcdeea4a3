"""Governed batches and limits on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import groupby
from typing import Any, cast
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.connections import Row, Statement, run, run_on_foreign
from commandbus.database.sqlstate import translated
from commandbus.database.store import Transaction
from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    ChildTicket,
    Exemption,
    LimitState,
    LimitType,
    TicketStatus,
    UserLimits,
)
from commandbus.models import NewCommand
from commandbus.store.governing import Defaults, NewTicket, Request, TicketSearch, Verdict

Limits = tuple[LimitState, ...]


class PostgresGovernance(ABC):
    """Implements commandbus.store.governing.GovernanceStore."""

    _sql: dict[str, Statement]

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...

    @asynccontextmanager
    async def submission(self) -> AsyncIterator[PostgresSubmission]:
        async with self.transaction() as opened:
            yield PostgresSubmission(self._sql, opened.conn)

    async def _call_on(self, conn: Any, verb: str, params: Row, *, domain: str = "") -> list[Row]:
        if conn is None:
            return await self._call(verb, params, domain=domain)
        with translated(domain):
            return await run_on_foreign(conn, self._sql[verb], params)

    # -- tickets

    async def get_tickets(
        self, ticket_ids: Sequence[UUID], *, conn: Any = None
    ) -> list[BatchTicket]:
        rows = await self._call_on(conn, "get_tickets", (list(ticket_ids),))
        return [_ticket(row) for row in rows]

    async def list_tickets(self, search: TicketSearch, *, limit: int) -> list[BatchTicket]:
        domains = None if search.domains is None else sorted(search.domains)
        types = None if search.batch_types is None else sorted(search.batch_types)
        status = None if search.status is None else search.status.value
        is_pending = search.status in {TicketStatus.IN_PROGRESS, TicketStatus.PENDING_APPROVAL}
        created_at, ticket_id = search.before or (None, None)
        params: Row = (
            domains, domains, types, types, status, status, is_pending, created_at,
            created_at, ticket_id, limit,
        )  # fmt: skip
        if search.owner is None:
            rows = await self._call("list_tickets", params)
        else:
            rows = await self._call("list_own_tickets", (search.owner, *params))
        return [_ticket(row) for row in rows]

    async def list_children(
        self, ticket_id: UUID, *, after: int, limit: int, status: ChildStatus | None
    ) -> list[ChildTicket]:
        wanted = None if status is None else status.value
        rows = await self._call("list_children", (ticket_id, after, wanted, wanted, limit))
        return [_child(row) for row in rows]

    async def retry_ticket(
        self, ticket: BatchTicket, *, cap: int, actor: str, reason: str | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        params = (ticket.domain, ticket.ticket_id, cap, actor, reason)
        retried, exhausted = (await self._call("retry_ticket", params, domain=ticket.domain))[0]
        return tuple(retried or ()), tuple(exhausted or ())

    async def decide_ticket(
        self,
        ticket: BatchTicket,
        decision: str,
        *,
        user_id: str,
        reason: str | None,
        self_approval: bool,
        conn: Any = None,
    ) -> None:
        params = (ticket.domain, ticket.ticket_id, decision, user_id, reason, self_approval)
        await self._call_on(conn, "decide_ticket", params, domain=ticket.domain)

    async def decision_maker(
        self, domain: str, command_id: UUID, batch_type: str, *, conn: Any
    ) -> str | None:
        rows = await self._call_on(conn, "decision_maker", (domain, command_id, batch_type))
        found: str | None = rows[0][0]
        return found

    # -- limits

    async def count_request(self) -> tuple[int, int]:
        current_value, reset_seconds = (await self._call("count_request", ()))[0]
        return current_value, reset_seconds

    async def limit_states(self, user_id: str | None, defaults: Defaults) -> Limits:
        rows = await self._call("limit_states", (user_id, encoding.dump(dict(defaults))))
        return tuple(_state(*row) for row in rows)

    async def pending_users(self, defaults: Defaults) -> tuple[tuple[str, Limits], ...]:
        rows = await self._call("pending_users", (encoding.dump(dict(defaults)),))
        return tuple(
            (user_id, tuple(_state(*row[1:]) for row in states))
            for user_id, states in groupby(rows, key=lambda row: str(row[0]))
        )

    async def set_exemption(
        self, user_id: str, *, actor: str, reason: str, expires_at: datetime | None
    ) -> Exemption:
        rows = await self._call("set_exemption", (user_id, actor, reason, expires_at))
        return Exemption(user_id, actor, reason, expires_at, rows[0][0])

    async def clear_exemption(self, user_id: str, *, actor: str) -> bool:
        return bool((await self._call("clear_exemption", (user_id, actor)))[0][0])

    async def list_exemptions(self) -> list[Exemption]:
        return [Exemption(*row) for row in await self._call("list_exemptions", ())]

    async def set_user_limits(self, limits: UserLimits, *, actor: str) -> UserLimits:
        params = (
            limits.user_id, actor, limits.max_pending_batches, limits.max_pending_children,
            limits.cooldown_seconds,
        )  # fmt: skip
        rows = await self._call("set_user_limits", params)
        return UserLimits(*rows[0]) if rows else UserLimits(limits.user_id)

    async def list_user_limits(self) -> list[UserLimits]:
        return [UserLimits(*row) for row in await self._call("list_user_limits", ())]


class PostgresSubmission:
    """Implements commandbus.store.governing.SubmissionTransaction."""

    def __init__(self, statements: Mapping[str, Statement], conn: Any) -> None:
        self._sql = statements
        self.conn = conn

    async def begin(self, request: Request) -> Verdict:
        params = (
            request.user_id, request.batch_type, request.size, request.request_id, request.digest,
            encoding.dump(dict(request.defaults)),
        )  # fmt: skip
        rows = await run(self.conn, self._sql["begin_submission"], params)
        word, ticket_id, refusal, limits = rows[0]
        return Verdict(word, ticket_id, refusal or {}, _states(limits))

    async def find(self, ticket_id: UUID) -> BatchTicket | None:
        rows = await run(self.conn, self._sql["get_tickets"], ([ticket_id],))
        return _ticket(rows[0]) if rows else None

    async def create(
        self, request: Request, ticket: NewTicket, commands: Sequence[NewCommand]
    ) -> tuple[BatchTicket, Limits]:
        params = (
            ticket.domain, ticket.ticket_id, encoding.sends(commands), request.batch_type,
            request.user_id, ticket.reason, request.request_id, request.digest,
            ticket.requires_approval, encoding.dump(dict(ticket.details)),
            encoding.dump(dict(request.defaults)),
        )  # fmt: skip
        with translated(ticket.domain):
            rows = await run(self.conn, self._sql["create_ticket"], params)
        created_at, limits = rows[0]
        created = BatchTicket(
            ticket_id=ticket.ticket_id,
            domain=ticket.domain,
            batch_type=request.batch_type,
            child_count=request.size,
            success_count=0,
            failed_count=0,
            pending_count=request.size,
            canceled_count=0,
            status=TicketStatus.PENDING_APPROVAL
            if ticket.requires_approval
            else TicketStatus.IN_PROGRESS,
            reason=ticket.reason,
            created_by=request.user_id,
            created_at=created_at,
            updated_at=created_at,
            requires_approval=ticket.requires_approval,
            request_id=request.request_id,
        )
        return created, _states(limits)


def _ticket(row: Row) -> BatchTicket:
    values = cast("Any", (*row[:8], TicketStatus(row[8]), *row[9:]))
    return BatchTicket(*values)


def _child(row: Row) -> ChildTicket:
    values = cast("Any", (*row[:3], ChildStatus(row[3]), *row[4:]))
    return ChildTicket(*values)


def _state(
    limit_type: str,
    scope: str,
    current_value: int,
    max_value: int | None,
    reset_seconds: int | None,
) -> LimitState:
    return LimitState(LimitType(limit_type), scope, current_value, max_value, reset_seconds)


def _states(limits: Iterable[Mapping[str, Any]]) -> Limits:
    return tuple(_state(**state) for state in limits)

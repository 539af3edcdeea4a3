"""The store on PostgreSQL: one method, one call of a SQL function. See also reads.py, sends.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import ceil
from typing import Any, LiteralString, TypeGuard, Unpack
from uuid import UUID

import psycopg

from commandbus.database import encoding
from commandbus.database.chunks import OFFER, OFFER_ONE, ChunkSender
from commandbus.database.connections import (
    AsyncPool,
    ConnectionSource,
    Row,
    borrowed,
    run,
)
from commandbus.database.extender import RECORD_PROGRESS, PostgresExtender
from commandbus.database.flows import PostgresFlow
from commandbus.database.gateway import Gateway
from commandbus.database.leasing import PostgresLeasing
from commandbus.database.model import Lease, NewBatch, Outcome, QueuedReply, Said
from commandbus.database.own_transactions import SETTLE_OWN, PostgresTransactions
from commandbus.database.pgmq.notify import PROBE_SECONDS, PostgresListener
from commandbus.database.rows import raise_if_known
from commandbus.database.sends import PostgresSends
from commandbus.database.sessions import Timeouts
from commandbus.database.sqlstate import translated
from commandbus.database.store import RetryOptions, Store, WorkerFigures
from commandbus.models import NewCommand
from commandbus.names import schema_mark
from commandbus.settings import Settings

_CONFIRM_START: LiteralString = "select {schema}.confirm_start(%s, %s, %s)"
_EXTEND: LiteralString = "select * from {schema}.extend_leases(%s, cast(%s as jsonb), %s)"
_CANCEL_REQUESTS: LiteralString = "select c from {schema}.cancel_requests(%s, cast(%s as jsonb)) c"
_OPERATOR_RETRY: LiteralString = (
    "select {schema}.operator_retry(%s, %s, %s, %s, true, cast(%s as jsonb))"
)
_OPERATOR_CANCEL: LiteralString = "select {schema}.operator_cancel(%s, %s, %s, %s)"
_OPERATOR_COMPLETE: LiteralString = (
    "select {schema}.operator_complete(%s, %s, cast(%s as jsonb), %s)"
)
_CANCEL: LiteralString = (
    "select {schema}.cancel_commands(%s, cast(%s as uuid[]), cast(%s as text), cast(%s as text))"
)
_REQUEST_CANCEL: LiteralString = (
    "select c from {schema}.request_cancel("
    "%s, cast(%s as uuid[]), cast(%s as text), cast(%s as text)) c"
)
_ADD_NOTE: LiteralString = "select {schema}.add_note(%s, %s, %s, %s)"
_CREATE_BATCH: LiteralString = (
    "select {schema}.create_batch(cast(%s as text), cast(%s as uuid), cast(%s as jsonb),"
    " cast(%s as text), cast(%s as jsonb), cast(%s as text), cast(%s as jsonb),"
    " cast(%s as boolean), cast(%s as text))"
)
# As a number: in the encoding SQL_ASCII texts arrive as bytes.
_TRANSACTION: LiteralString = "select cast(cast(pg_current_xact_id() as text) as bigint)"
_CANCEL_BATCH: LiteralString = "select {schema}.cancel_batch(%s, %s, %s, %s)"
_REQUEST_BATCH_CANCEL: LiteralString = "select {schema}.request_batch_cancel(%s, %s, %s, %s)"
_RETRY_BATCH: LiteralString = "select {schema}.retry_batch(%s, %s, %s, 10000000)"
_READ_REPLIES: LiteralString = "select msg_id, body from {schema}.read_replies(%s, %s, %s)"
_DELETE_REPLIES: LiteralString = "select {schema}.delete_replies(%s, cast(%s as bigint[]))"
_ARCHIVE_REPLIES: LiteralString = "select {schema}.archive_replies(%s, cast(%s as bigint[]))"
_TAKE_INBOX_REPLY: LiteralString = "select {schema}.take_inbox_reply(%s, %s)"
#: How long the leases of one domain may take to be extended, in seconds.
EXTEND_TIMEOUT_SECONDS = 5.0
#: A statement with more commands than this may take long.
LONG_COMMANDS = 2_000
_HEARTBEAT: LiteralString = (
    "select {schema}.worker_heartbeat(%s, %s, %s, %s, %s, %s, cast(%s as jsonb))"
)
_HEARTBEATS: LiteralString = (
    "select {schema}.worker_heartbeat("
    " b.worker, b.domain, b.is_idle, b.concurrency, b.in_flight, b.stuck, b.more)"
    " from jsonb_to_recordset(cast(%s as jsonb)) b(worker text, domain text, is_idle boolean,"
    " concurrency int, in_flight int, stuck int, more jsonb) order by b.worker"
)
_WHAT_IS_LEFT: LiteralString = "select {schema}.what_is_left(%s, %s)"
_WORKER_GONE: LiteralString = "select {schema}.worker_gone(%s)"
DECLARE_SECRETS: LiteralString = "select {schema}.declare_secrets(%s, cast(%s as jsonb))"


def worker_timeouts(settings: Settings) -> Timeouts:
    """How long the server lets statements of workers go on."""
    longest = settings.statement_timeout_seconds
    return Timeouts(statement=min(longest, settings.server_seconds), long=longest)


def _is_alone(commands: Iterable[NewCommand]) -> TypeGuard[list[NewCommand]]:
    """Whether offer_one can send it."""
    return isinstance(commands, list) and len(commands) == 1 and commands[0].flow is None


class PostgresStore(PostgresLeasing, PostgresSends, PostgresFlow):
    """Implements commandbus.database.store.Store."""

    has_gateway = True

    def __init__(self, pool: AsyncPool, settings: Settings | None = None) -> None:
        self.gateway = Gateway(pool, settings or Settings())
        self._pool = pool

    # -- sending

    async def ensure_domain(self, domain: str) -> None:
        await self.gateway.ensure_domain(domain)

    async def send(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: UUID | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        gateway = self.gateway
        await gateway.ensure_domain(domain)
        if isinstance(commands, Collection):
            await self._ensure_flow(domain, commands)
        if conn is not None:
            # One call whatever the size: were it cut, a caller who catches the duplicate of a
            # later chunk would commit the earlier ones.
            params: Row = (domain, encoding.sends(commands), batch_id, actor)
            raise_if_known(domain, await gateway.value(OFFER, params, domain=domain, conn=conn))
            return
        with translated(domain):
            async with borrowed(self._pool) as own:
                if _is_alone(commands) and actor is None:
                    params = (domain, *encoding.alone(commands[0]), batch_id)
                    rows = await run(own, gateway.statement(OFFER_ONE), params)
                    raise_if_known(domain, rows[0][0])
                else:
                    await ChunkSender(gateway, domain, batch_id, actor).send(own, commands)

    # -- leases; leasing.py has how they begin and end

    async def confirm_start(self, lease: Lease) -> bool:
        params = (lease.domain, lease.command_id, lease.lease_epoch)
        return bool(await self.gateway.value(_CONFIRM_START, params))

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        params = (domain, encoding.leases(leases), ceil(seconds))
        return {row[0] for row in await self.gateway.rows(_EXTEND, params)}

    async def cancel_requests(self, domain: str, leases: Sequence[Lease]) -> set[UUID]:
        params = (domain, encoding.leases(leases))
        return {row[0] for row in await self.gateway.rows(_CANCEL_REQUESTS, params)}

    async def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        await self.gateway.rows(RECORD_PROGRESS, (domain, encoding.progress(said)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        with translated():
            async with borrowed(self._pool) as conn, conn.transaction():
                yield PostgresTransaction(self.gateway, conn)

    def own_transactions(self) -> PostgresTransactions:
        return PostgresTransactions(self.gateway)

    # -- operators

    async def operator_retry(
        self, domain: str, ids: Sequence[UUID], **options: Unpack[RetryOptions]
    ) -> None:
        edits = options.get("edits")
        document = encoding.edits(edits) if edits else None
        params = (domain, list(ids), options["actor"], options["reset_attempts"], document)
        await self.gateway.rows(_OPERATOR_RETRY, params, domain=domain)

    async def operator_cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None
    ) -> None:
        params = (domain, list(ids), reason, actor)
        await self.gateway.rows(_OPERATOR_CANCEL, params, domain=domain)

    async def operator_complete(
        self, domain: str, ids: Sequence[UUID], *, result: bytes, actor: str | None
    ) -> None:
        params = (domain, list(ids), result.decode(), actor)
        await self.gateway.rows(_OPERATOR_COMPLETE, params, domain=domain)

    async def cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None, conn: Any = None
    ) -> None:
        params = (domain, list(ids), reason, actor)
        await self.gateway.rows(_CANCEL, params, domain=domain, conn=conn)

    async def request_cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None, conn: Any = None
    ) -> set[UUID]:
        params = (domain, list(ids), reason, actor)
        rows = await self.gateway.rows(_REQUEST_CANCEL, params, domain=domain, conn=conn)
        return {row[0] for row in rows}

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        await self.gateway.rows(_ADD_NOTE, (domain, command_id, text, actor), domain=domain)

    # -- batches

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> str | None:
        domain = batch.domain
        await self.gateway.ensure_domain(domain)
        await self._ensure_flow(domain, commands)
        document = encoding.sends(commands)
        params = (domain, batch.batch_id, document, *encoding.batch(batch), batch.actor)
        is_long = len(commands) > LONG_COMMANDS
        gateway = self.gateway.patient if is_long else self.gateway
        known = await gateway.value(_CREATE_BATCH, params, domain=domain, conn=conn)
        raise_if_known(domain, known)
        if conn is None or not batch.notifies:
            return None
        return str(await self.gateway.value(_TRANSACTION, conn=conn))

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        params = (domain, batch_id, reason, actor)
        return int(await self.gateway.patient.value(_CANCEL_BATCH, params, domain=domain))

    async def request_batch_cancel(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        params = (domain, batch_id, reason, actor)
        return int(await self.gateway.patient.value(_REQUEST_BATCH_CANCEL, params, domain=domain))

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        params = (domain, batch_id, actor)
        return int(await self.gateway.patient.value(_RETRY_BATCH, params, domain=domain))

    # -- replies

    async def read_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[QueuedReply]:
        rows = await self.gateway.rows(_READ_REPLIES, (queue, vt_seconds, quantity))
        return [QueuedReply(queue, msg_id, body) for msg_id, body in rows]

    async def delete_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        await self.gateway.rows(_DELETE_REPLIES, (queue, sorted(msg_ids)))

    async def archive_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        await self.gateway.rows(_ARCHIVE_REPLIES, (queue, sorted(msg_ids)))

    async def take_inbox_reply(self, domain: str, command_id: UUID) -> str | None:
        reply: str | None = await self.gateway.value(_TAKE_INBOX_REPLY, (domain, command_id))
        return reply

    # -- workers

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[Store]:
        settings = self.gateway.settings
        with translated():
            pool = await ConnectionSource.of(self._pool).open_pool(
                purpose,
                size,
                timeout_seconds=settings.connect_timeout_seconds,
                # How long the statements of a handler take is for the application to decide.
                timeouts=Timeouts() if purpose == "handlers" else worker_timeouts(settings),
                is_shared=purpose == "handlers",
            )
        try:
            store = PostgresStore(pool, settings)
            store.gateway.belonging = self.gateway.belonging
            yield store
        finally:
            await pool.close()

    async def open_extender(self) -> PostgresExtender:
        conninfo, kwargs = await ConnectionSource.of(self._pool).resolve()
        # One connection extends the leases of all domains: where one hangs, the others must not
        # wait until their leases are over.
        timeouts = worker_timeouts(self.gateway.settings)
        timeout = min(timeouts.statement or EXTEND_TIMEOUT_SECONDS, EXTEND_TIMEOUT_SECONDS)
        return PostgresExtender(conninfo, kwargs, self.gateway.statement, timeout)

    def listener(self) -> PostgresListener:
        settings = self.gateway.settings
        source = ConnectionSource.of(self._pool)
        return PostgresListener(
            partial(source.connect, is_patient=False),
            mark=schema_mark(settings.schema),
            probe_seconds=min(PROBE_SECONDS, settings.deadline_seconds / 2),
        )

    async def heartbeat(self, worker: str, domain: str, **figures: Unpack[WorkerFigures]) -> None:
        params = (
            worker, domain, figures["is_idle"], figures["concurrency"], figures["in_flight"],
            figures.get("stuck", 0), encoding.dump(dict(figures.get("more", {}))),
        )  # fmt: skip
        await self.gateway.rows(_HEARTBEAT, params)

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> None:
        await self.gateway.rows(_HEARTBEATS, (encoding.dump(beats),))

    async def what_is_left(self, domain: str, *, include_delayed: bool) -> str | None:
        params = (domain, include_delayed)
        left: str | None = await self.gateway.value(_WHAT_IS_LEFT, params, domain=domain)
        return left

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        await self.gateway.rows(DECLARE_SECRETS, (domain, encoding.secrets(keys)))

    async def worker_gone(self, worker: str) -> None:
        await self.gateway.rows(_WORKER_GONE, (worker,))

    async def check(self) -> None:
        await self.gateway.check()


class PostgresTransaction:
    """Implements commandbus.database.store.Transaction."""

    def __init__(self, gateway: Gateway, conn: psycopg.AsyncConnection[Any]) -> None:
        self._gateway = gateway
        self.conn = self.driver = conn

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        params = (domain, encoding.outcomes(outcomes))
        rows = await run(self.conn, self._gateway.statement(SETTLE_OWN), params)
        return {row[0] for row in rows}

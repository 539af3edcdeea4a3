"""The store on PostgreSQL: one method, one call of a SQL function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from commandbus.database import encoding
from commandbus.database.bulk_sender import BulkSender
from commandbus.database.gateway import (
    AsyncPool,
    ConnectionSource,
    Row,
    Statement,
    run,
    run_on_foreign,
)
from commandbus.database.migrations import check_schema
from commandbus.database.pgmq.notify import PostgresListener
from commandbus.database.sqlstate import translated
from commandbus.database.store import CommandFilter, Store
from commandbus.models import (
    AuditEvent,
    CommandMetadata,
    CommandStatus,
    Lease,
    NewCommand,
    Outcome,
    OutcomeKind,
    QueuedReply,
    TroubleshootingItem,
)
from commandbus.settings import Settings
from commandbus.store.postgres_batches import (
    PostgresBatches,
    metadata_of,
    parked_item_of,
    raise_if_known,
)
from commandbus.store.postgres_bulk import PostgresBulk
from commandbus.store.postgres_dispatch import PostgresDispatch
from commandbus.store.postgres_doctor import PostgresDoctor
from commandbus.store.postgres_governance import PostgresGovernance
from commandbus.store.postgres_loading import PostgresLoading
from commandbus.store.postgres_search import PostgresSearch
from commandbus.store.postgres_serving import PostgresServing
from commandbus.store.postgres_tokens import PostgresTokens
from commandbus.store.searching import Edit
from commandbus.store.serving_statements import SERVING_STATEMENTS
from commandbus.store.statements import STATEMENTS


class PostgresStore(
    PostgresBatches,
    PostgresLoading,
    PostgresDispatch,
    PostgresSearch,
    PostgresBulk,
    PostgresDoctor,
    PostgresGovernance,
    PostgresTokens,
    PostgresServing,
):
    """Implements commandbus.database.store.Store."""

    def __init__(self, pool: AsyncPool, settings: Settings | None = None) -> None:
        self._pool = pool
        self._settings = settings or Settings()
        self._sql = {
            name: Statement(text, self._settings.schema)
            for name, text in (STATEMENTS | SERVING_STATEMENTS).items()
        }
        self._known_domains: set[str] = set()

    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]:
        with translated(domain):
            async with self._pool.connection() as conn:
                return await run(conn, self._sql[verb], params)

    # -- sending

    async def ensure_domain(self, domain: str) -> None:
        # In a transaction of its own and once per process: the DDL of a first use must never
        # sit, with its locks, in a caller's open transaction.
        if not self._known_domains:
            await self.check()
        if domain not in self._known_domains:
            await self._call("ensure_domain", (domain,), domain=domain)
            self._known_domains.add(domain)

    async def send(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: UUID | None = None,
        conn: Any = None,
    ) -> None:
        await self.ensure_domain(domain)
        with translated(domain):
            if conn is not None:
                # One call whatever the size: were it cut, a caller who catches the duplicate of a
                # later chunk would commit the earlier ones.
                params = (domain, encoding.sends(commands), batch_id)
                raise_if_known(domain, await run_on_foreign(conn, self._sql["offer"], params))
                return
            async with self._pool.connection() as own:
                sender = BulkSender(
                    self._sql, domain, size=self._settings.send_chunk_size, batch_id=batch_id,
                    packs=self._settings.command_id_scope == "domain",
                )  # fmt: skip
                await sender.send(own, commands)

    # -- receiving and the ways a lease ends

    async def receive(
        self,
        domain: str,
        *,
        vt_seconds: int,
        quantity: int,
        worker: str,
        limits: Mapping[str, int],
        mark_in_progress: bool = True,
        from_head: bool = False,
    ) -> list[Lease]:
        encoded = encoding.dump(dict(limits))
        rows = await self._call(
            "receive",
            (domain, vt_seconds, quantity, worker, encoded, mark_in_progress, from_head),
            domain=domain,
        )
        leases = [Lease(domain, *row) for row in rows]
        leases.sort(key=lambda lease: lease.msg_id)
        return leases

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        with translated(domain):
            async with self._pool.connection() as conn:
                return await self._settle_on(conn, domain, outcomes)

    async def _settle_on(
        self, conn: psycopg.AsyncConnection[Any], domain: str, outcomes: Sequence[Outcome]
    ) -> set[UUID]:
        if all(o.kind is OutcomeKind.COMPLETE and not o.sends for o in outcomes):
            params: Row = (domain, encoding.completions(outcomes))
            rows = await run(conn, self._sql["complete"], params)
        else:
            rows = await run(conn, self._sql["settle"], (domain, encoding.outcomes(outcomes)))
        return {row[0] for row in rows}

    async def confirm_start(self, lease: Lease) -> bool:
        rows = await self._call(
            "confirm_start", (lease.domain, lease.command_id, lease.lease_epoch)
        )
        return bool(rows[0][0])

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        rows = await self._call("extend", (domain, encoding.leases(leases), ceil(seconds)))
        return {row[0] for row in rows}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                yield PostgresTransaction(self, conn)

    # -- operators

    async def operator_retry(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        actor: str | None,
        reset_attempts: bool,
        edits: Mapping[UUID, Edit] | None = None,
    ) -> None:
        document = encoding.edits(edits or {})
        params = (domain, list(command_ids), actor, reset_attempts, document)
        await self._call("operator_retry", params, domain=domain)

    async def operator_cancel(
        self, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
    ) -> None:
        params = (domain, list(command_ids), reason, actor)
        await self._call("operator_cancel", params, domain=domain)

    async def operator_complete(
        self, domain: str, command_ids: Sequence[UUID], *, result: bytes, actor: str | None
    ) -> None:
        params = (domain, list(command_ids), result.decode(), actor)
        await self._call("operator_complete", params, domain=domain)

    async def cancel(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        reason: str,
        actor: str | None,
        conn: Any = None,
    ) -> None:
        params = (domain, list(command_ids), reason, actor)
        if conn is None:
            await self._call("cancel", params, domain=domain)
            return
        with translated(domain):
            await run_on_foreign(conn, self._sql["cancel"], params)

    # -- reading

    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        rows = await self._call("get_command", (domain, command_id))
        return metadata_of(rows[0]) if rows else None

    async def find_domains(self, command_id: UUID) -> list[str]:
        return [row[0] for row in await self._call("find_domains", (command_id,))]

    async def query_commands(
        self, criteria: CommandFilter, *, limit: int, offset: int
    ) -> list[CommandMetadata]:
        status = None if criteria.status is None else criteria.status.value
        rows = await self._call(
            "query",
            (
                criteria.domain, criteria.command_type, status, criteria.batch_id,
                criteria.correlation_id, criteria.created_after, criteria.created_before,
                limit, offset,
            ),
        )  # fmt: skip
        return [metadata_of(row) for row in rows]

    async def list_troubleshooting(
        self,
        domain: str,
        *,
        command_type: str | None,
        limit: int,
        offset: int,
        group: str | None = None,
    ) -> list[TroubleshootingItem]:
        params = (domain, command_type, limit, offset, group)
        rows = await self._call("list_troubleshooting", params, domain=domain)
        return [parked_item_of(row) for row in rows]

    async def get_payload(self, domain: str, command_id: UUID) -> str | None:
        payload: str | None = (await self._call("get_payload", (domain, command_id)))[0][0]
        return payload

    async def get_audit_trail(
        self, command_id: UUID, *, domain: str | None, limit: int
    ) -> list[AuditEvent]:
        rows = await self._call("audit", (command_id, domain, domain, limit))
        return [AuditEvent(*row) for row in rows]

    async def count_by_status(self, domain: str | None) -> dict[tuple[str, CommandStatus], int]:
        rows = await self._call("count_by_status", (domain, domain))
        return {(row[0], CommandStatus(row[1])): row[2] for row in rows}

    # -- replies

    async def read_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[QueuedReply]:
        rows = await self._call("read_replies", (queue, vt_seconds, quantity))
        return [QueuedReply(queue, msg_id, body) for msg_id, body in rows]

    async def delete_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        await self._call("delete_replies", (queue, sorted(msg_ids)))

    async def take_inbox_reply(self, domain: str, command_id: UUID) -> str | None:
        reply: str | None = (await self._call("take_inbox_reply", (domain, command_id)))[0][0]
        return reply

    # -- workers

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[Store]:
        with translated():
            pool = await ConnectionSource.of(self._pool).open_pool(
                purpose,
                size,
                timeout_seconds=self._settings.connect_timeout_seconds,
                # A handler's own statements are its own business.
                statement_timeout_seconds=None
                if purpose == "handlers"
                else self._settings.statement_timeout_seconds,
            )
        try:
            yield PostgresStore(pool, self._settings)
        finally:
            await pool.close()

    async def open_extender(self) -> PostgresExtender:
        conninfo, kwargs = await ConnectionSource.of(self._pool).resolve()
        return PostgresExtender(conninfo, kwargs, self._sql["extend"])

    def listener(self) -> PostgresListener:
        return PostgresListener(ConnectionSource.of(self._pool).connect)

    async def heartbeat(
        self, worker: str, domain: str, *, is_idle: bool, concurrency: int, in_flight: int
    ) -> None:
        await self._call("heartbeat", (worker, domain, is_idle, concurrency, in_flight))

    async def worker_gone(self, worker: str) -> None:
        await self._call("worker_gone", (worker,))

    async def check(self) -> None:
        with translated():
            async with self._pool.connection() as conn:
                await check_schema(conn, self._settings)


class PostgresTransaction:
    """Implements commandbus.database.store.Transaction."""

    def __init__(self, store: PostgresStore, conn: psycopg.AsyncConnection[Any]) -> None:
        self._store = store
        self.conn = conn

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        params = (domain, encoding.outcomes(outcomes))
        rows = await run(self.conn, self._store._sql["settle_own"], params)
        return {row[0] for row in rows}


class PostgresExtender:
    """The LeaseExtender: a blocking connection, reopened when lost."""

    def __init__(self, conninfo: str, kwargs: dict[str, Any], statement: Statement) -> None:
        self._conninfo = conninfo
        self._kwargs = kwargs
        self._statement = statement
        self._conn: psycopg.Connection[Any] | None = None

    def extend(self, domain: str, leases: Sequence[Lease], seconds: int) -> set[UUID]:
        if self._conn is None or self._conn.broken:
            self.close()
            self._conn = psycopg.Connection.connect(self._conninfo, **self._kwargs)
        with self._conn.cursor(row_factory=tuple_row) as cursor:
            params = (domain, encoding.leases(leases), seconds)
            cursor.execute(self._statement.psycopg, params)
            return {row[0] for row in cursor.fetchall()}

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def new_store(pool: AsyncPool, settings: Settings | None = None) -> Store:
    """Build the store; typed as the protocol, so that mypy proves the two agree."""
    return PostgresStore(pool, settings)

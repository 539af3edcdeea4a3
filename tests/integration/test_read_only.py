"""A server that only reads by now, and keeps its connections open, costs nobody an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    HandlerContext,
    RetryPolicy,
)
from commandbus.database.own_connections import OurBlockingConnection
from commandbus.transactions import Asyncpg, SqlAlchemy
from tests.integration.looking import Conn, rows, send
from tests.integration.test_providers import async_engine_of, url_of
from tests.waiting import until_status, working

ONCE = RetryPolicy(max_attempts=1)
#: From here on this transaction is one on a server that only reads.
READ_ONLY = "set transaction read only"
WRITE = "insert into written select pg_backend_pid()"
ENDS = (CommandStatus.COMPLETED, CommandStatus.IN_TROUBLESHOOTING_QUEUE)


@pytest.fixture(autouse=True)
async def table(conn: Conn) -> None:
    await conn.execute("create table written (pid int)")


@asynccontextmanager
async def provider_of(kind: str, dsn: str) -> AsyncIterator[Any]:
    if kind == "own":
        yield True
    elif kind == "pool":
        plain = url_of(dsn, "asyncpg").set(drivername="postgresql")
        pool = await asyncpg.create_pool(
            plain.render_as_string(hide_password=False), min_size=1, max_size=1
        )
        yield Asyncpg(pool)
        await pool.close()
    else:
        engine = async_engine_of(dsn, kind)
        yield SqlAlchemy(async_sessionmaker(engine))
        await engine.dispose()


@pytest.mark.parametrize("at", ["a write of the handler", "the completion"])
@pytest.mark.parametrize("kind", ["thread", "own", "psycopg", "asyncpg", "pool"])
async def test_a_server_that_only_reads_costs_a_transactional_handler_no_attempt(
    bus: CommandBus, conn: Conn, dsn: str, kind: str, at: str
) -> None:
    backends: list[int] = []

    def first(pid: int) -> list[str]:
        backends.append(pid)
        if len(backends) > 1:
            return [WRITE]
        return [WRITE, READ_ONLY, WRITE] if at == "a write of the handler" else [WRITE, READ_ONLY]

    async with provider_of("own" if kind == "thread" else kind, dsn) as provider:
        if kind == "thread":

            @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
            def work_blocking(command: Command, ctx: HandlerContext) -> None:
                for each in first(ctx.conn.info.backend_pid):
                    ctx.conn.execute(each)
        else:

            @bus.handler("shop", "Work", transactional=provider, retry_policy=ONCE)
            async def work(command: Command, ctx: HandlerContext) -> None:
                asks = "select pg_backend_pid()"
                if kind == "pool":
                    pid = await ctx.conn.fetchval(asks)
                elif kind == "own":
                    pid = ctx.conn.info.backend_pid
                else:
                    pid = (await ctx.conn.execute(text(asks))).scalar()
                for each in first(pid):
                    ready = text(each) if kind in {"psycopg", "asyncpg"} else each
                    await ctx.conn.execute(ready)

        sent = await send(bus)
        async with working(bus, "shop", concurrency=1):
            row = await until_status(bus, "shop", sent, *ENDS)
    assert row.status is CommandStatus.COMPLETED
    assert row.attempts == 1
    # The connection was closed, so that the next one may be to another server.
    assert len(set(backends)) == 2
    assert await rows(conn, "select pid from written") == [(backends[1],)]


async def test_the_error_names_the_server_that_only_reads(bus: CommandBus, dsn: str) -> None:
    await bus.send("shop", "Debit", uuid4(), {})
    async with bus._store.gateway.pool.connection() as conn:
        await conn.execute("set default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailableError, match="25006") as caught:
        await asyncio.gather(*(bus.send("shop", "Debit", uuid4(), {}) for _ in range(50)))
    parts = conninfo_to_dict(dsn)
    assert f"{parts['host']}:{parts['port']}" in str(caught.value)


async def test_the_lease_thread_leaves_a_server_that_only_reads(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.send("shop", "Debit", uuid4(), {})
    opened: list[Any] = []
    connect = OurBlockingConnection.connect.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(connect(cls, *args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(OurBlockingConnection, "connect", classmethod(counted))
    extender: Any = await bus._store.open_extender()
    extender.extend("shop", [], 10)
    opened[0].execute("set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        extender._run(bus._store.gateway.statement("create table {schema}.never ()"), ())
    assert opened[0].closed
    extender.extend("shop", [], 10)
    assert len(opened) == 2
    for each in opened:
        each.close()

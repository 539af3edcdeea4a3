"""`def` handlers in transactions of their threads: what they write and their completion are one."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    InvalidOperationError,
    LeaseLostError,
    PermanentCommandError,
    RetryPolicy,
    Settings,
    TransientCommandError,
)
from tests.integration.looking import (
    Conn,
    complete_as_other,
    events,
    look,
    rows,
    seize,
    send,
    send_some,
    until_count,
    value,
)
from tests.waiting import until, until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
COMPLETED = CommandStatus.COMPLETED
SOON = RetryPolicy(max_attempts=3, backoff_schedule=(0,))
ONCE = RetryPolicy(max_attempts=1)
WRITE = "insert into written (command_id, epoch) values (%s, %s)"


@pytest.fixture(autouse=True)
async def table(conn: Conn) -> None:
    await conn.execute("create table written (command_id uuid, epoch bigint)")


def write(command: Command, ctx: HandlerContext) -> None:
    ctx.conn.execute(WRITE, (command.command_id, ctx.lease_epoch))


async def written(conn: Conn) -> list[tuple[Any, ...]]:
    return await rows(conn, "select command_id, epoch from written")


async def test_rows_sends_and_completion_of_a_def_handler_are_one_commit(
    bus: CommandBus, conn: Conn
) -> None:
    gate, has_written = threading.Event(), threading.Event()

    @bus.handler("shop", "Work", transactional=True)
    def work(command: Command, ctx: HandlerContext) -> str:
        assert isinstance(ctx.conn, psycopg.Connection)
        assert not ctx.conn.autocommit
        write(command, ctx)
        ctx.send("shop", "Next", uuid4(), {})
        has_written.set()
        assert gate.wait(30)
        return "done"

    sent = await send(bus)
    async with working(bus, "shop"):
        await until(has_written.is_set)
        assert await written(conn) == []
        assert (await bus.search.commands(command_type="Next")).items == []
        gate.set()
        await until_status(bus, "shop", sent, COMPLETED)
    assert await written(conn) == [(sent, 1)]
    writers = await rows(
        conn,
        "select xmin::text from written"
        " union select xmin::text from commandbus.command_bus_audit where event_type = 'COMPLETED'"
        " union select xmin::text from pgmq.q_shop__replies",
    )
    assert len(writers) == 1
    assert len((await bus.search.commands(command_type="Next")).items) == 1


async def test_each_handler_thread_has_one_connection_and_closes_it_at_its_end(
    bus: CommandBus, conn: Conn
) -> None:
    backends: set[int] = set()

    @bus.handler("shop", "Work", transactional=True)
    def work(command: Command, ctx: HandlerContext) -> None:
        backends.add(ctx.conn.info.backend_pid)
        write(command, ctx)

    async with working(bus, "shop", concurrency=2):
        await send_some(bus, 30)
        await until_count(conn, COMPLETED, 30)
        assert len(backends) <= 2

    async def are_closed() -> bool:
        query = "select count(*) from pg_stat_activity where pid = any(%s)"
        return await value(conn, query, list(backends)) == 0

    await until(are_closed)
    assert len(await written(conn)) == 30


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TransientCommandError("NOT_YET", "again"), "NOT_YET"),
        (PermanentCommandError("NEVER", "no"), "NEVER"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("is_returned", [False, True])
async def test_a_def_handler_that_fails_leaves_nothing_of_what_it_wrote(
    bus: CommandBus, conn: Conn, error: Exception, code: str, is_returned: bool
) -> None:
    @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
    def work(command: Command, ctx: HandlerContext) -> object:
        write(command, ctx)
        if is_returned and not isinstance(error, ZeroDivisionError):
            return error
        raise error

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.last_error_code == code
    assert await written(conn) == []


async def test_a_result_that_is_no_json_and_a_coroutine_park_without_a_trace(
    bus: CommandBus, conn: Conn
) -> None:
    async def later() -> None: ...

    def work(command: Command, ctx: HandlerContext) -> object:
        write(command, ctx)
        return object() if command.command_type == "Object" else later()

    for name in ("Object", "Coroutine"):
        bus.register_handler("shop", name, work, transactional=True)
    first, second = await send(bus, "Object"), await send(bus, "Coroutine")
    async with working(bus, "shop"):
        assert (await until_status(bus, "shop", first, PARKED)).last_error_code == "INVALID_RESULT"
        row = await until_status(bus, "shop", second, PARKED)
    assert row.last_error_code == "HANDLER_NOT_ASYNC"
    assert await written(conn) == []


async def test_a_send_of_a_known_id_undoes_the_rows_and_parks(bus: CommandBus, conn: Conn) -> None:
    @bus.handler("shop", "Work", transactional=True)
    def work(command: Command, ctx: HandlerContext) -> None:
        write(command, ctx)
        ctx.send("shop", "Work", command.command_id, {})

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.last_error_code == "DUPLICATE_COMMAND"
    assert await written(conn) == []


async def test_a_lost_lease_undoes_the_rows_of_a_def_handler_and_is_recorded(
    bus: CommandBus, conn: Conn
) -> None:
    gate, has_written = threading.Event(), threading.Event()

    @bus.handler("shop", "Work", transactional=True)
    def work(command: Command, ctx: HandlerContext) -> None:
        write(command, ctx)
        has_written.set()
        assert gate.wait(30)

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1):
        await until(has_written.is_set)
        await complete_as_other(conn, await seize(conn))
        gate.set()

        async def is_refused() -> bool:
            return "STALE_RESULT_REJECTED" in await events(bus, sent)

        await until(is_refused)
    assert await written(conn) == []


async def test_a_lease_that_is_lost_ends_the_statement_that_runs(dsn: str, conn: Conn) -> None:
    ended: list[BaseException] = []

    async with CommandBus.connect(dsn, settings=Settings()) as bus:

        @bus.handler("shop", "Work", transactional=True)
        def work(command: Command, ctx: HandlerContext) -> None:
            write(command, ctx)
            if ctx.lease_epoch > 1:
                return
            try:
                ctx.conn.execute("select pg_sleep(60)")
            except BaseException as error:
                ended.append(error)
                raise

        sent = await send(bus)
        async with working(bus, "shop", concurrency=2, vt_seconds=1):

            async def sleeps() -> bool:
                query = "select count(*) from pg_stat_activity where query like '%%pg_sleep(60)'"
                return bool(await value(conn, query))

            await until(sleeps)
            taken = await seize(conn)
            await complete_as_other(conn, taken)
            await until(lambda: bool(ended))
        assert isinstance(ended[0], psycopg.errors.QueryCanceled)
        assert (await look(bus, sent)).status is COMPLETED
    assert await written(conn) == []


@pytest.mark.parametrize("why", ["time-out", "cancel"])
async def test_a_time_out_and_a_cancel_end_the_statement_that_runs(
    bus: CommandBus, conn: Conn, why: str
) -> None:
    is_begun = threading.Event()
    timeout = 0.3 if why == "time-out" else 60.0

    @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE, timeout_seconds=timeout)
    def work(command: Command, ctx: HandlerContext) -> None:
        write(command, ctx)
        is_begun.set()
        ctx.conn.execute("select pg_sleep(60)")

    sent = await send(bus)
    async with working(bus, "shop"):
        await until(is_begun.is_set)
        if why == "cancel":
            await bus.cancel("shop", sent, "enough", running="request")
        status = PARKED if why == "time-out" else CommandStatus.CANCELED
        row = await until_status(bus, "shop", sent, status)
        assert why != "time-out" or row.last_error_code == "HANDLER_TIMEOUT"
    assert await written(conn) == []


async def test_a_worker_that_stops_ends_the_statement_and_gives_the_command_back(
    dsn: str, conn: Conn
) -> None:
    is_begun, has_ended = threading.Event(), threading.Event()
    async with CommandBus.connect(dsn, settings=Settings(shutdown_grace_seconds=0.1)) as bus:

        @bus.handler("shop", "Work", transactional=True)
        def work(command: Command, ctx: HandlerContext) -> None:
            write(command, ctx)
            is_begun.set()
            try:
                ctx.conn.execute("select pg_sleep(60)")
            finally:
                has_ended.set()

        sent = await send(bus)
        async with working(bus, "shop"):
            await until(is_begun.is_set)
        await until(has_ended.is_set)
        row = await look(bus, sent)
    assert (row.status, row.attempts) == (CommandStatus.PENDING, 0)
    assert await written(conn) == []


async def test_extend_visibility_sync_extends_and_says_when_the_lease_is_lost(
    bus: CommandBus, conn: Conn
) -> None:
    gate, is_begun = threading.Event(), threading.Event()
    said: list[type] = []

    @bus.handler("shop", "Work", transactional=True)
    def work(command: Command, ctx: HandlerContext) -> None:
        if ctx.lease_epoch == 1:
            ctx.extend_visibility_sync(900)
            is_begun.set()
            assert gate.wait(30)
            try:
                ctx.extend_visibility_sync(900)
            except LeaseLostError:
                said.append(LeaseLostError)
                raise

    @bus.handler("shop", "Async")
    async def work_async(command: Command, ctx: HandlerContext) -> None:
        with pytest.raises(InvalidOperationError, match="in its thread"):
            ctx.extend_visibility_sync(900)

    await send(bus)
    other = await send(bus, "Async")
    async with working(bus, "shop", concurrency=2):
        await until(is_begun.is_set)
        left = await value(
            conn,
            "select max(vt - clock_timestamp()) > '800 s'::interval from pgmq.q_shop__commands",
        )
        assert left
        await seize(conn)
        gate.set()
        await until(lambda: bool(said))
        await until_status(bus, "shop", other, COMPLETED)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_connection_that_is_cut_while_the_handler_runs_costs_no_attempt(
    bus: CommandBus, conn: Conn, kind: str
) -> None:
    runs: list[int] = []

    def cut(command: Command, ctx: HandlerContext) -> bool:
        runs.append(ctx.attempt)
        return len(runs) == 1

    if kind == "async":

        @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
        async def work(command: Command, ctx: HandlerContext) -> None:
            await ctx.conn.execute(WRITE, (command.command_id, ctx.lease_epoch))
            if cut(command, ctx):
                await ctx.conn.execute("select pg_terminate_backend(pg_backend_pid())")
    else:

        @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
        def work_blocking(command: Command, ctx: HandlerContext) -> None:
            write(command, ctx)
            if cut(command, ctx):
                ctx.conn.execute("select pg_terminate_backend(pg_backend_pid())")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, COMPLETED)
    assert runs == [1, 1]
    assert row.attempts == 1
    assert len(await written(conn)) == 1
    (snoozed,) = [
        each for each in await bus.get_audit_trail("shop", sent) if each.event_type == "SNOOZED"
    ]
    assert "DATABASE_UNAVAILABLE" in str(snoozed.details)


async def test_connections_that_are_cut_between_two_commands_cost_nothing(
    bus: CommandBus, conn: Conn
) -> None:
    backends: set[int] = set()

    @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
    def work(command: Command, ctx: HandlerContext) -> None:
        backends.add(ctx.conn.info.backend_pid)
        write(command, ctx)

    async with working(bus, "shop", concurrency=1):
        for number in range(1, 4):
            await send(bus)
            await until_count(conn, COMPLETED, number)
            await conn.execute(
                "select pg_terminate_backend(p) from unnest(%s) p", (list(backends),)
            )
    assert len(backends) == 3
    assert len(await written(conn)) == 3


async def test_a_handler_that_closes_its_own_connection_has_failed(
    bus: CommandBus, conn: Conn
) -> None:
    @bus.handler("shop", "Work", transactional=True, retry_policy=ONCE)
    def work(command: Command, ctx: HandlerContext) -> None:
        write(command, ctx)
        ctx.conn.close()

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.attempts == 1
    assert await written(conn) == []


@contextmanager
def begun(dsn: str, *, commits: bool = True) -> Iterator[psycopg.Connection[Any]]:
    """A provider of an application: a connection for each command."""
    with psycopg.Connection.connect(dsn) as conn:
        yield conn
        if not commits:
            conn.rollback()


async def test_a_provider_gives_the_transaction_of_a_def_handler(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    @bus.handler("shop", "Work", transactional=lambda: begun(dsn), retry_policy=SOON)
    def work(command: Command, ctx: HandlerContext) -> str:
        write(command, ctx)
        if ctx.attempt == 1:
            raise TransientCommandError("NOT_YET", "again")
        return "done"

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, COMPLETED)
    assert row.attempts == 2
    assert await written(conn) == [(sent, 2)]


async def test_a_provider_gives_the_transaction_of_an_async_handler(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    pool_conns: list[int] = []

    class Begin:
        async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
            self._conn = await psycopg.AsyncConnection.connect(dsn)
            return await self._conn.__aenter__()

        async def __aexit__(self, *error: Any) -> None:
            await self._conn.__aexit__(*error)

    @bus.handler("shop", "Work", transactional=Begin, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        pool_conns.append(ctx.conn.info.backend_pid)
        await ctx.conn.execute(WRITE, (command.command_id, ctx.lease_epoch))
        if ctx.attempt == 1:
            raise TransientCommandError("NOT_YET", "again")

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, COMPLETED)
    assert await written(conn) == [(sent, 2)]
    assert len(pool_conns) == 2


async def test_a_provider_of_another_database_is_refused_when_the_worker_starts(
    bus: CommandBus, dsn: str
) -> None:
    other = psycopg.conninfo.make_conninfo(dsn, dbname="postgres")

    @bus.handler("shop", "Work", transactional=lambda: begun(other))
    def work(command: Command, ctx: HandlerContext) -> None: ...

    with pytest.raises(ValueError, match="shop/Work cannot be used: its connections go to another"):
        await bus.run_worker("shop")


async def test_a_provider_that_does_not_commit_is_refused_when_the_worker_starts(
    bus: CommandBus, dsn: str
) -> None:
    @bus.handler("shop", "Work", transactional=lambda: begun(dsn, commits=False))
    def work(command: Command, ctx: HandlerContext) -> None: ...

    with pytest.raises(ValueError, match="does not commit at its end"):
        await bus.run_worker("shop")


async def test_a_provider_of_the_other_kind_is_refused_when_the_worker_starts(
    bus: CommandBus, dsn: str
) -> None:
    @bus.handler("shop", "Work", transactional=lambda: begun(dsn))
    async def work(command: Command, ctx: HandlerContext) -> None: ...

    with pytest.raises(ValueError, match="not asynchronous, for a handler that is"):
        await bus.run_worker("shop")


async def test_a_provider_without_a_connection_costs_no_attempt(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    tries: list[int] = []

    @contextmanager
    def unlucky() -> Iterator[psycopg.Connection[Any]]:
        tries.append(1)
        if len(tries) == 2:  # the first is the worker's, when it starts
            raise OSError("no route to host")
        with begun(dsn) as own:
            yield own

    @bus.handler("shop", "Work", transactional=unlucky, retry_policy=ONCE)
    def work(command: Command, ctx: HandlerContext) -> None:
        write(command, ctx)

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, COMPLETED)
    assert row.attempts == 1
    assert len(tries) == 3


async def test_rows_and_completions_are_equal_whenever_the_worker_is_killed(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await conn.execute("alter table written drop epoch")
    await send_some(bus, 150)
    done = "select count(*) from commandbus.command_bus_command where status = 'COMPLETED'"

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.killed_worker",
            env={**os.environ, "SITE_DSN": dsn},
        )  # fmt: skip

    async def grew(before: int) -> bool:
        return bool(await value(conn, done) > before)

    for _ in range(3):
        worker = await start()
        before = await value(conn, done)
        await until(partial(grew, before + 5))
        worker.kill()
        await worker.wait()
        # One snapshot: a transaction that was on its way may still end.
        ids = "select array_agg(command_id order by command_id) from"
        completed = "commandbus.command_bus_command where status = 'COMPLETED'"
        equal = f"select ({ids} written) is not distinct from ({ids} {completed})"
        assert await value(conn, equal)
    worker = await start()
    await until_count(conn, COMPLETED, 150)
    worker.terminate()
    await worker.wait()
    query = "select count(distinct command_id) = 150 and count(*) = 150 from written"
    assert await value(conn, query)

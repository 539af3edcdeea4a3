"""Leases: kept while a handler runs, given up at the deadline, and what a lost one leads to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    InvalidOperationError,
    InvalidSettingError,
    LeaseLostError,
    RetryPolicy,
)
from commandbus.worker import lease as lease_module
from tests.integration.looking import (
    Conn,
    another_bus,
    complete_as_other,
    events,
    lapse,
    look,
    replies,
    seize,
    send,
    value,
)
from tests.waiting import until, until_status, working

EXPIRES = "select extract(epoch from lease_expires_at) from commandbus.command_bus_command"


class Rival:
    """A second worker with an event loop of its own, which nothing on ours can stop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.is_serving = threading.Event()
        self.handled: list[int] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with another_bus(self._dsn) as bus:

            @bus.handler("shop", "Work")
            async def work(command: Command, ctx: HandlerContext) -> None:
                self.handled.append(ctx.attempt)

            @bus.handler("shop", "Sign")
            async def sign(command: Command, ctx: HandlerContext) -> None:
                self.is_serving.set()

            async with working(bus, "shop", vt_seconds=1):
                await self._stop.wait()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            assert self._loop is not None
            assert self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)


def block_until(condition: Callable[[], bool]) -> None:
    """Hold the thread, event loop and all, until a condition comes about."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_lease_is_extended_while_the_handler_runs_and_nobody_else_gets_it(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    gate, attempts = asyncio.Event(), list[int]()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> str:
        attempts.append(ctx.attempt)
        await gate.wait()
        return "once"

    sent = await send(bus)
    rival = Rival(dsn)
    async with working(bus, "shop", concurrency=1, vt_seconds=1):
        await until(lambda: attempts)
        first = await value(conn, EXPIRES)
        with rival.at_work():
            await send(bus, "Sign")
            await until(rival.is_serving.is_set, "the rival")

            async def has_outlived_three_leases() -> bool:
                return await value(conn, f"{EXPIRES} where command_type = 'Work'") > first + 3

            await until(has_outlived_three_leases)
            gate.set()
            await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert (attempts, rival.handled) == ([1], [])
    assert await events(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease_and_is_named_in_the_log(
    bus: CommandBus, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F8: leases are kept by a thread, so a blocking call costs no second run."""
    attempts: list[int] = []
    rival = Rival(dsn)

    def a_blocking_call() -> None:
        with psycopg.connect(dsn, autocommit=True) as watcher, rival.at_work():
            query = f"{EXPIRES} where command_type = 'Work'"

            def expires() -> float:
                row = watcher.execute(query.encode()).fetchone()
                assert row is not None
                return float(row[0])

            first = expires()
            block_until(rival.is_serving.is_set)
            block_until(lambda: expires() > first + 3)
            block_until(lambda: "the event loop has been blocked" in caplog.text)

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        attempts.append(ctx.attempt)
        a_blocking_call()

    sent = await send(bus)
    await send(bus, "Sign")
    async with working(bus, "shop", concurrency=1, vt_seconds=1):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert (attempts, rival.handled) == ([1], [])
    assert await events(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]
    stalls = [r.getMessage() for r in caplog.records if "has been blocked" in r.getMessage()]
    assert "in a_blocking_call" in stalls[0]


async def test_a_hung_handler_fails_before_the_deadline_of_its_lease(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RetryPolicy(backoff_schedule=[0])
    async with another_bus(dsn, lease_deadline_seconds=1) as bus:

        @bus.handler("shop", "Work", retry_policy=policy)
        async def work(command: Command, ctx: HandlerContext) -> str:
            if ctx.attempt > 1:
                return "second try"
            await asyncio.Event().wait()
            raise AssertionError

        sent = await send(bus)
        async with working(bus, "shop"):
            await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
        found = await events(bus, sent)
        assert found == ["SENT", "RECEIVED", "FAILED", "RECEIVED", "COMPLETED"]
        assert (await look(bus, sent)).attempts == 2
    assert "ran longer than 0.5 s" in caplog.text


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_lost_lease_cancels_the_handler(
    bus: CommandBus, conn: Conn, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work", transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1, vt_seconds=1):
        await asyncio.wait_for(started.wait(), 30)
        taken = await seize(conn)
        assert [command_id for command_id, _, _ in taken] == [sent]
        await asyncio.wait_for(cancelled.wait(), 30)
        await complete_as_other(conn, taken)
        row = await look(bus, sent)
    assert row.status is CommandStatus.COMPLETED
    assert "its lease was lost" in caplog.text
    assert "STALE_RESULT_REJECTED" in await events(bus, sent)
    (reply,) = await replies(bus)
    assert reply.data == "rescued"


async def test_a_worker_that_leases_a_command_again_cancels_its_own_first_run(
    bus: CommandBus, conn: Conn
) -> None:
    """After an outage longer than the lease, the same worker may be the next to receive it."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> int:
        if ctx.lease_epoch == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        assert cancelled.is_set()
        return ctx.lease_epoch

    sent = await send(bus)
    async with working(bus, "shop", concurrency=2):
        await asyncio.wait_for(started.wait(), 30)
        await lapse(conn)
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    (reply,) = await replies(bus)
    assert reply.data == row.lease_epoch == 2
    assert await value(conn, "select count(*) from commandbus.command_bus_worker") == 0


async def test_a_handler_may_extend_its_lease_itself(bus: CommandBus, conn: Conn) -> None:
    left: list[float] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        await ctx.extend_visibility(500)
        vt = "select extract(epoch from vt - clock_timestamp()) from pgmq.q_shop__commands"
        left.append(float(await value(conn, vt)))
        left.append(float(await value(conn, EXPIRES)) - time.time())

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert all(440 < seconds <= 500 for seconds in left)
    assert len(left) == 2


async def test_an_extension_after_the_lease_is_lost_raises(bus: CommandBus, conn: Conn) -> None:
    gate, started = asyncio.Event(), asyncio.Event()
    raised: list[Exception] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        await gate.wait()
        try:
            await ctx.extend_visibility(60)
        except LeaseLostError as error:
            raised.append(error)
            raise

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1):
        await asyncio.wait_for(started.wait(), 30)
        taken = await seize(conn)
        gate.set()
        await until(lambda: raised)
        await complete_as_other(conn, taken)
        row = await look(bus, sent)
    assert row.status is CommandStatus.COMPLETED
    (reply,) = await replies(bus)
    assert reply.data == "rescued"
    assert "STALE_RESULT_REJECTED" in await events(bus, sent)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_transactional_handlers_can_extend_while_all_their_connections_are_taken(
    dsn: str, concurrency: int
) -> None:
    """The extension has a connection of its own; it must not wait for that of the handler."""
    async with another_bus(dsn, connect_timeout_seconds=1.0) as bus:
        together = asyncio.Barrier(concurrency)

        @bus.handler("shop", "Work", transactional=True)
        async def work(command: Command, ctx: HandlerContext) -> None:
            await asyncio.wait_for(together.wait(), 30)
            await ctx.extend_visibility(60)
            await asyncio.wait_for(together.wait(), 30)

        ids = [await send(bus) for _ in range(concurrency)]
        async with working(bus, "shop", concurrency=concurrency):
            for sent in ids:
                row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
                assert row.attempts == 1


async def test_a_plain_handler_has_no_connection_and_no_absurd_extension(bus: CommandBus) -> None:
    errors: list[Exception] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        with pytest.raises(InvalidOperationError) as no_connection:
            _ = ctx.conn
        with pytest.raises(InvalidSettingError) as too_short:
            await ctx.extend_visibility(0.4)  # would be rounded to nothing, and lose the lease
        errors.extend([no_connection.value, too_short.value])

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert "transactional=True" in str(errors[0])
    assert "use 1 to 43,200" in str(errors[1])


async def test_a_lease_that_cannot_be_extended_for_a_while_is_kept_all_the_same(
    bus: CommandBus, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    """The extender's session is killed; the next tick opens another."""
    gate, started = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> str:
        started.set()
        await gate.wait()
        return "kept"

    async def killed_an_extender() -> bool:
        return bool(
            await value(
                conn,
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where query like '%%keep_leases%%' and pid <> pg_backend_pid()"
                " and datname = current_database()",
            )
        )

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1, vt_seconds=3):
        await asyncio.wait_for(started.wait(), 30)
        await until(killed_an_extender)
        before = await value(conn, EXPIRES)
        await until(lambda: "cannot extend leases" in caplog.text)

        async def is_extended_again() -> bool:
            return await value(conn, EXPIRES) > before

        await until(is_extended_again)
        gate.set()
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert (row.attempts, row.lease_epoch) == (1, 1)


def test_a_blocked_loop_is_reported_after_a_second() -> None:
    assert lease_module.STALL_SECONDS == 1.0

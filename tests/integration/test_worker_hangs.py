"""Handlers that hang, on PostgreSQL: what other workers, the audit and the doctor see of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, RetryPolicy
from tests.integration.looking import Conn, another_bus, events, look, rows, send
from tests.waiting import until, until_status, working

ONCE = RetryPolicy(max_attempts=1)
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
STUCK = "select concurrency, stuck from commandbus.command_bus_worker order by stuck desc"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


async def test_a_worker_whose_threads_all_hang_leaves_commands_to_another(
    dsn: str, bus: CommandBus, conn: Conn, gate: threading.Event
) -> None:
    by_sick: list[str] = []
    by_healthy: list[str] = []

    def serve(where: CommandBus, runs: list[str]) -> None:
        @where.handler("shop", "Hang", timeout_seconds=0.05, retry_policy=ONCE)
        def hang(command: Command, ctx: HandlerContext) -> None:
            gate.wait()

        @where.handler("shop", "Work")
        def work(command: Command, ctx: HandlerContext) -> None:
            runs.append("thread")

        @where.handler("shop", "Async")
        async def run_async(command: Command, ctx: HandlerContext) -> None:
            runs.append("async")

    serve(bus, by_healthy)
    async with another_bus(dsn, lease_deadline_seconds=1) as sick:
        serve(sick, by_sick)
        async with working(sick, "shop", concurrency=2):
            hung = [await send(sick, "Hang") for _ in range(2)]
            for command_id in hung:
                await until_status(sick, "shop", command_id, PARKED)
            await until(lambda: sick.stuck_domains == ["shop"])
            # Where it hangs can be read, though nothing was raised there.
            parked = await sick.troubleshooting.require("shop", hung[0])
            assert parked.stack is not None
            assert parked.stack["last"].endswith("hang")
            assert parked.stack["last"].partition(":")[0].endswith("test_worker_hangs.py")
            sent = [await send(sick) for _ in range(20)]
            await until_status(sick, "shop", await send(sick, "Async"), CommandStatus.COMPLETED)
            async with working(bus, "shop", concurrency=2):
                for command_id in sent:
                    await until_status(bus, "shop", command_id, CommandStatus.COMPLETED)
                # Never leased by the one that cannot run them: not even for a moment.
                for command_id in sent:
                    assert await events(bus, command_id) == ["SENT", "RECEIVED", "COMPLETED"]
                assert (by_sick, by_healthy) == (["async"], ["thread"] * 20)

                async def is_told() -> bool:
                    return await rows(conn, STUCK) == [(2, 2), (2, 0)]

                await until(is_told, "the next heartbeat")
                found = [
                    f for f in (await bus.upkeep.doctor()).findings if f.code == "WORKER_STUCK"
                ]
                assert [(f.domain, f.found) for f in found] == [("shop", 1)]
            gate.set()
            await until_status(sick, "shop", await send(sick), CommandStatus.COMPLETED)
            assert by_sick == ["async", "thread"]
    for command_id in hung:
        assert await events(bus, command_id) == [
            "SENT", "RECEIVED", "FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE",
        ]  # fmt: skip


@pytest.mark.parametrize("can_be_cancelled", [True, False])
async def test_what_a_hung_handler_wrote_is_rolled_back(
    dsn: str, conn: Conn, can_be_cancelled: bool
) -> None:
    await conn.execute("create table ledger (note text)")
    gate, ended = asyncio.Event(), asyncio.Event()
    async with another_bus(dsn, lease_deadline_seconds=1) as bus:

        @bus.handler("shop", "Work", timeout_seconds=0.2, retry_policy=ONCE, transactional=True)
        async def work(command: Command, ctx: HandlerContext) -> None:
            await ctx.conn.execute("insert into ledger values ('hung')")
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    if can_be_cancelled:
                        raise
            ended.set()

        sent = await send(bus)
        async with working(bus, "shop", concurrency=1):
            await until_status(bus, "shop", sent, PARKED)
            gate.set()
            if not can_be_cancelled:
                await until(ended.is_set)
                [worker] = bus._workers.running
                await until(lambda: not worker.is_stuck)
        found = await look(bus, sent)
        assert (found.status, found.last_error_code) == (PARKED, "HANDLER_TIMEOUT")
    assert await rows(conn, "select * from ledger") == []


async def test_a_hung_query_is_cancelled(dsn: str, conn: Conn) -> None:
    async with another_bus(dsn, lease_deadline_seconds=10) as bus:

        @bus.handler("shop", "Work", timeout_seconds=0.2, retry_policy=ONCE, transactional=True)
        async def work(command: Command, ctx: HandlerContext) -> None:
            await ctx.conn.execute("select pg_sleep(60)")

        sent = await send(bus)
        async with working(bus, "shop", concurrency=1):
            found = await until_status(bus, "shop", sent, PARKED)
        assert found.last_error_code == "HANDLER_TIMEOUT"


async def test_a_worker_of_the_first_release_still_receives_and_beats(
    bus: CommandBus, conn: Conn
) -> None:
    sent = await send(bus)
    received = await rows(
        conn,
        "select command_id"
        " from commandbus.receive_commands('shop', 30, 9, 'old', '{}', true, true)",
    )
    assert received == [(sent,)]
    await conn.execute("select commandbus.worker_heartbeat('old', 'shop', false, 4, 1)")
    assert await rows(conn, STUCK) == [(4, 0)]


async def test_a_broken_connection_of_a_handler_is_not_a_time_out(bus: CommandBus) -> None:
    @bus.handler("shop", "Work", timeout_seconds=20, retry_policy=ONCE, transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise psycopg.OperationalError("gone")

    sent = await send(bus)
    async with working(bus, "shop"):
        found = await until_status(bus, "shop", sent, PARKED)
    assert found.last_error_code == "OperationalError"


async def test_a_worker_stops_beside_a_transaction_that_does_not_end(dsn: str) -> None:
    gate, ended = asyncio.Event(), asyncio.Event()
    async with another_bus(dsn, lease_deadline_seconds=1) as bus:

        @bus.handler("shop", "Work", timeout_seconds=0.2, retry_policy=ONCE, transactional=True)
        async def work(command: Command, ctx: HandlerContext) -> None:
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()
            ended.set()

        sent = await send(bus)
        async with working(bus, "shop", concurrency=1):
            await until_status(bus, "shop", sent, PARKED)
        assert not ended.is_set()
        gate.set()
        await until(ended.is_set)
        assert (await look(bus, sent)).status is PARKED

"""A measured worker on PostgreSQL: what its metrics and its health say of what happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
    new_id,
)
from commandbus.monitoring import catalogue
from tests.integration.looking import another_bus, send
from tests.waiting import until, until_status, working

QUICK = RetryPolicy(max_attempts=3, backoff_schedule=[0])


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def count(bus: CommandBus, command_type: str, outcome: str) -> object:
    snapshot = bus.monitor().metrics.snapshot()
    return snapshot.get(catalogue.COMMANDS, "shop", command_type, outcome)


def observed(bus: CommandBus, family: catalogue.Family, *labels: str) -> tuple[float, float]:
    """How many values a histogram has, and their sum."""
    value = bus.monitor().metrics.snapshot().get(family, *labels)
    assert isinstance(value, list)
    return sum(value[:-1]), value[-1]


async def test_every_outcome_of_a_handler_is_counted(bus: CommandBus) -> None:
    monitor = bus.monitor()
    assert bus.monitor() is monitor

    @bus.handler("shop", "Work", retry_policy=QUICK)
    async def work(command: Command, ctx: HandlerContext) -> None:
        if command.data.get("fail") == "always":
            raise PermanentCommandError("OUT_OF_STOCK", "none left")
        if command.data.get("fail") == "once" and ctx.attempt == 1:
            raise TransientCommandError("BUSY", "later")
        if command.data.get("sends"):
            ctx.send("shop", "Thread", new_id(), {})

    @bus.handler("shop", "Thread")
    def in_thread(command: Command, ctx: HandlerContext) -> None:
        pass

    @bus.handler("shop", "Transaction", transactional=True)
    async def in_transaction(command: Command, ctx: HandlerContext) -> None:
        await ctx.conn.execute("select 1")

    async with working(bus, "shop"):
        good = await send(bus, "Work", sends=True)
        again = await send(bus, "Work", fail="once")
        bad = await send(bus, "Work", fail="always")
        whole = await send(bus, "Transaction")
        await bus.send_many("shop", [BatchCommand("Thread", new_id(), {}) for _ in range(3)])
        await until_status(bus, "shop", good, "COMPLETED")
        await until_status(bus, "shop", again, "COMPLETED")
        await until_status(bus, "shop", bad, "IN_TROUBLESHOOTING_QUEUE")
        await until_status(bus, "shop", whole, "COMPLETED")
        await until(lambda: count(bus, "Thread", "completed") == 4, "all that was sent")
        await until(lambda: not monitor.health.not_ready(), "a heartbeat")
        assert monitor.health.not_started() == []

        snapshot = monitor.metrics.snapshot()
        assert snapshot.get(catalogue.SLOTS, "shop", "free") == 10
        assert snapshot.get(catalogue.POOL["max"], "control") == 24
        assert snapshot.get(catalogue.STUCK, "shop") == 0

    assert count(bus, "Work", "completed") == 2
    assert count(bus, "Work", "retried") == 1
    assert count(bus, "Work", "parked") == 1
    assert count(bus, "Transaction", "completed") == 1
    snapshot = monitor.metrics.snapshot()
    assert snapshot.get(catalogue.ERRORS, "shop", "Work", "OUT_OF_STOCK") == 1
    assert snapshot.get(catalogue.ERRORS, "shop", "Work", "BUSY") == 1
    assert snapshot.get(catalogue.SENT, "shop", "Thread") == 4
    assert observed(bus, catalogue.SEND, "shop", "Thread")[0] == 1  # the call, not the handler's
    assert observed(bus, catalogue.HANDLE, "shop", "Work")[0] == 4
    assert observed(bus, catalogue.WAIT, "shop", "Work")[0] == 3  # not the second start
    assert observed(bus, catalogue.ATTEMPT, "shop", "Work") == (3, 4.0)
    assert observed(bus, catalogue.SETTLE, "shop")[0] >= 1
    # A worker that has ended has no slots.
    assert snapshot.get(catalogue.SLOTS, "shop", "free") is None


async def test_waiting_is_counted_from_the_time_a_command_is_due(bus: CommandBus) -> None:
    bus.monitor()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    late = await bus.send("shop", "Work", new_id(), {}, delay=1.5)
    async with working(bus, "shop"):
        await until_status(bus, "shop", late, "COMPLETED")
        await until(lambda: count(bus, "Work", "completed") == 1, "its commit")

    number, seconds = observed(bus, catalogue.WAIT, "shop", "Work")
    assert number == 1
    assert 0 <= seconds < 1.4


async def test_a_repeated_unique_key_is_not_counted_as_sent(bus: CommandBus) -> None:
    bus.monitor()
    for _ in range(2):
        await bus.send("shop", "Work", new_id(), {}, unique_key="one", on_duplicate="skip")
    generator = (BatchCommand("Work", new_id(), {}) for _ in range(2))
    await bus.send_many("shop", generator)

    assert bus.monitor().metrics.snapshot().get(catalogue.SENT, "shop", "Work") == 3


async def test_a_lease_that_another_took_is_counted_as_lost_and_stale(
    dsn: str, conn: psycopg.AsyncConnection
) -> None:
    async with another_bus(dsn) as bus:
        bus.monitor()
        begun, go_on = threading.Event(), threading.Event()

        @bus.handler("shop", "Work")
        def work(command: Command, ctx: HandlerContext) -> None:
            begun.set()
            go_on.wait(20)

        async with working(bus, "shop", vt_seconds=1):
            await send(bus, "Work")
            await until(begun.is_set, "the handler")
            await conn.execute("update commandbus.command_bus_command set lease_epoch = 9")
            await until(
                lambda: bus.monitor().metrics.snapshot().get(catalogue.LEASES_LOST, "shop") == 1,
                "the loss",
            )
            go_on.set()
            await until(lambda: count(bus, "Work", "stale") == 1, "the stale result")


async def test_a_worker_whose_threads_are_stuck_is_live_and_not_ready(
    bus: CommandBus, gate: threading.Event
) -> None:
    monitor = bus.monitor()

    @bus.handler("shop", "Hang", timeout_seconds=0.05, retry_policy=RetryPolicy(max_attempts=1))
    def hang(command: Command, ctx: HandlerContext) -> None:
        gate.wait()

    async with working(bus, "shop", concurrency=1):
        await send(bus, "Hang")
        stuck = "handlers that hang have taken all places of shop"
        await until(lambda: stuck in monitor.health.not_ready(), "a stuck worker")
        assert monitor.health.not_live() == []
        assert monitor.metrics.snapshot().get(catalogue.STUCK, "shop") == 1
        gate.set()
        await until(lambda: not monitor.health.not_ready(), "a free worker")


async def test_a_worker_without_its_database_is_live_and_not_ready(bus: CommandBus) -> None:
    monitor = bus.monitor()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    async with working(bus, "shop"):
        await until(lambda: not monitor.health.not_ready(), "a heartbeat")
        monitor.health.ready_seconds = 0.0  # as if the time were over without another one
        assert any("the last heartbeat" in each for each in monitor.health.not_ready())
        assert monitor.health.not_live() == []


async def test_a_newer_schema_makes_a_worker_not_ready(
    bus: CommandBus, conn: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.worker.shared.SCHEMA_SECONDS", 0.05)
    monitor = bus.monitor()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    async with working(bus, "shop"):
        await until(lambda: not monitor.health.not_ready(), "a heartbeat")
        await conn.execute(
            "insert into commandbus.command_bus_migration (version, name, checksum, is_breaking)"
            " values (9999, 'newer', 'x', true)"
        )
        await until(lambda: monitor.health.schema_error, "the schema error")
        assert monitor.health.not_live() == []
        await conn.execute("delete from commandbus.command_bus_migration where version = 9999")
        await until(lambda: monitor.health.schema_error is None, "the schema again")

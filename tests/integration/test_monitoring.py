"""A measured worker on PostgreSQL: what its metrics and its health say of what happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, cast

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
from commandbus.database.store import Store
from commandbus.errors import DatabaseUnavailableError
from commandbus.governance.types import BatchTypes
from commandbus.http.metrics import new_metrics
from commandbus.monitoring import Metrics, catalogue
from commandbus.monitoring.exposition import exposition
from commandbus.upkeep.figures import WorkerCount
from commandbus.upkeep.gauges import gauges
from commandbus.worker.counts import Counts
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


async def test_workers_add_what_they_counted_to_the_database_and_sums_do_not_fall(
    bus: CommandBus, dsn: str
) -> None:
    figures = bus.upkeep.figures

    async def work(command: Command, ctx: HandlerContext) -> None:
        if command.data.get("fail"):
            raise PermanentCommandError("OUT_OF_STOCK", "no")

    bus.register_handler("shop", "Work", work)
    async with working(bus, "shop"):  # nobody asked for it: nothing is counted
        await until_status(bus, "shop", await send(bus, "Work"), "COMPLETED")
    assert await figures.worker_counts() == []

    bus.monitor(counts=True)
    for sent in (3, 2):  # the second worker is another one, and adds to the same
        async with working(bus, "shop"):
            for _ in range(sent):
                await until_status(bus, "shop", await send(bus, "Work"), "COMPLETED")
            bad = await send(bus, "Work", fail="always")
            await until_status(bus, "shop", bad, "IN_TROUBLESHOOTING_QUEUE")
    async with CommandBus.connect(dsn) as other:
        other.monitor(counts=True)
        other.register_handler("shop", "Work", work)
        async with working(other, "shop"):
            await until_status(other, "shop", await send(other, "Work"), "COMPLETED")

    found = {each.outcome: each for each in await figures.worker_counts()}
    assert {name: each.count for name, each in found.items()} == {
        "completed": 6, "parked": 2, "handled": 8,
    }  # fmt: skip
    assert {(each.domain, each.command_type) for each in found.values()} == {("shop", "Work")}
    assert found["handled"].seconds > 0 == found["completed"].seconds

    text = exposition(gauges([], [], {}, await figures.worker_counts())).decode()
    shown = new_metrics(BatchTypes())
    await shown.refresh(figures, 0)
    counted = 'commandbus_workers_commands_total{domain="shop",type="Work",outcome="completed"} 6'
    handled = 'commandbus_workers_handled_total{domain="shop",type="Work"} 8'
    assert counted in text
    assert handled in text
    of_service = shown.text().decode()  # prometheus-client writes labels in alphabetical order
    assert '{domain="shop",outcome="completed",type="Work"} 6.0' in of_service
    assert f"{handled}.0" in of_service


def test_more_types_than_can_be_shown_are_summed() -> None:
    counts = [
        WorkerCount("shop", f"Type{number:04}", "completed", 1, 0.0) for number in range(1_005)
    ]
    snapshot = gauges([], [], {}, counts)
    assert snapshot.get(catalogue.WORKERS_COMMANDS, "shop", catalogue.OTHER, "completed") == 5


async def test_counts_that_did_not_arrive_are_told_the_next_time() -> None:
    class Refusing:
        has_gateway = True
        told: ClassVar[list[Any]] = []

        @property
        def gateway(self) -> Any:
            return self

        async def rows(self, statement: str, params: tuple[str]) -> None:
            if not self.told:
                self.told.append(None)
                raise DatabaseUnavailableError("away")
            self.told.append(json.loads(params[0]))

    metrics, store = Metrics(), cast("Store", Refusing())
    counts = Counts(metrics)
    metrics.know("shop", ["Work"])
    metrics.handled("shop", "Work", 0.5)
    with pytest.raises(DatabaseUnavailableError):
        await counts.tell(store)
    metrics.handled("shop", "Work", 0.25)
    await counts.tell(store)
    await counts.tell(store)  # nothing is new
    (item,) = Refusing.told[1]
    assert item["count"] == 2
    assert item["seconds"] == 0.75
    assert len(Refusing.told) == 2

"""Dispatch: rows and messages in separate commits, and what is said of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    HandlerContext,
    InvalidSettingError,
    Settings,
)
from commandbus.batches import DispatchMode
from commandbus.batches.dispatch import Dispatch
from commandbus.database.pgmq import RemoteQueue
from tests.intercepting import Ask, Rows, intercept, refuse
from tests.waiting import until, working

Connection = psycopg.AsyncConnection[Any]


def commands(count: int) -> list[BatchCommand]:
    return [BatchCommand("Work", uuid4(), {"n": n}) for n in range(count)]


def register(bus: CommandBus) -> list[UUID]:
    """A handler that notes what it worked on."""
    seen: list[UUID] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(command.command_id)

    return seen


async def rows(conn: Connection, query: str, *params: object) -> list[tuple[Any, ...]]:
    return await (await conn.execute(query.encode(), params)).fetchall()


async def dispatch_states(conn: Connection, batch_id: UUID) -> dict[str, int]:
    found = await rows(
        conn,
        "select dispatch_status, count(*) from commandbus.command_bus_command"
        " where batch_id = %s group by 1",
        batch_id,
    )
    return dict(found)


async def queued_ids(conn: Connection) -> list[str]:
    found = await rows(
        conn, "select message ->> 'command_id' from pgmq.q_shop__commands order by msg_id"
    )
    return [command_id for (command_id,) in found]


@pytest.fixture
async def remote(empty_dsn: str) -> AsyncIterator[RemoteQueue]:
    """A queue in a database that has nothing of ours."""
    async with RemoteQueue.connect(empty_dsn) as queue:
        yield queue


@pytest.mark.parametrize("mode", list(DispatchMode))
async def test_every_mode_queues_each_command_once_and_in_order(
    bus: CommandBus, conn: Connection, mode: DispatchMode
) -> None:
    work = commands(250)
    result = await bus.batches.dispatch("shop", work, mode=mode, name="all")
    assert result.as_dict() == {
        "batch_id": str(result.batch_id), "status": "success", "database_tasks": 250,
        "queued_tasks": 250, "retry_needed": False,
    }  # fmt: skip
    assert await queued_ids(conn) == [str(c.command_id) for c in work]
    assert await dispatch_states(conn, result.batch_id) == {"queued": 250}
    seen = register(bus)
    async with working(bus, "shop", concurrency=50):
        batch = await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert (batch.completed_count, batch.name) == (250, "all")
    assert sorted(seen) == sorted(c.command_id for c in work)
    assert await rows(conn, "select * from commandbus.command_bus_dispatch") == []
    assert await rows(conn, "select * from commandbus.command_bus_payload_archive") == []


async def test_more_than_the_threshold_goes_in_groups_and_less_singly(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = refuse(monkeypatch, bus, "queue_pending", calls=set())
    result = await bus.batches.dispatch("shop", commands(101))
    assert [len(ids) for _, ids in calls] == [100, 1]
    calls.clear()
    await bus.batches.dispatch("shop", commands(100))
    assert [len(ids) for _, ids in calls] == [1] * 100
    found = await rows(
        conn,
        "select distinct queue_attempt_count, queued_at is not null"
        " from commandbus.command_bus_command where batch_id = %s",
        result.batch_id,
    )
    assert found == [(1, True)]


async def test_rows_are_there_as_pending_queue_before_any_message(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: Rows = []

    async def looking(params: tuple[Any, ...], ask: Ask) -> Rows:
        cursor = await conn.execute(
            "select dispatch_status, status, msg_id from commandbus.command_bus_command"
            " where command_id = any(%s)",
            (params[1],),
        )
        states.extend(await cursor.fetchall())
        return await ask()

    intercept(monkeypatch, bus, "queue_pending", looking)
    await bus.batches.dispatch("shop", commands(2))
    await bus.batches.dispatch("shop", commands(1), mode=DispatchMode.OPTIMISTIC)
    assert states == [("pending_queue", "PENDING", None)] * 2 + [("queued", "PENDING", None)]


async def test_two_phase_that_cannot_send_marks_the_rest_for_retry_and_does_not_raise(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = refuse(patch, bus, "queue_pending", calls={2})
        result = await bus.batches.dispatch("shop", commands(350))
    assert len(calls) == 2
    assert (result.status, result.database_tasks, result.queued_tasks) == (
        "partial_success", 350, 100,
    )  # fmt: skip
    assert result.retry_needed
    assert result.error == "Queue send failed: the queue is down"
    assert await dispatch_states(conn, result.batch_id) == {"queued": 100, "pending_retry": 250}
    assert await rows(
        conn,
        "select distinct queue_attempt_count, last_queue_error"
        " from commandbus.command_bus_command where dispatch_status = 'pending_retry'",
    ) == [(1, "Queue send failed: the queue is down")]
    report = await bus.batches.recover_dispatch("shop")
    assert (report.queued, report.failed) == (250, 0)
    assert len(set(await queued_ids(conn))) == len(await queued_ids(conn)) == 350
    assert await rows(conn, "select * from commandbus.command_bus_dispatch") == []


async def test_optimistic_marks_what_failed_and_sends_the_others(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, bus, "queue_pending", calls={2})
        result = await bus.batches.dispatch("shop", commands(350), mode=DispatchMode.OPTIMISTIC)
    assert (result.status, result.queued_tasks, result.retry_needed) == (
        "partial_success", 250, True,
    )  # fmt: skip
    assert await dispatch_states(conn, result.batch_id) == {"queued": 250, "pending_retry": 100}
    assert (await bus.batches.recover_dispatch("shop")).queued == 100
    assert len(await queued_ids(conn)) == 350


async def test_optimistic_that_sends_nothing_needs_recovery(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, bus, "queue_pending")
        result = await bus.batches.dispatch("shop", commands(3), mode=DispatchMode.OPTIMISTIC)
    assert (result.status, result.queued_tasks) == ("failed_needs_recovery", 0)
    assert (await bus.batches.recover_dispatch("shop")).queued == 3


@pytest.mark.parametrize("mode", [DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC])
async def test_what_could_not_even_be_marked_is_found_by_recovery(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch, mode: DispatchMode
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, bus, "queue_pending")
        refuse(patch, bus, "mark_dispatch_failed")
        result = await bus.batches.dispatch("shop", commands(3), mode=mode)
    assert result.retry_needed
    assert (await bus.batches.recover_dispatch("shop")).queued == 0, "its process might be alive"
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 3
    assert await rows(conn, "select * from commandbus.command_bus_dispatch") == []


@pytest.mark.parametrize("mode", list(DispatchMode))
async def test_a_duplicate_leaves_nothing_and_no_callback(
    bus: CommandBus, conn: Connection, mode: DispatchMode
) -> None:
    known = uuid4()
    await bus.send("shop", "Work", known, {})

    async def never(batch: object) -> None:
        raise AssertionError("the batch does not exist")

    with pytest.raises(DuplicateCommandError, match=str(known)):
        await bus.batches.dispatch(
            "shop",
            [*commands(3), BatchCommand("Work", known, {})],
            mode=mode,
            on_complete=never,
        )
    assert await rows(conn, "select count(*) from commandbus.command_bus_command") == [(1,)]
    assert await rows(conn, "select count(*) from commandbus.command_bus_batch") == [(0,)]
    assert await rows(conn, "select count(*) from commandbus.command_bus_dispatch") == [(0,)]
    assert bus._completions._batch_callbacks == {}


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "three_phase"},
        {"mode": "inline", "dispatch_rate": 5},
        {"dispatch_rate": 0},
        {"dispatch_rate": float("nan")},
        {"dispatch_rate": True},
    ],
)
async def test_a_wrong_option_is_refused_before_anything_is_stored(
    bus: CommandBus, conn: Connection, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettingError, match=r"mode|rate"):
        await bus.batches.dispatch("shop", commands(1), **options)
    assert await rows(conn, "select count(*) from commandbus.command_bus_batch") == [(0,)]


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def test_dispatch_rate_spreads_the_commands_over_time(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    timed = Dispatch(bus._store, Settings(), bus._completions, clock=clock, sleep=clock.sleep)
    monkeypatch.setattr(bus.batches, "_dispatch", timed)
    sent: list[tuple[float, int]] = []
    beats: list[float] = []

    async def noting(params: tuple[Any, ...], ask: Ask) -> Rows:
        sent.append((clock.now - 1_000, len(params[1])))
        return await ask()

    async def beating(params: tuple[Any, ...], ask: Ask) -> Rows:
        beats.append(clock.now)
        return await ask()

    intercept(monkeypatch, bus, "queue_pending", noting)
    intercept(monkeypatch, bus, "dispatch_heartbeat", beating)
    result = await bus.batches.dispatch("shop", commands(120), dispatch_rate=20)
    assert result.queued_tasks == 120
    assert sent == [(float(second), 20) for second in range(6)]

    sent.clear()
    clock.now = 1_000.0
    await bus.batches.dispatch("shop", commands(3), dispatch_rate=0.01)
    assert sent == [(0.0, 1), (100.0, 1), (200.0, 1)]
    gaps = [later - earlier for earlier, later in zip([1_000.0, *beats], beats, strict=False)]
    assert max(gaps) <= Settings().dispatch_grace_seconds / 4, "it shows that it is alive"


async def test_creation_is_measured_in_a_log_line_and_a_row(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="commandbus.batches"):
        result = await bus.batches.dispatch("shop", commands(5))
        inline = await bus.batches.dispatch("shop", commands(2), mode=DispatchMode.INLINE)
    record = next(r for r in caplog.records if r.__dict__.get("batch_id") == str(result.batch_id))
    logged = record.__dict__
    assert (logged["pattern"], logged["batch_size"], logged["retry_needed"]) == (
        "two_phase", 5, False,
    )  # fmt: skip
    assert logged["total_ms"] >= logged["db_insert_ms"] + logged["queue_send_ms"] > 0
    found = await rows(
        conn,
        "select batch_id, pattern, batch_size, total_ms, retry_needed"
        " from commandbus.command_bus_creation_metric order by created_at",
    )
    assert found[0] == (result.batch_id, "two_phase", 5, logged["total_ms"], False)
    assert found[1][:3] == (inline.batch_id, "inline", 2)


@pytest.mark.parametrize("mode", [DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC])
async def test_a_queue_in_another_database_brings_each_command_back_once(
    bus: CommandBus, conn: Connection, remote: RemoteQueue, mode: DispatchMode
) -> None:
    work = commands(120)
    result = await bus.batches.dispatch("shop", work, mode=mode, queue=remote)
    assert (result.status, result.queued_tasks) == ("success", 120)
    assert await queued_ids(conn) == [], "they are elsewhere"
    assert await dispatch_states(conn, result.batch_id) == {"queued": 120}
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 0

    assert await bus.batches.relay("shop", remote, drain=True) == 120
    assert await queued_ids(conn) == [str(c.command_id) for c in work]
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert sorted(seen) == sorted(c.command_id for c in work)
    attempts = await rows(
        conn, "select distinct queue_attempt_count from commandbus.command_bus_command"
    )
    assert attempts == [(1,)]


async def test_a_message_that_comes_twice_or_late_is_adopted_once(
    bus: CommandBus, conn: Connection, remote: RemoteQueue
) -> None:
    work = commands(4)
    result = await bus.batches.dispatch("shop", work, queue=remote)
    found = await rows(
        conn,
        "select message from commandbus.stored_messages('shop', %s)",
        [c.command_id for c in work],
    )
    messages = [message for (message,) in found]
    await remote.publish("shop.dispatch", messages)
    await bus.cancel("shop", work[3].command_id, "no longer wanted")
    assert await bus.batches.relay("shop", remote, drain=True) == 3
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    await remote.publish("shop.dispatch", messages)
    assert await bus.batches.relay("shop", remote, drain=True) == 0
    assert await queued_ids(conn) == []
    assert sorted(seen) == sorted(c.command_id for c in work[:3])


async def test_a_message_without_a_command_is_archived_where_it_came_from(
    bus: CommandBus, remote: RemoteQueue, empty_dsn: str
) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    await remote.publish(
        "shop.dispatch", [f'{{"command_id": "{uuid4()}"}}', '{"command_id": "x"}', "[1]"]
    )
    assert await bus.batches.relay("shop", remote, drain=True) == 0
    async with await psycopg.AsyncConnection.connect(empty_dsn) as there:
        found = await rows(there, "select count(*) from pgmq.a_shop__dispatch")
    assert found == [(3,)]


async def test_a_relay_runs_until_cancelled(bus: CommandBus, remote: RemoteQueue) -> None:
    seen = register(bus)
    relay = asyncio.create_task(bus.batches.relay("shop", remote))
    async with working(bus, "shop"):
        await bus.batches.dispatch("shop", commands(3), queue=remote)
        await until(lambda: len(seen) == 3)
        await bus.batches.dispatch("shop", commands(2), queue=remote)
        await until(lambda: len(seen) == 5)
    relay.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relay


async def test_a_status_update_that_fails_is_a_warning_and_not_sent_twice(
    bus: CommandBus, conn: Connection, remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, bus, "mark_dispatched")
        result = await bus.batches.dispatch("shop", commands(3), queue=remote)
    assert (result.status, result.queued_tasks, result.retry_needed) == (
        "success_with_warning", 3, False,
    )  # fmt: skip
    assert result.warning == "Status update failed but tasks will process"
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 3
    assert await bus.batches.relay("shop", remote, drain=True) == 0
    assert len(await queued_ids(conn)) == 3


async def test_a_remote_queue_that_is_down_leaves_everything_to_recovery(
    bus: CommandBus, conn: Connection, remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object) -> None:
        raise DatabaseUnavailableError("the queue is down")

    with monkeypatch.context() as patch:
        patch.setattr(remote, "publish", down)
        result = await bus.batches.dispatch("shop", commands(3), queue=remote)
    assert (result.status, result.queued_tasks) == ("partial_success", 0)
    assert (await bus.batches.recover_dispatch("shop")).queued == 3


async def test_a_late_mark_does_not_overwrite_a_later_state(
    bus: CommandBus, conn: Connection, remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay and the worker are faster than the mark."""
    seen, marked = register(bus), []

    async def late(params: tuple[Any, ...], ask: Ask) -> Rows:
        await bus.batches.relay("shop", remote, drain=True)
        async with working(bus, "shop"):
            await until(lambda: set(params[1]) <= set(seen))
        before = await rows(conn, "select * from commandbus.command_bus_command")
        marked.append(await ask())
        assert await rows(conn, "select * from commandbus.command_bus_command") == before
        return marked[-1]

    intercept(monkeypatch, bus, "mark_dispatched", late)
    result = await bus.batches.dispatch("shop", commands(1), queue=remote)
    assert (result.status, marked) == ("success", [[(0,)]])
    batch = await bus.get_batch("shop", result.batch_id)
    assert batch is not None
    assert batch.status == "COMPLETED"

"""A dispatching process is killed between each pair of its steps (lesson 11).

Whatever the step: after recovery every command has exactly one message, and is worked on once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.database.pgmq import RemoteQueue
from tests.acceptance.conftest import Effects
from tests.acceptance.processes import worker_process
from tests.waiting import until

pytestmark = pytest.mark.long

Connection = psycopg.AsyncConnection[Any]

COUNT = 150  # two groups: 100 and 50


async def dispatch_and_die(dsn: str, mode: str, step: str, *remote: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.acceptance.dispatching", mode, str(COUNT), step, *remote,
        env={**os.environ, "COMMANDBUS_DSN": dsn},
    )  # fmt: skip
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL


async def count(conn: Connection, query: str) -> int:
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def assert_dispatched_once(conn: Connection, expected: int) -> None:
    """One message for each command, whether still queued or archived; all rows say so."""
    messages = (
        "(select message from pgmq.q_shop__commands union all"
        " select message from pgmq.a_shop__commands) m"
    )
    assert await count(conn, f"select count(*) from {messages}") == expected
    assert (
        await count(conn, f"select count(distinct message ->> 'command_id') from {messages}")
        == expected
    )
    stored = "select count(*) from commandbus.command_bus_command where dispatch_status <> 'queued'"
    assert await count(conn, stored) == 0


async def assert_processed_once(dsn: str, conn: Connection, expected: int) -> None:
    async with worker_process(dsn):

        async def is_done() -> bool:
            query = "select count(*) from commandbus.command_bus_command where status = 'COMPLETED'"
            return await count(conn, query) == expected

        await until(is_done, "everything completed")
    assert await count(conn, "select count(*) from effect") == expected
    assert await count(conn, "select count(distinct command_id) from effect") == expected
    batch = "select count(*) from commandbus.command_bus_batch where status = 'COMPLETED'"
    assert await count(conn, batch) == (1 if expected else 0)


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        ("two_phase", "create_stored_batch:before"),
        ("two_phase", "create_stored_batch:after"),
        ("two_phase", "queue_pending:after:1"),
        ("two_phase", "queue_pending:before:2"),
        ("two_phase", "finish_dispatch:before"),
        ("two_phase", "finish_dispatch:after"),
        ("optimistic", "create_stored_batch:after"),
        ("optimistic", "queue_pending:after:1"),
        ("optimistic", "finish_dispatch:before"),
    ],
)
async def test_a_kill_between_two_steps_loses_and_doubles_nothing(
    dsn: str, conn: Connection, effects: Effects, mode: str, step: str
) -> None:
    expected = 0 if step == "create_stored_batch:before" else COUNT
    await dispatch_and_die(dsn, mode, step)
    stored = await count(conn, "select count(*) from commandbus.command_bus_command")
    assert stored == expected, "the rows are one commit"
    async with CommandBus.connect(dsn) as bus:
        await bus._store.ensure_domain("shop")
        await bus.batches.recover_dispatch("shop", grace_seconds=0)
        await assert_dispatched_once(conn, expected)
        assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 0
    assert await count(conn, "select count(*) from commandbus.command_bus_dispatch") == 0
    await assert_processed_once(dsn, conn, expected)


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        ("two_phase", "create_stored_batch:after"),
        ("two_phase", "send:before:1"),
        ("two_phase", "send:after:1"),
        ("two_phase", "mark_dispatched:after:1"),
        ("two_phase", "send:after:2"),
        ("two_phase", "finish_dispatch:before"),
        ("optimistic", "send:after:1"),
        ("optimistic", "finish_dispatch:before"),
    ],
)
@pytest.mark.parametrize("first", ["recovery", "relay"])
async def test_a_kill_with_the_queue_in_another_database_loses_and_doubles_nothing(
    dsn: str,
    empty_dsn: str,
    conn: Connection,
    effects: Effects,
    mode: str,
    step: str,
    first: str,
) -> None:
    """After the send and before the mark the message is there and the row says it is not."""
    await dispatch_and_die(dsn, mode, step, empty_dsn)
    async with CommandBus.connect(dsn) as bus, RemoteQueue.connect(empty_dsn) as remote:
        if first == "relay":
            await bus.batches.relay("shop", remote, drain=True)
        await bus.batches.recover_dispatch("shop", grace_seconds=0)
        await bus.batches.relay("shop", remote, drain=True)
        await bus.batches.recover_dispatch("shop", grace_seconds=0)
    await assert_dispatched_once(conn, COUNT)
    await assert_processed_once(dsn, conn, COUNT)


async def test_a_worker_recovers_a_killed_dispatch_by_itself(
    dsn: str, conn: Connection, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_MAINTENANCE_INTERVAL_SECONDS", "0.2")
    monkeypatch.setenv("COMMANDBUS_DISPATCH_GRACE_SECONDS", "0.5")
    await dispatch_and_die(dsn, "two_phase", "queue_pending:after:1")
    await assert_processed_once(dsn, conn, COUNT)

"""Loaders that are killed at any point go on without a double or a gap, in little memory."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus
from tests.acceptance.conftest import Effects
from tests.acceptance.processes import worker_process
from tests.waiting import until

pytestmark = pytest.mark.long

Connection = psycopg.AsyncConnection[Any]


def json_lines(folder: Path, count: int) -> Path:
    path = folder / f"rows{count}.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"n": n, "note": "x" * 40}) + "\n" for n in range(count))
    return path


@asynccontextmanager
async def loader_process(
    dsn: str, path: Path, batch_id: UUID, start: str, size: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.acceptance.loader_app", str(path), str(batch_id), start,
        str(size), env={**os.environ, "COMMANDBUS_DSN": dsn}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # a closed pipe is a clean transport


async def finish(dsn: str, path: Path, batch_id: UUID, start: str, size: int) -> dict[str, Any]:
    async with loader_process(dsn, path, batch_id, start, size) as process:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 90)
        ended: dict[str, Any] = json.loads(said)
        assert await process.wait() == 0
    assert (ended["status"], ended["error"]) == ("success", None)
    return ended


async def kill_at(
    conn: Connection, dsn: str, path: Path, batch_id: UUID, start: str, size: int, point: int
) -> None:
    """Start a loader and kill it once so many rows are stored and queued, counted together."""

    async def is_there() -> bool:
        cursor = await conn.execute(
            "select rows_committed + case start_mode when 'sealed' then rows_dispatched else 0 end"
            " from commandbus.command_bus_load where batch_id = %s",
            (batch_id,),
        )
        row = await cursor.fetchone()
        assert process.returncode is None, "the loader ended before it was killed"
        return row is not None and row[0] >= point

    async with loader_process(dsn, path, batch_id, start, size) as process:
        await until(is_there, f"row {point:,}")
        process.kill()
        assert await process.wait() == -signal.SIGKILL


async def assert_whole(conn: Connection, batch_id: UUID, count: int) -> None:
    cursor = await conn.execute(
        "select count(*), count(distinct command_id), min(sequence_no), max(sequence_no),"
        " count(distinct sequence_no) from commandbus.command_bus_command where batch_id = %s",
        (batch_id,),
    )
    assert await cursor.fetchone() == (count, count, 1, count, count)
    cursor = await conn.execute(
        "select b.total_count, b.total_sealed, l.rows_committed, l.rows_dispatched, l.status,"
        " (select sum(c.row_count) from commandbus.command_bus_load_checkpoint c"
        "   where c.batch_id = l.batch_id),"
        " (select count(*) from commandbus.command_bus_audit a"
        "   where a.batch_id = l.batch_id and a.event_type = 'SENT')"
        " from commandbus.command_bus_batch b join commandbus.command_bus_load l using (batch_id)"
        " where batch_id = %s",
        (batch_id,),
    )
    assert await cursor.fetchone() == (count, True, count, count, "sealed", count, count)


@pytest.mark.parametrize("start", ["sealed", "as_it_loads"])
async def test_a_loader_killed_five_times_loads_each_row_once(
    conn: Connection, dsn: str, tmp_path: Path, start: str
) -> None:
    count, size, batch_id = 20_000, 250, uuid4()
    path = json_lines(tmp_path, count)
    # A sealed load goes over its rows twice: kills hit the storing and the queueing.
    steps = 2 * count if start == "sealed" else count
    chance = random.Random(20_261_115)
    points = sorted(chance.sample(range(1, int(steps * 0.9)), 5))
    for point in points:
        await kill_at(conn, dsn, path, batch_id, start, size, point)
    await finish(dsn, path, batch_id, start, size)
    await assert_whole(conn, batch_id, count)
    cursor = await conn.execute(
        "select count(*), count(distinct message ->> 'command_id'),"
        " count(distinct message -> 'data' ->> 'n') from pgmq.q_shop__commands"
    )
    assert await cursor.fetchone() == (count, count, count)
    cursor = await conn.execute(
        "select bool_and(n = sequence_no - 1) from (select c.sequence_no,"
        " (q.message -> 'data' ->> 'n')::int as n from pgmq.q_shop__commands q"
        " join commandbus.command_bus_command c using (msg_id)) x"
    )
    assert await cursor.fetchone() == (True,), "each row stands at its place"


async def test_a_worker_beside_a_killed_loader_ends_the_batch_once_and_after_the_seal(
    bus: CommandBus, conn: Connection, dsn: str, tmp_path: Path, effects: Effects
) -> None:
    count, batch_id = 2_000, uuid4()
    path = json_lines(tmp_path, count)
    async with worker_process(dsn, concurrency=20):
        await kill_at(conn, dsn, path, batch_id, "as_it_loads", 100, 700)

        async def is_idle() -> bool:
            batch = await bus.get_batch("shop", batch_id)
            return batch is not None and batch.completed_count == batch.total_count

        await until(is_idle, "everything that is loaded so far done")
        batch = await bus.get_batch("shop", batch_id)
        assert batch is not None
        assert (batch.status, batch.completed_at) == ("IN_PROGRESS", None)
        await finish(dsn, path, batch_id, "as_it_loads", 100)
        batch = await bus.batches.wait("shop", batch_id, timeout=60)
    assert (batch.status, batch.completed_count, batch.total_count) == ("COMPLETED", count, count)
    events = [event.event_type for event in await bus.get_audit_trail(batch_id)]
    assert events == ["BATCH_STARTED", "BATCH_COMPLETED"]
    await assert_whole(conn, batch_id, count)
    cursor = await conn.execute("select count(*), count(distinct command_id) from effect")
    assert await cursor.fetchone() == (count, count)


async def test_ten_times_the_rows_take_no_more_memory(dsn: str, tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 20_000):
        path = json_lines(tmp_path, count)
        ended = await finish(dsn, path, uuid4(), "as_it_loads", 1_000)
        peaks.append(ended["peak_kb"])
    assert peaks[1] - peaks[0] < 8 * 1024, f"peak memory {peaks} KB"
    assert peaks[1] < 150 * 1024

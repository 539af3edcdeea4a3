"""A group of parked commands is retried by a program that is killed twice: each item once.

The suite runs a small one. The figures of the issue (100,000 parked in five groups, 20,000 in one):

    BULK_PARKED=100000 BULK_RATE=1000 python -m pytest tests/acceptance/test_bulk_kills.py -s
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus, Settings
from commandbus.troubleshooting.model import FailureGroup
from commandbus.upkeep.findings import Severity
from tests.parking import MISCOUNTED, park
from tests.sql.faults import codes
from tests.waiting import until, working

pytestmark = pytest.mark.long

Connection = psycopg.AsyncConnection[Any]

PARKED = int(os.environ.get("BULK_PARKED", "2000"))
RATE = int(os.environ.get("BULK_RATE", "200"))
CODES = ["BANK_DOWN", "SOLD_OUT", "LATE", "NO_ACCOUNT", "BAD_DATE"]
SIZE = PARKED // len(CODES)
PATIENCE = 60 + PARKED / 100


@asynccontextmanager
async def program(dsn: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`commandbus …` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "commandbus", *words, "--dsn", dsn,
        env={**os.environ, "COMMANDBUS_MAINTENANCE": "false"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # a closed pipe is a clean transport


async def rows(conn: Connection, query: str, *params: object) -> list[tuple[Any, ...]]:
    return await (await conn.execute(query.encode(), params or None)).fetchall()


async def kill_at(conn: Connection, dsn: str, point: int, *words: str) -> None:
    """Start the program and kill it once so many items have their outcome."""

    async def is_there() -> bool:
        assert process.returncode is None, "the program ended before it was killed"
        found = await rows(conn, "select done from commandbus.command_bus_bulk_operation")
        return bool(found) and found[0][0] >= point

    async with program(dsn, *words) as process:
        await until(is_there, f"item {point:,}", PATIENCE)
        process.kill()
        assert await process.wait() == -signal.SIGKILL


@pytest.mark.timeout(2 * PATIENCE)
async def test_a_group_retried_by_a_program_that_is_killed_twice_is_retried_once(
    dsn: str, conn: Connection
) -> None:
    for code in CODES:
        await park(conn, SIZE, code=code)
    async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:

        async def handle(command: Any, ctx: Any) -> None:
            return None

        bus.register_handler("shop", "Work", handle)
        listings: list[float] = []
        groups: list[FailureGroup] = []
        while len(listings) < 5:
            began = time.perf_counter()
            groups = await bus.troubleshooting.groups("shop")
            listings.append(time.perf_counter() - began)
        assert {(g.error_code, g.parked_count) for g in groups} == {(c, SIZE) for c in CODES}
        group = next(g.fingerprint for g in groups if g.error_code == "LATE")
        members = {
            row[0]
            for row in await rows(
                conn,
                "select command_id from commandbus.command_bus_troubleshooting"
                " where fingerprint = %s",
                group,
            )
        }
        assert len(members) == SIZE

        operation_id = uuid4()
        began = time.monotonic()
        async with working(bus, "shop", concurrency=50):
            await kill_at(
                conn, dsn, SIZE // 4,
                "tsq", "retry", "--group", group[:8], "--rate", f"{RATE}/s", "--operator", "ann",
                "--id", str(operation_id),
            )  # fmt: skip
            await kill_at(conn, dsn, SIZE // 2, "bulk", "resume", str(operation_id))
            async with program(dsn, "bulk", "resume", str(operation_id)) as process:
                out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
                assert process.returncode == 0, out
                assert re.search(rf"finished: {SIZE:,} of {SIZE:,} done", out.decode()), out

            async def is_done() -> bool:
                return await rows(
                    conn,
                    "select count(*) from commandbus.command_bus_command"
                    " where status = 'COMPLETED'",
                ) == [(SIZE,)]

            await until(is_done, "all retried commands done", PATIENCE)
        took = time.monotonic() - began
        await assert_each_once(conn, operation_id, members)
        per_second = await assert_paced(conn)
        replied = [reply.command_id async for reply in bus.replies("shop", wait=False)]
        assert len(replied) == SIZE
        assert set(replied) == members
        assert codes(await bus.upkeep.doctor(), Severity.ERROR) == set(), "the doctor finds nothing"
    print(
        f"\n{PARKED:,} parked: groups listed in {min(listings) * 1000:.1f} to "
        f"{max(listings) * 1000:.1f} ms; {SIZE:,} retried at {RATE}/s in {took:.1f} s with two "
        f"kills, at most {per_second:,} in any second"
    )
    if "BULK_PARKED" in os.environ:
        assert max(listings) < 0.1


async def assert_each_once(conn: Connection, operation_id: UUID, members: set[UUID]) -> None:
    assert await rows(
        conn,
        "select outcome, count(*), count(distinct command_id)"
        " from commandbus.command_bus_bulk_item group by 1",
    ) == [("done", SIZE, SIZE)]
    acted = await rows(
        conn,
        "select command_id, count(*), min(actor) from commandbus.command_bus_audit"
        " where event_type = 'OPERATOR_RETRY' group by 1",
    )
    assert {row[0] for row in acted} == members
    assert {row[1:] for row in acted} == {(1, "ann")}
    assert await rows(
        conn,
        "select status, count(*) from commandbus.command_bus_command group by 1 order by 1",
    ) == [("COMPLETED", SIZE), ("IN_TROUBLESHOOTING_QUEUE", PARKED - SIZE)]
    assert await rows(
        conn,
        "select event_type, actor from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        operation_id,
    ) == [("BULK_STARTED", "ann"), ("BULK_FINISHED", "ann")]
    assert await rows(conn, MISCOUNTED) == [(0,)]
    assert await rows(
        conn, "select deadlocks from pg_stat_database where datname = current_database()"
    ) == [(0,)]


async def assert_paced(conn: Connection) -> int:
    """No second has more than the rate; returns the most that one had."""
    chunks = await rows(
        conn,
        "select extract(epoch from acted_at)::float8, count(*)"
        " from commandbus.command_bus_bulk_item group by 1 order by 1",
    )
    most = max(
        sum(size for at, size in chunks if begin <= at < begin + 0.999) for begin, _ in chunks
    )
    assert most <= RATE
    return int(most)

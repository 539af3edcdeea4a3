"""Schedules while the processes that fire them are killed: each tick is one command."""

from __future__ import annotations

import signal
import time
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from commandbus import CommandBus
from commandbus.schedules.firing import tick_id
from tests.acceptance.processes import worker_process
from tests.acceptance.programs import program
from tests.waiting import until

SCHEDULES = 100
KILLS = 4


async def rows(conn: AsyncConnection, query: str) -> list[tuple[Any, ...]]:
    return await (await conn.execute(query.encode())).fetchall()


async def last_tick(conn: AsyncConnection) -> datetime | None:
    ((found,),) = await rows(
        conn,
        "select case when bool_and(last_tick_at is not null) then min(last_tick_at) end"
        " from commandbus.command_bus_schedule",
    )
    return found


async def test_each_tick_is_one_command_while_processes_are_killed(
    bus: CommandBus, dsn: str, conn: AsyncConnection
) -> None:
    for number in range(SCHEDULES):
        await bus.schedules.put(
            "reports", f"x{number}", "Build", {"n": number}, every=1, overlap="allow", missed="all",
            missed_cap=10_000,
        )  # fmt: skip
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(worker_process(dsn)) for _ in range(3)]
        await until(lambda: last_tick(conn), "the first ticks")
        for number in range(KILLS):
            workers[number % 3].signal(signal.SIGKILL)
            workers[number % 3] = await stack.enter_async_context(worker_process(dsn))
        reached = await last_tick(conn)
        assert reached is not None
        wanted = reached + timedelta(seconds=2)

        async def went_on() -> bool:
            found = await last_tick(conn)
            return found is not None and found >= wanted

        await until(went_on, "ticks after the last kill")
        for worker in workers:
            worker.signal(signal.SIGKILL)
            await worker.ended()
    schedules = await rows(
        conn,
        "select schedule_id, counted_from, last_tick_at from commandbus.command_bus_schedule",
    )
    found = await rows(
        conn, "select correlation_id, command_id from commandbus.command_bus_command"
    )
    expected = {
        (schedule_id, tick_id(schedule_id, begun + timedelta(seconds=n)))
        for schedule_id, begun, last in schedules
        for n in range(1, (last - begun) // timedelta(seconds=1) + 1)
    }
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len(expected) > SCHEDULES * 3
    wrong = [each for each in (await bus.upkeep.doctor()).findings if each.severity == "error"]
    assert wrong == []


async def test_a_scheduler_fires_without_any_worker_and_stops_when_told(
    bus: CommandBus, dsn: str, conn: AsyncConnection, tmp_path: Path
) -> None:
    await bus.schedules.put("reports", "x", "Build", {}, every=1)
    async with program(tmp_path, "scheduler", dsn=dsn) as scheduler:
        await until(lambda: last_tick(conn), "the first tick")

        async def did_chores() -> bool:
            return bool(await rows(conn, "select * from commandbus.command_bus_chore"))

        await until(did_chores, "maintenance")
        scheduler.signal(signal.SIGTERM)
        assert await scheduler.ended() == 0
    assert "commandbus fires schedules" in scheduler.printed


async def test_the_http_service_fires_without_any_worker(
    bus: CommandBus, dsn: str, conn: AsyncConnection, tmp_path: Path
) -> None:
    await bus.schedules.put("reports", "x", "Build", {}, every=1)
    arguments = ("serve", "--auth", "none", "--port", "0")
    async with program(tmp_path, *arguments, dsn=dsn) as service:
        began = time.monotonic()
        await until(lambda: last_tick(conn), "the first tick")
        assert time.monotonic() - began < 30
        service.signal(signal.SIGTERM)
        assert await service.ended() == 0

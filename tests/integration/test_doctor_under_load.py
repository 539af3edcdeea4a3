"""On a healthy database under load the doctor finds nothing.

DOCTOR_RUNS=1000 makes it look a thousand times; the load goes on until it has.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandBusError,
    CommandStatus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    Settings,
    TransientCommandError,
)
from commandbus.batches import DispatchMode
from commandbus.upkeep import Diagnosis
from tests.sql.faults import codes
from tests.waiting import working

RUNS = int(os.environ.get("DOCTOR_RUNS", "15"))
DOMAIN = "shop"


def register(bus: CommandBus) -> None:
    """Some succeed, some fail once, some for good, some are given up."""

    async def roll(command: Command, context: HandlerContext) -> dict[str, Any]:
        chance = command.data["n"] % 10
        if chance == 3 and context.attempt == 1:
            raise TransientCommandError("BUSY", "later")
        if chance == 7:
            raise PermanentCommandError("BROKEN", "never")
        await asyncio.sleep(chance / 1_000)
        return {"n": chance}

    policy = RetryPolicy(max_attempts=3, backoff_schedule=(0.05,))
    bus.register_handler(DOMAIN, "Roll", roll, retry_policy=policy)
    given_up = RetryPolicy(max_attempts=2, backoff_schedule=(0.05,), when_exhausted="fail")
    bus.register_handler(DOMAIN, "Doomed", roll, retry_policy=given_up)


def commands(size: int) -> list[BatchCommand]:
    return [
        BatchCommand("Doomed" if n % 4 == 0 else "Roll", uuid4(), {"n": n}) for n in range(size)
    ]


async def create(bus: CommandBus, chance: random.Random) -> None:
    """Batches, in one transaction or in two phases, and commands without one.

    Not more than the worker can follow: a look should stay as quick as the first.
    """
    if (
        len(
            (
                await bus.search.commands(domain=DOMAIN, status=CommandStatus.PENDING, limit=500)
            ).items
        )
        == 500
    ):
        await asyncio.sleep(0.2)
        return
    mode = chance.choice([DispatchMode.INLINE, DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC])
    result = await bus.batches.dispatch(DOMAIN, commands(chance.randrange(5, 60)), mode=mode)
    batch_id = result.batch_id
    await bus.send_many(DOMAIN, commands(5))
    if chance.random() < 0.3:
        await bus.batches.cancel(DOMAIN, batch_id, "enough", operator="load")
    await asyncio.sleep(0.02)


async def operate(bus: CommandBus, chance: random.Random) -> None:
    """Retry, cancel and complete what waits, and retry whole batches."""
    for item in (await bus.list_troubleshooting(DOMAIN, limit=20))[:10]:
        verb = chance.choice(["retry", "cancel", "complete"])
        if verb == "retry":
            await bus.operator_retry(DOMAIN, item.command_id, reset_attempts=chance.random() < 0.5)
        elif verb == "cancel":
            await bus.operator_cancel(DOMAIN, item.command_id, "no")
        else:
            await bus.operator_complete(DOMAIN, item.command_id, {"by": "hand"})
    batches = await bus.list_batches(DOMAIN, limit=50)
    if batches:
        await bus.batches.retry(DOMAIN, chance.choice(batches).batch_id)
    await asyncio.sleep(0.05)


async def read(bus: CommandBus, chance: random.Random) -> None:
    """Some replies are read, some are left."""
    left = 50
    async for _ in bus.replies(DOMAIN, wait=False):
        left -= 1
        if not left:
            break
    await asyncio.sleep(0.1)


async def prune(bus: CommandBus, chance: random.Random) -> None:
    """Retention removes what has just ended."""
    await bus.upkeep.prune(older_than=timedelta(seconds=1), operator="load")
    await asyncio.sleep(0.3)


async def forever(
    act: Callable[[CommandBus, random.Random], Awaitable[None]], bus: CommandBus, seed: int
) -> None:
    chance = random.Random(seed)
    while True:
        with suppress(CommandBusError):  # somebody else was quicker
            await act(bus, chance)


@pytest.mark.long
@pytest.mark.timeout(120 + 3 * RUNS)
async def test_on_a_healthy_database_under_load_the_doctor_finds_nothing(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    settings = Settings(maintenance_interval_seconds=0.5)
    async with (
        CommandBus.connect(dsn, settings=settings) as worker,
        CommandBus.connect(dsn) as bus,
        CommandBus.connect(dsn) as patient,
    ):
        register(worker)
        async with working(worker, DOMAIN, concurrency=8):
            acts = (create, create, operate, read, prune)
            tasks = [asyncio.create_task(forever(act, bus, seed)) for seed, act in enumerate(acts)]
            try:
                moves = [await _moves(conn)]
                for run in range(RUNS):
                    found = await patient.upkeep.doctor()
                    assert codes(found) == set(), await _evidence(conn, run, found)
                    assert not any(task.done() for task in tasks), "an agent has failed"
                    moves.append(await _moves(conn))
                    print(f"run {run + 1}: nothing found, {moves[-1]:,} events so far")
                    await asyncio.sleep(0.05)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    assert moves[-1] - moves[0] > RUNS * 20, "it was not under load"


async def _evidence(conn: psycopg.AsyncConnection[Any], run: int, found: Diagnosis) -> str:
    """The rows and the trails of what was found, before they change."""
    lines = [f"run {run + 1}"]
    for finding in found.findings:
        lines.append(f"{finding.code} {finding.found} {finding.examples}")
        for subject in finding.examples:
            for query in (
                "select * from commandbus.command_bus_command where command_id::text = %s",
                "select * from commandbus.command_bus_audit where command_id::text = %s order by 1",
            ):
                cursor = await conn.execute(query, (subject,))
                lines += [str(row) for row in await cursor.fetchall()]
    cursor = await conn.execute("select * from commandbus.command_bus_setting")
    lines += [str(row) for row in await cursor.fetchall()]
    return "\n".join(lines)


async def _moves(conn: psycopg.AsyncConnection[Any]) -> int:
    """How many events there have been."""
    cursor = await conn.execute("select last_value from commandbus.command_bus_audit_audit_id_seq")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0

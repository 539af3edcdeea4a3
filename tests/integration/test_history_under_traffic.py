"""Commands move to the history while they are sent, done and sent again, and movers are killed."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import BatchCommand, Command, CommandBus, DuplicateCommandError, HandlerContext
from commandbus.names import new_id
from tests.waiting import until, working

pytestmark = [pytest.mark.postgres, pytest.mark.long]

TOTAL = 8_000
MOVER = """
import asyncio, sys
from datetime import timedelta
from commandbus import CommandBus

async def move():
    async with CommandBus.connect(sys.argv[1]) as bus:
        while True:
            await bus.upkeep.prune(older_than=timedelta(0), kinds=["commands"], domain="pay")
            print("moved", flush=True)

asyncio.run(move())
"""


async def send_again(bus: CommandBus, way: str, known: UUID) -> None:
    """An id that was sent before, among others that are new."""
    fresh = [BatchCommand("Do", new_id(), {}) for _ in range(600 if way == "packed" else 2)]
    match way:
        case "one":
            await bus.send("pay", "Do", known, {})
        case "unique":
            await bus.send("pay", "Do", known, {}, unique_key=str(known))
        case "batch":
            await bus.create_batch("pay", [*fresh, BatchCommand("Do", known, {})])
        case _:
            await bus.send_many("pay", [*fresh, BatchCommand("Do", known, {})])


async def test_no_id_is_done_twice_or_lost_when_movers_are_killed_under_traffic(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    done: Counter[UUID] = Counter()
    sent: list[UUID] = []
    refused: Counter[str] = Counter()

    @bus.handler("pay", "Do")
    async def do(command: Command, context: HandlerContext) -> None:
        done[command.command_id] += 1

    await bus.upkeep.set_retention("history", None)
    await conn.execute(
        "update commandbus.command_bus_setting set value = '1000' where name = 'history_part_rows'"
    )

    async def send() -> None:
        while len(sent) < TOTAL:
            make = random.choice([new_id, new_id, uuid4])
            some = [BatchCommand("Do", make(), {}) for _ in range(random.choice([1, 40, 600]))]
            if random.random() < 0.2:
                await bus.create_batch("pay", some)
            else:
                await bus.send_many("pay", some)
            sent.extend(each.command_id for each in some)

    async def repeat() -> None:
        while True:
            way = random.choice(["one", "unique", "batch", "many", "packed"])
            if sent:
                with pytest.raises(DuplicateCommandError):
                    await send_again(bus, way, random.choice(sent))
                refused[way] += 1
            await asyncio.sleep(0)

    async def kill() -> None:
        """Movers that are killed in the middle of what they do, two at a time."""
        while True:
            movers = [
                await asyncio.create_subprocess_exec(
                    sys.executable, "-c", MOVER, dsn, stdout=asyncio.subprocess.PIPE
                )
                for _ in range(2)
            ]
            try:
                for mover in movers:
                    assert mover.stdout is not None
                    for _ in range(random.choice([1, 2, 5])):  # a moment that nobody chose
                        await mover.stdout.readline()
            finally:
                for mover in movers:
                    mover.kill()
                    await mover.communicate()

    async with working(bus, "pay", concurrency=100):
        others = [asyncio.create_task(each()) for each in (repeat, repeat, kill)]
        try:
            await asyncio.gather(send(), send())

            async def is_all_done() -> bool:
                return len(done) >= len(sent) and len(refused) == 5

            await until(is_all_done)
        finally:
            for task in others:
                task.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
    assert [each for each in ends if not isinstance(each, asyncio.CancelledError)] == []
    await bus.upkeep.prune(older_than=timedelta(0), kinds=["commands"], domain="pay")

    assert set(done) == set(sent)
    assert set(done.values()) == {1}
    rows = await conn.execute(
        "select count(*), count(distinct command_id), max(history_no)"
        " from commandbus.command_bus_history"
    )
    assert await rows.fetchone() == (len(sent), len(sent), len(sent))
    rows = await conn.execute("select count(*) from commandbus.command_bus_command")
    assert await rows.fetchone() == (0,)
    rows = await conn.execute(
        "select sum(total_count) - sum(completed_count), count(*) filter (where moved_to is null),"
        " sum(total_count) - (select count(*) from commandbus.command_bus_history"
        "                      where batch_id is not null) from commandbus.command_bus_batch"
    )
    assert await rows.fetchone() == (0, 0, 0)

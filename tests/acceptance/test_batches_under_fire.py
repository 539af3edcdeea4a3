"""F13: batches while workers are killed and operators decide at random.

The suite runs a small one. The figures of the issue (ten batches of 10,000, 1,000 samples):

    FIRE_BATCHES=10 FIRE_SIZE=10000 python -m pytest tests/acceptance/test_batches_under_fire.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import BatchCommand, BatchMetadata, CommandBus, CommandBusError
from tests.acceptance.conftest import Effects
from tests.acceptance.processes import WorkerProcess, worker_process
from tests.waiting import until

pytestmark = pytest.mark.long

BATCHES = int(os.environ.get("FIRE_BATCHES", "2"))
SIZE = int(os.environ.get("FIRE_SIZE", "1000"))
SEED = int(os.environ.get("FIRE_SEED", "20261115"))
WORKERS = 4
PATIENCE = 60 + BATCHES * SIZE / 100

MISMATCHES = """
select count(*) from commandbus.command_bus_batch b
  join (select batch_id, count(*) as total,
               count(*) filter (where status = 'COMPLETED') as completed,
               count(*) filter (where status = 'FAILED') as failed,
               count(*) filter (where status = 'CANCELED') as canceled,
               count(*) filter (where status = 'IN_TROUBLESHOOTING_QUEUE') as parked
          from commandbus.command_bus_command where batch_id is not null group by 1) r
    on r.batch_id = b.batch_id
 where (b.total_count, b.completed_count, b.failed_count, b.canceled_count,
        b.in_troubleshooting_count)
       is distinct from (r.total, r.completed, r.failed, r.canceled, r.parked)
"""


def fate(number: int) -> str:
    """10 % fail once, 2 % for good."""
    if number % 50 == 7:
        return "permanent"
    return "transient" if number % 10 == 3 else "fine"


class Nemesis:
    """Kills a worker every two seconds and starts another."""

    def __init__(self, dsn: str, chance: random.Random, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._chance = chance
        self._stack = stack
        self._workers: list[WorkerProcess] = []
        self.kills = 0

    async def hire(self) -> None:
        worker = await self._stack.enter_async_context(
            worker_process(self._dsn, concurrency=16, vt_seconds=2)
        )
        self._workers.append(worker)

    async def rage(self) -> None:
        while True:
            await asyncio.sleep(2)  # the pace of the fault, not a wait for a result
            victim = self._workers.pop(self._chance.randrange(len(self._workers)))
            victim.signal(signal.SIGKILL)
            self.kills += 1
            await self.hire()


async def operate(bus: CommandBus, chance: random.Random, acts: list[str]) -> None:
    """Retry, cancel or complete whatever waits, some twenty a second."""
    while True:
        waiting = await bus.list_troubleshooting("shop", limit=50)
        for item in chance.sample(waiting, min(len(waiting), 10)):
            act = chance.choice(["retry", "cancel", "complete"])
            with suppress(CommandBusError):  # somebody else was quicker
                if act == "retry":
                    await bus.operator_retry("shop", item.command_id, operator="fire")
                elif act == "cancel":
                    await bus.operator_cancel("shop", item.command_id, "fire", operator="fire")
                else:
                    await bus.operator_complete("shop", item.command_id, operator="fire")
                acts.append(act)
        await asyncio.sleep(0.5)


async def sample(dsn: str, samples: list[int]) -> None:
    """Compare counters with a recount in one snapshot, again and again."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        while True:
            row = await (await conn.execute(MISMATCHES)).fetchone()
            await conn.rollback()
            samples.append(int(row[0]) if row else -1)
            await asyncio.sleep(0.05)


@pytest.mark.timeout(PATIENCE + 60)
async def test_batches_are_counted_exactly_and_end_once_under_kills_and_operators(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any], effects: Effects
) -> None:
    chance = random.Random(SEED)
    called: list[UUID] = []

    async def remember(batch: BatchMetadata) -> None:
        called.append(batch.batch_id)

    batches = [
        await bus.create_batch(
            "shop",
            [BatchCommand("Roll", uuid4(), {"fate": fate(n)}) for n in range(SIZE)],
            on_complete=remember,
            on_complete_command=BatchCommand("Work", uuid4(), {"n": 0}),
        )
        for _ in range(BATCHES)
    ]
    samples: list[int] = []
    acts: list[str] = []
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        nemesis = Nemesis(dsn, chance, stack)
        for _ in range(WORKERS):
            await nemesis.hire()
        tasks = [
            asyncio.create_task(agent)
            for agent in (nemesis.rage(), operate(bus, chance, acts), sample(dsn, samples))
        ]

        async def all_ended() -> bool:
            assert not any(task.done() for task in tasks), "an agent of the test has failed"
            ended = [await bus.get_batch("shop", batch_id) for batch_id in batches]
            return all(batch is not None and batch.completed_at for batch in ended)

        try:
            await until(all_ended, f"all batches ended (seed {SEED})", PATIENCE)
            await until(lambda: len(called) == BATCHES, "all callbacks")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    print(
        f"\n{BATCHES} x {SIZE} in {time.monotonic() - began:.0f} s: {nemesis.kills} kills, "
        f"{len(acts)} decisions, {len(samples)} samples, {sum(samples)} mismatches, seed {SEED}"
    )
    assert sum(samples) == 0, f"counters differ from a recount, seed {SEED}"
    assert sorted(called) == sorted(batches)
    for query, expected in (
        (
            "select count(*), count(distinct batch_id) from commandbus.command_bus_audit"
            " where event_type = 'BATCH_COMPLETED'",
            (BATCHES, BATCHES),
        ),
        (
            "select count(*), count(distinct correlation_id) from commandbus.command_bus_command"
            " where batch_id is null",
            (BATCHES, BATCHES),
        ),
        ("select deadlocks from pg_stat_database where datname = current_database()", (0,)),
        (MISMATCHES, (0,)),
    ):
        assert await (await conn.execute(query.encode())).fetchone() == expected, query

"""F42: brokers that are killed, purged, copied, mixed up and cut: no command lost, none doubled.

BROKER_ROUNDS says how often each fault happens; `make faults-brokers` asks for more.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from commandbus import Command, CommandBus, HandlerContext
from commandbus.batches import DispatchMode, DispatchResult
from commandbus.brokers import BrokerError, Transport, open_transport
from commandbus.errors import CommandBusError
from faults.brokers import BROKERS, Broker
from tests.integration.test_brokers import started
from tests.integration.test_dispatch import commands, rows
from tests.waiting import until, working

pytestmark = [pytest.mark.long, pytest.mark.postgres]

ROUNDS = int(os.environ.get("BROKER_ROUNDS", "1"))
SIZE = 120
FAULTS = ("killed", "purged", "duplicated", "reordered", "cut", "rolled back")


@pytest.fixture(params=sorted(BROKERS))
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    yield from started(request.param, tmp_path)


class CutError(Exception):
    """The dispatching process ends here."""


class Faulty:
    """A transport that does one thing wrong with what it publishes."""

    def __init__(self, real: Transport, fault: str, chance: random.Random) -> None:
        self._real, self._fault, self._chance = real, fault, chance
        self.name = real.name

    async def publish(self, queue: str, messages: Any) -> None:
        texts = list(messages)
        if self._fault == "reordered":
            self._chance.shuffle(texts)
        await self._real.publish(queue, texts)
        if self._fault == "duplicated":
            await self._real.publish(queue, texts)
        if self._fault == "cut":
            raise CutError  # after the confirm, before the mark

    async def receive(self, queue: str, *, quantity: int, lease_seconds: int) -> Any:
        return await self._real.receive(queue, quantity=quantity, lease_seconds=lease_seconds)

    async def acknowledge(self, queue: str, messages: Any) -> None:
        await self._real.acknowledge(queue, messages)

    async def set_aside(self, queue: str, messages: Any) -> None:
        await self._real.set_aside(queue, messages)


async def purge(transport: Any, queue: str) -> None:
    if transport.name == "nats":
        stream = transport.subject(queue).replace(".", "__")
        await transport._streams.purge_stream(stream)
    else:
        await (await transport._queue(transport.queue_name(queue))).purge()


async def roll_back(broker: Broker, kept: Path) -> None:
    """The machine of the broker lost power: what was confirmed and not on the disk is gone."""
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(shutil.rmtree, broker.data)
    await asyncio.to_thread(shutil.copytree, kept, broker.data)
    for path in [broker.data, *broker.data.rglob("*")]:
        broker.own(path)
    await asyncio.to_thread(broker.start)


async def test_f42_no_fault_of_a_broker_loses_or_doubles_a_command(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any], broker: Broker, tmp_path: Path
) -> None:
    effects: Counter[UUID] = Counter()
    chance = random.Random(42)

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        effects[command.command_id] += 1

    sent: list[UUID] = []
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(open_transport(broker.url, timeout_seconds=2))
        # The queue is there before the picture is taken.
        await real.publish("shop.dispatch", ["{}"])
        await until(lambda: _drained(bus, real), "the first drain")
        kept = tmp_path / "picture"
        if real.name == "nats":
            await asyncio.to_thread(broker.kill)
            shutil.copytree(broker.data, kept)
            await asyncio.to_thread(broker.start)
        await stack.enter_async_context(working(bus, "shop", concurrency=20))
        for _ in range(ROUNDS):
            for fault in FAULTS:
                if fault == "rolled back" and real.name != "nats":
                    continue  # a quorum queue confirms after fsync
                for mode in (DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC):
                    batch = commands(SIZE)
                    sent += [each.command_id for each in batch]
                    queue = Faulty(real, fault, chance)
                    sending = asyncio.create_task(
                        bus.batches.dispatch("shop", batch, mode=mode, queue=queue)
                    )
                    if fault == "killed":
                        await asyncio.to_thread(broker.kill)
                    result: DispatchResult = await sending
                    if fault == "killed":
                        await asyncio.to_thread(broker.start)
                    if fault == "purged":
                        await purge(real, "shop.dispatch")
                    if fault == "rolled back":
                        await roll_back(broker, kept)
                    assert result.database_tasks == SIZE
                    await until(lambda: _drained(bus, real), f"a drain after {fault}")
                    await bus.batches.recover_dispatch("shop", grace_seconds=0, unconfirmed_after=0)
                    done = await bus.batches.wait("shop", result.batch_id, timeout=60)
                    assert done.completed_count == SIZE, fault
        # What comes late, after all is done, starts nothing.
        await until(lambda: _drained(bus, real), "the last drain")
    assert set(effects) == set(sent), "lost"
    assert set(effects.values()) == {1}, "doubled"
    left = await rows(conn, "select count(*) from commandbus.command_bus_unconfirmed")
    assert left == [(0,)]


async def _drained(bus: CommandBus, transport: Transport) -> bool:
    """A broker that was just started may need a moment."""
    try:
        await bus.batches.relay("shop", transport, drain=True)
    except (BrokerError, CommandBusError):
        return False
    return True

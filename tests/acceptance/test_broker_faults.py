"""F42: brokers that are killed, purged, copied, mixed up and cut: no command lost, none doubled.

The same for commands that another system does: each has one result, whatever the broker did to the
messages. BROKER_ROUNDS says how often each fault happens; `make faults-brokers` asks for more.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import Command, CommandBus, HandlerContext
from commandbus.batches import DispatchMode, DispatchResult
from commandbus.brokers import BrokerError, Transport, open_transport
from commandbus.errors import CommandBusError
from commandbus.handover import OutsideCommand, OutsideWorker
from faults.brokers import BROKERS, Broker
from tests.integration.test_brokers import started
from tests.integration.test_dispatch import commands, rows
from tests.waiting import until, working

pytestmark = [pytest.mark.long, pytest.mark.postgres]

ROUNDS = int(os.environ.get("BROKER_ROUNDS", "1"))
SIZE = 120
FAULTS = ("killed", "purged", "duplicated", "reordered", "cut", "rolled back")


@pytest.fixture(params=sorted(BROKERS))
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    yield from started(request.param)


class CutError(Exception):
    """The dispatching process ends here."""


class Faulty:
    """A transport that does one thing wrong with what it publishes."""

    def __init__(
        self, real: Transport, fault: str, chance: random.Random, kill: Callable[[], None]
    ) -> None:
        self._real, self._fault, self._chance, self._kill = real, fault, chance, kill
        self.name = real.name

    async def publish(self, queue: str, messages: Any) -> None:
        texts = list(messages)
        if self._fault == "reordered":
            self._chance.shuffle(texts)
        if self._fault == "killed":  # in the middle of a group
            half = len(texts) // 2
            await self._real.publish(queue, texts[:half])
            await asyncio.to_thread(self._kill)
            texts = texts[half:]
        await self._real.publish(queue, texts)
        if self._fault == "duplicated":
            await self._real.publish(queue, texts)
        if self._fault == "cut":
            raise CutError  # after the confirm, before the mark
        if self._fault == "unconfirmed":
            self._fault = "duplicated"
            raise BrokerError("it was taken, and its confirm was lost")

    def fail(self, fault: str) -> None:
        self._fault = fault

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
        await (await transport._queue("publish", transport.queue_name(queue))).purge()


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
        # From here on a relay runs by itself, as it does in production, whatever happens.
        await stack.enter_async_context(beside(bus.batches.relay("shop", real)))
        for _ in range(ROUNDS):
            for fault in FAULTS:
                if fault == "rolled back" and real.name != "nats":
                    continue  # a quorum queue confirms after fsync
                for mode in (DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC):
                    batch = commands(SIZE)
                    sent += [each.command_id for each in batch]
                    queue = Faulty(real, fault, chance, broker.kill)
                    result: DispatchResult = await bus.batches.dispatch(
                        "shop", batch, mode=mode, queue=queue
                    )
                    if fault == "killed":
                        await asyncio.to_thread(broker.start)
                    if fault == "purged":
                        await purge(real, "shop.dispatch")
                    if fault == "rolled back":
                        await roll_back(broker, kept)
                    assert result.database_tasks == SIZE
                    if fault == "killed":
                        assert result.retry_needed, "the broker was there"
                    await bus.batches.recover_dispatch("shop", grace_seconds=0, unconfirmed_after=0)
                    done = await bus.batches.wait("shop", result.batch_id, timeout=60)
                    assert done.completed_count == SIZE, fault
        # What comes late, after all is done, starts nothing.
        await until(lambda: _is_empty(real), "an empty queue")
    assert set(effects) == set(sent), "lost"
    assert set(effects.values()) == {1}, "doubled"
    left = await rows(conn, "select count(*) from commandbus.command_bus_unconfirmed")
    assert left == [(0,)]


async def test_f42_no_fault_of_a_broker_gives_a_command_done_elsewhere_two_results_or_none(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any], broker: Broker
) -> None:
    chance = random.Random(7)
    runs: Counter[UUID] = Counter()
    # Each round has a kill and a purge; three of each at least.
    ids = [uuid4() for _ in range(40 * max(3, ROUNDS))]
    key = b"k" * 32

    async def weigh(command: OutsideCommand) -> int:
        runs[command.command_id] += 1
        await asyncio.sleep(0)
        return command.lease

    async with AsyncExitStack() as stack:

        async def opened(fault: str) -> Faulty:
            real = await stack.enter_async_context(open_transport(broker.url, timeout_seconds=2))
            return Faulty(real, fault, chance, broker.kill)

        ours, theirs = await opened("duplicated"), await opened("duplicated")
        for queue in ("scale.handover", "scale.results"):
            await ours.publish(queue, ["{}"])
        await stack.enter_async_context(
            beside(bus.handover("scale", ours, keys=key, lease_seconds=3, at_once=30))
        )
        worker = OutsideWorker("scale", weigh, theirs, keys=key, lease_seconds=3)
        await stack.enter_async_context(beside(worker.run()))
        for step, start in enumerate(range(0, len(ids), 20)):
            ours.fail(("unconfirmed", "reordered", "duplicated")[step % 3])
            theirs.fail(("duplicated", "unconfirmed", "reordered")[step % 3])
            for command_id in ids[start : start + 20]:
                await bus.send("scale", "Weigh", command_id, {"n": 1}, reply_to="scale.done")
            # In the middle of their work.
            await until(partial(_has_done, runs, start // 2), "some work")
            if step % 2:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            else:
                for queue in ("scale.handover", "scale.results"):
                    await until(partial(_purged, ours._real, queue), "a purge")

        async def are_done() -> bool:
            query = "select count(*) from commandbus.command_bus_command where status = 'COMPLETED'"
            return await rows(conn, query) == [(len(ids),)]

        await until(are_done, "all of them", patience=120)
    replies = [reply.command_id async for reply in bus.replies(queue="scale.done", wait=False)]
    assert sorted(replies) == sorted(ids), "one reply each"
    counted = await rows(
        conn, "select command_id from commandbus.command_bus_audit where event_type = 'COMPLETED'"
    )
    assert sorted(row[0] for row in counted) == sorted(ids), "one result each"


@asynccontextmanager
async def beside(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _has_done(runs: Counter[UUID], least: int) -> bool:
    return len(runs) >= least


async def _purged(transport: Any, queue: str) -> bool:
    try:
        await purge(transport, queue)
    except Exception as error:  # noqa: BLE001  (a broker just started may refuse in any way)
        print("PURGE", repr(error))
        return False
    return True


async def _is_empty(transport: Transport) -> bool:
    try:
        return not await transport.receive("shop.dispatch", quantity=1, lease_seconds=30)
    except BrokerError:
        return False


async def _drained(bus: CommandBus, transport: Transport) -> bool:
    """A broker that was just started may need a moment."""
    try:
        await bus.batches.relay("shop", transport, drain=True)
    except (BrokerError, CommandBusError):
        return False
    return True

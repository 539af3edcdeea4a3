"""Workers are started and stopped in any order; on a bus in memory."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext
from commandbus.testing import fake_bus
from tests.waiting import until


@pytest.fixture
def fake() -> CommandBus:
    bus = fake_bus()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None: ...

    return bus


async def ended(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)


async def test_a_stop_ends_a_worker_whose_task_has_not_begun(fake: CommandBus) -> None:
    task = asyncio.create_task(fake.run_worker("shop"))
    await fake.stop()
    await ended(task)


async def test_closing_a_bus_ends_a_worker_whose_task_has_not_begun(fake: CommandBus) -> None:
    task = asyncio.create_task(fake.run_worker("shop"))
    await fake.close()
    await ended(task)


async def test_stops_at_the_same_time_all_end(fake: CommandBus) -> None:
    tasks = [asyncio.create_task(fake.run_worker("shop")) for _ in range(3)]
    async with asyncio.timeout(10):
        await asyncio.gather(fake.stop(), fake.stop(), fake.close())
        await fake.stop()
    await ended(*tasks)


async def test_a_worker_that_is_started_while_others_stop_ends_too(fake: CommandBus) -> None:
    first = asyncio.create_task(fake.run_worker("shop"))
    stopping = asyncio.create_task(fake.stop())
    await asyncio.sleep(0)
    second = asyncio.create_task(fake.run_worker("shop"))
    await ended(stopping, first, second)


async def test_a_stop_does_not_wait_for_one_who_starts_workers_again_and_again(
    fake: CommandBus,
) -> None:
    async def keep_up() -> None:
        while True:
            await fake.run_worker("shop")

    task = asyncio.create_task(keep_up())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await fake.stop()
    task.cancel()
    await asyncio.wait([task])


async def test_a_worker_that_is_started_after_a_stop_works(fake: CommandBus) -> None:
    await fake.stop()
    sent = await fake.send("shop", "Work", uuid4(), {})
    task = asyncio.create_task(fake.run_worker("shop"))

    async def is_done() -> bool:
        found = await fake.get_command("shop", sent)
        return found is not None and found.status is CommandStatus.COMPLETED

    await until(is_done)
    await fake.stop()
    await ended(task)

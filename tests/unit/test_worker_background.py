"""bus.worker: a worker that runs while a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, InvalidSettingError
from commandbus.errors import InvalidNameError
from commandbus.testing import fake_bus, store_of
from tests.waiting import until_status

DOMAIN = "shop"


class Floor:
    """A handler that waits at a gate, and remembers how it ended."""

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.ends: list[str] = []

    async def handle(self, command: Command, ctx: HandlerContext) -> None:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        self.ends.append("done")


@pytest.fixture
def floor() -> Floor:
    return Floor()


@pytest.fixture
def bus(floor: Floor) -> CommandBus:
    bus = fake_bus()
    bus.register_handler(DOMAIN, "Work", floor.handle)
    return bus


async def send(bus: CommandBus) -> UUID:
    return await bus.send(DOMAIN, "Work", uuid4(), {})


def breaks(bus: CommandBus) -> Callable[[], None]:
    """The worker fails when this is called: its heartbeat ends in a way that nobody expects."""
    go, store = asyncio.Event(), store_of(bus)

    async def heartbeat(*args: Any, **figures: Any) -> None:
        await go.wait()
        raise GeneratorExit("broken")

    store.heartbeat = heartbeat  # type: ignore[method-assign]
    return go.set


async def test_a_worker_works_while_the_block_runs_and_has_ended_after_it(
    bus: CommandBus, floor: Floor
) -> None:
    floor.gate.set()
    async with bus.worker(DOMAIN, concurrency=2) as worker:
        assert worker.started.is_set()
        await until_status(bus, DOMAIN, await send(bus), CommandStatus.COMPLETED)

    assert worker.finished.is_set()
    left = await send(bus)
    assert (await bus.get_command(DOMAIN, left)).status is CommandStatus.PENDING  # type: ignore[union-attr]


async def test_a_running_handler_may_finish_at_the_end_of_the_block(
    bus: CommandBus, floor: Floor
) -> None:
    async with bus.worker(DOMAIN):
        sent = await send(bus)
        await floor.begun.wait()
        asyncio.get_running_loop().call_later(0.01, floor.gate.set)

    assert floor.ends == ["done"]
    await until_status(bus, DOMAIN, sent, CommandStatus.COMPLETED)


async def test_an_error_of_the_block_stops_the_worker_and_goes_on(
    bus: CommandBus, floor: Floor
) -> None:
    floor.gate.set()
    with pytest.raises(KeyError):
        async with bus.worker(DOMAIN) as worker:
            raise KeyError("mine")
    assert worker.finished.is_set()


async def test_a_cancel_of_the_block_cancels_the_handlers_and_gives_the_leases_back(
    bus: CommandBus, floor: Floor
) -> None:
    async def serve() -> None:
        async with bus.worker(DOMAIN):
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    sent = await send(bus)
    await floor.begun.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert floor.ends == ["cancelled"]
    row = await bus.get_command(DOMAIN, sent)
    assert row is not None
    assert (row.status, row.attempts) == (CommandStatus.PENDING, 0)


async def test_a_cancel_while_the_worker_stops_cancels_the_handlers(
    bus: CommandBus, floor: Floor
) -> None:
    async def serve() -> None:
        async with bus.worker(DOMAIN):
            await floor.begun.wait()

    serving = asyncio.create_task(serve())
    await send(bus)
    await floor.begun.wait()
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert floor.ends == ["cancelled"]


async def test_the_error_of_a_worker_interrupts_the_block_and_is_raised_there(
    bus: CommandBus,
) -> None:
    break_it = breaks(bus)
    with pytest.raises(BaseExceptionGroup, match="unhandled errors") as caught:  # noqa: PT012
        async with bus.worker(DOMAIN):
            break_it()
            await asyncio.Event().wait()
    assert caught.group_contains(GeneratorExit)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_error_of_the_block_wins_over_that_of_the_worker(bus: CommandBus) -> None:
    break_it = breaks(bus)
    with pytest.raises(KeyError):  # noqa: PT012
        async with bus.worker(DOMAIN) as worker:
            break_it()
            try:
                await worker.finished.wait()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError("mine") from None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_worker_that_cannot_start_says_why_and_the_block_is_not_run(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ensure_domain(domain: str) -> None:
        raise InvalidNameError("no such place")

    monkeypatch.setattr(store_of(bus), "ensure_domain", ensure_domain)
    has_run = False
    with pytest.raises(InvalidNameError, match="no such place"):
        async with bus.worker(DOMAIN):
            has_run = True
    assert not has_run


async def test_a_block_goes_on_when_its_worker_was_stopped(bus: CommandBus) -> None:
    async with bus.worker(DOMAIN) as worker:
        await bus.stop()
        assert worker.finished.is_set()
        await asyncio.sleep(0)
    assert worker.finished.is_set()


async def test_two_workers_may_run_in_one_block(bus: CommandBus, floor: Floor) -> None:
    floor.gate.set()
    bus.register_handler("mail", "Work", floor.handle)
    async with bus.worker(DOMAIN), bus.worker("mail") as second:
        sent = await bus.send("mail", "Work", uuid4(), {})
        await until_status(bus, "mail", sent, CommandStatus.COMPLETED)
        second.stop()
        await second.finished.wait()
        await until_status(bus, DOMAIN, await send(bus), CommandStatus.COMPLETED)


def test_nonsense_is_refused_at_once(bus: CommandBus) -> None:
    with pytest.raises(InvalidSettingError):
        bus.worker(DOMAIN, concurrency=0)
    with pytest.raises(InvalidNameError):
        bus.worker("no such domain!")

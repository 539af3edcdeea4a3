"""A worker of few places leases with the commits that end its commands; on a bus in memory."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus import BatchCommand, CommandBus, Settings, new_id
from commandbus.testing import fake_bus
from commandbus.testing.memory import InMemoryStore

DOMAIN = "shop"
COUNT = 30


class Leased:
    """How many commands came with ends, and how many by receives of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.with_ends = self.alone = 0
        both, receive = InMemoryStore.settle_and_receive, InMemoryStore.receive

        async def counted_both(store: Any, *args: Any) -> Any:
            lost, leases = await both(store, *args)
            self.with_ends += len(leases)
            return lost, leases

        async def counted(store: Any, *args: Any, **options: Any) -> Any:
            leases = await receive(store, *args, **options)
            self.alone += len(leases)
            return leases

        monkeypatch.setattr(InMemoryStore, "settle_and_receive", counted_both)
        monkeypatch.setattr(InMemoryStore, "receive", counted)


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> Leased:
    return Leased(monkeypatch)


@pytest.fixture
def bus() -> CommandBus:
    return fake_bus(settings=Settings(max_prefetch=0))


async def work_off(bus: CommandBus, concurrency: int) -> None:
    @bus.handler(DOMAIN, "Work")
    async def work(command: Any, context: Any) -> None:
        """Nothing."""

    await bus.run_worker(DOMAIN, concurrency=concurrency, until_empty=True)


def some() -> list[BatchCommand]:
    return [BatchCommand("Work", new_id(), {}) for _ in range(COUNT)]


async def test_a_worker_of_two_places_leases_nearly_all_with_the_ends_of_others(
    bus: CommandBus, leased: Leased
) -> None:
    await bus.send_many(DOMAIN, some())
    await work_off(bus, 2)
    assert leased.with_ends + leased.alone == COUNT
    assert leased.alone <= COUNT / 3  # the first two, and looks at the head


async def test_a_worker_of_more_places_leases_beside_its_ends(
    bus: CommandBus, leased: Leased
) -> None:
    await bus.send_many(DOMAIN, some())
    await work_off(bus, 9)
    assert (leased.with_ends, leased.alone) == (0, COUNT)


async def test_commands_of_a_batch_end_in_commits_that_lease_nothing(
    bus: CommandBus, leased: Leased
) -> None:
    await bus.create_batch(DOMAIN, some())
    await work_off(bus, 2)
    assert (leased.with_ends, leased.alone) == (0, COUNT)

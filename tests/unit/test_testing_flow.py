"""Time and order in the tests of applications, without PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    InvalidOperationError,
    TransientCommandError,
)
from commandbus.retry import RetryPolicy
from commandbus.testing import FakeClock, fake_bus, run_until_idle
from tests.conformance.worlds import DOMAIN

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def bus(clock: FakeClock) -> CommandBus:
    return fake_bus(clock=clock)


class Seen:
    """A handler that remembers what it ran, and how many of a key ran at once."""

    def __init__(self, bus: CommandBus, *plan: Exception | None) -> None:
        self.order: list[Any] = []
        self.running: list[str] = []
        self.most_at_once = 0
        self.plan = list(plan)
        bus.register_handler(DOMAIN, "Debit", self, retry_policy=RetryPolicy(backoff_schedule=[60]))

    async def __call__(self, command: Command, ctx: HandlerContext) -> None:
        key = command.data.get("key", "")
        self.running.append(key)
        self.most_at_once = max(self.most_at_once, self.running.count(key))
        for _ in range(5):
            await asyncio.sleep(0)
        self.running.remove(key)
        self.order.append(command.data.get("n"))
        step = self.plan.pop(0) if self.plan else None
        if step is not None:
            raise step


async def _send(bus: CommandBus, n: int, **options: Any) -> UUID:
    data = {"n": n, "key": options.get("ordering_key") or str(n)}
    return await bus.send(DOMAIN, "Debit", uuid4(), data, **options)


async def _status(bus: CommandBus, command_id: UUID) -> CommandStatus:
    found = await bus.get_command(DOMAIN, command_id)
    assert found is not None
    return found.status


async def test_a_delayed_command_runs_when_the_clock_says_so(
    bus: CommandBus, clock: FakeClock
) -> None:
    seen = Seen(bus)
    await _send(bus, 1, delay=timedelta(hours=1))
    await _send(bus, 2, deliver_at=START + timedelta(hours=2))

    await run_until_idle(bus)
    assert seen.order == []

    clock.advance(3_600)
    await run_until_idle(bus)
    assert seen.order == [1]

    clock.advance_to(START + timedelta(hours=2))
    await run_until_idle(bus)
    assert seen.order == [1, 2]


async def test_skipping_waits_runs_delayed_commands_in_the_order_of_their_time(
    bus: CommandBus, clock: FakeClock
) -> None:
    seen = Seen(bus)
    for n, seconds in ((1, 300), (2, 100), (3, 200)):
        await _send(bus, n, delay=seconds)

    await run_until_idle(bus, skip_waits=True)

    assert seen.order == [2, 3, 1]
    assert clock.now() - START >= timedelta(seconds=300)


async def test_a_command_that_nobody_began_expires_when_the_clock_passes_its_time(
    bus: CommandBus, clock: FakeClock
) -> None:
    seen = Seen(bus)
    command_id = await _send(bus, 1, expires_in=60)

    clock.advance(61)

    assert await _status(bus, command_id) is CommandStatus.CANCELED
    [reply] = [reply async for reply in bus.replies(DOMAIN, wait=False)]
    assert reply.error is not None
    assert reply.error.code == "EXPIRED"
    await run_until_idle(bus)
    assert seen.order == []


async def test_an_urgent_command_runs_before_older_ones(bus: CommandBus) -> None:
    seen = Seen(bus)
    for n in range(3):
        await _send(bus, n)
    await _send(bus, 9, priority=1)

    await run_until_idle(bus, concurrency=1)

    assert seen.order == [9, 0, 1, 2]


async def test_commands_of_a_key_run_one_after_the_other(bus: CommandBus) -> None:
    seen = Seen(bus)
    for n in range(20):
        await _send(bus, n, ordering_key=f"account:{n % 3}")

    await run_until_idle(bus)

    assert seen.most_at_once == 1
    for key in range(3):
        of_key = [n for n in seen.order if n % 3 == key]
        assert of_key == sorted(of_key)
    assert len(seen.order) == 20


async def test_a_retry_holds_its_key(bus: CommandBus) -> None:
    seen = Seen(bus, TransientCommandError("BUSY", "later"))
    for n in (1, 2):
        await _send(bus, n, ordering_key="account:42")

    await run_until_idle(bus)
    assert seen.order == [1]

    await run_until_idle(bus, skip_waits=True)
    assert seen.order == [1, 1, 2]


async def test_a_paused_domain_is_idle(bus: CommandBus, clock: FakeClock) -> None:
    seen = Seen(bus)
    await _send(bus, 1)
    await bus.pause(DOMAIN, reason="the bank is down", until=timedelta(hours=1))

    await run_until_idle(bus)
    assert seen.order == []

    await run_until_idle(bus, skip_waits=True)
    assert seen.order == [1]
    assert clock.now() - START >= timedelta(hours=1)


async def test_a_paused_type_is_idle_until_it_is_resumed(bus: CommandBus) -> None:
    seen = Seen(bus)
    await _send(bus, 1)
    await bus.pause(DOMAIN, type="Debit", reason="r")

    await run_until_idle(bus, skip_waits=True)
    assert seen.order == []

    await bus.resume(DOMAIN, type="Debit")
    await run_until_idle(bus)
    assert seen.order == [1]


async def test_a_worker_that_runs_is_woken_by_the_clock(bus: CommandBus, clock: FakeClock) -> None:
    seen = Seen(bus)
    command_id = await _send(bus, 1, delay=60)
    async with bus.worker(DOMAIN):
        await asyncio.sleep(0)
        clock.advance(60)
        async with asyncio.timeout(10):
            while await _status(bus, command_id) is not CommandStatus.COMPLETED:
                await asyncio.sleep(0)

    assert seen.order == [1]


async def test_the_levels_of_a_domain_may_be_worth_more_or_nothing(
    bus: CommandBus, clock: FakeClock
) -> None:
    seen = Seen(bus)
    await bus.set_level_seconds(DOMAIN, 0, operator="ann")
    for n, priority in ((1, None), (2, 2)):
        await _send(bus, n, priority=priority)

    await run_until_idle(bus, concurrency=1)

    assert seen.order == [1, 2]


async def test_another_level_changes_the_order_of_what_waits(bus: CommandBus) -> None:
    seen = Seen(bus)
    first, second = await _send(bus, 1), await _send(bus, 2)
    await bus.set_priority(DOMAIN, second, 1, operator="ann")
    await bus.set_priority(DOMAIN, first, 0, operator="ann")

    await run_until_idle(bus, concurrency=1)

    assert seen.order == [2, 1]
    events = [event.event_type for event in await bus.get_audit_trail(DOMAIN, second)]
    assert events[:2] == ["SENT", "PRIORITY_CHANGED"]
    assert "PRIORITY_CHANGED" not in [
        event.event_type for event in await bus.get_audit_trail(DOMAIN, first)
    ]


async def test_a_limit_of_execution_needs_postgresql(bus: CommandBus) -> None:
    with pytest.raises(InvalidOperationError, match="this needs PostgreSQL"):
        await bus.limits.set(DOMAIN, type="Debit", max_running=3)

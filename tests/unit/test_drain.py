"""drain: what happened to each command, in memory; tests/integration has it on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import pytest

from commandbus import CommandBus, RetryPolicy, Snooze, TransientCommandError
from commandbus.errors import InvalidOperationError, InvalidSettingError
from commandbus.testing import drain, fake_blocking_bus, fake_bus, sent, store_of


async def fail(command, ctx):
    raise TransientCommandError("BUSY", "later")


async def test_drain_says_how_each_attempt_ended_and_skips_waits_if_asked(
    commandbus_fake: CommandBus,
) -> None:
    bus = commandbus_fake
    policy = RetryPolicy(max_attempts=2, backoff_schedule=[60])
    bus.register_handler("payments", "Debit", fail, retry_policy=policy)
    command = await bus.send("payments", "Debit", uuid4(), {})
    unknown = await bus.send("payments", "Nobody", uuid4(), {})

    first = await drain(bus)
    second = await drain(bus, skip_waits=True)

    assert {(d.command_id, d.attempt, d.outcome, d.error_code) for d in first} == {
        (command, 1, "retried", "BUSY"),
        (unknown, 1, "parked", "HANDLER_NOT_FOUND"),
    }
    assert [(d.attempt, d.outcome, d.error_message) for d in second] == [(2, "parked", "later")]
    assert await drain(bus) == []


async def test_drain_runs_what_handlers_send_to_other_domains() -> None:
    bus = fake_bus()

    async def first(command, ctx):
        ctx.send("shipping", "Ship", uuid4(), {})

    bus.register_handler("payments", "Debit", first)
    bus.register_handler("shipping", "Ship", lambda command, ctx: 7)
    await bus.send("payments", "Debit", uuid4(), {})

    assert [(d.command_type, d.result) for d in await drain(bus)] == [("Debit", None), ("Ship", 7)]


async def test_drain_names_the_handler_that_hangs() -> None:
    bus = fake_bus()

    async def never(command, ctx):
        await asyncio.Event().wait()

    bus.register_handler("payments", "Debit", never)
    await bus.send("payments", "Debit", uuid4(), {})

    with pytest.raises(TimeoutError, match=r"in 0\.2 s.*Debit of payments \(handler .*never\)"):
        await drain(bus, timeout=0.2)


def test_drain_names_a_hanging_handler_in_a_thread_too() -> None:
    release = threading.Event()

    def never(command, ctx):
        release.wait(30)

    with fake_blocking_bus() as bus:
        bus.register_handler("payments", "Debit", never)
        bus.send("payments", "Debit", uuid4(), {})
        try:
            with pytest.raises(TimeoutError, match="Debit of payments"):
                drain(bus, timeout=0.2)
        finally:
            release.set()


async def test_drain_says_which_handler_goes_on_without_end() -> None:
    bus = fake_bus()

    async def again(command, ctx):
        ctx.send("payments", "Debit", uuid4(), {})

    bus.register_handler("payments", "Debit", again)
    await bus.send("payments", "Debit", uuid4(), {})

    with pytest.raises(TimeoutError, match="Debit of payments"):
        await drain(bus, timeout=0.3)


async def test_drain_refuses_a_bus_without_handlers_unless_domains_are_named() -> None:
    bus = fake_bus()
    with pytest.raises(InvalidOperationError, match="no handlers"):
        await drain(bus)
    assert await drain(bus, "payments") == []


async def test_drain_of_a_measured_bus_measures_too() -> None:
    bus = fake_bus()
    bus.register_handler("payments", "Debit", lambda command, ctx: None)
    metrics = bus.monitor().metrics
    await bus.send("payments", "Debit", uuid4(), {})

    assert [d.outcome for d in await drain(bus)] == ["completed"]
    assert b'outcome="completed"' in metrics.text()


async def test_drain_keeps_what_a_transactional_handler_returned() -> None:
    bus = fake_bus()

    async def debit(command, ctx):
        return {"done": True}

    bus.register_handler("payments", "Debit", debit, transactional=True)
    await bus.send("payments", "Debit", uuid4(), {})

    assert [(d.outcome, d.result) for d in await drain(bus)] == [("completed", {"done": True})]


def test_a_blocking_fake_has_its_clock_and_shows_what_was_sent() -> None:
    with fake_blocking_bus() as bus:
        bus.register_handler("payments", "Debit", lambda command, ctx: Snooze(60))
        bus.send("payments", "Debit", uuid4(), {"amount": 5})
        assert [d.outcome for d in drain(bus)] == ["snoozed"]
        assert drain(bus) == []
        store_of(bus).clock.advance(60)
        assert [d.outcome for d in drain(bus)] == ["snoozed"]
        assert [each.data for each in sent(bus, "payments", "Debit")] == [{"amount": 5}]


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import commandbus.testing

    with pytest.raises(AttributeError, match="nothing"):
        _ = commandbus.testing.nothing
    assert "drain" in dir(commandbus.testing)


async def test_store_of_refuses_a_bus_on_postgresql(bus: CommandBus) -> None:
    with pytest.raises(InvalidSettingError, match="fake_bus"):
        store_of(bus)

"""Reschedule: another time, or another level, for what nobody has begun."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import CommandBus
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidInputError, InvalidOperationError
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, World, done, new, parked, retried

HOUR = 3_600.0


@pytest.fixture
def bus(store: Store) -> CommandBus:
    return CommandBus(store=store)


async def _received(world: World) -> list[UUID]:
    return [lease.command_id for lease in await world.receive(vt_seconds=6_000)]


# -- another time


@pytest.mark.parametrize("as_time", [True, False])
async def test_a_command_that_waits_gets_another_time(
    world: World, bus: CommandBus, as_time: bool
) -> None:
    command = new()
    await world.send(command)
    options: Any = (
        {"deliver_at": datetime.now(UTC) + timedelta(hours=1)} if as_time else {"delay": HOUR}
    )

    await bus.reschedule(DOMAIN, command.command_id, **options, operator="ann")

    assert await world.receive() == []
    await world.advance(HOUR + 60)
    assert await _received(world) == [command.command_id]
    trail = await world.store.get_audit_trail(command.command_id, domain=DOMAIN, limit=9)
    assert [(event.event_type, event.actor) for event in trail[:2]] == [
        ("SENT", None), ("RESCHEDULED", "ann"),
    ]  # fmt: skip
    assert set(trail[1].details or {}) == {"from", "to"}


async def test_send_now_makes_delayed_commands_due(world: World, bus: CommandBus) -> None:
    commands = [new(delay=HOUR), new(delay=2 * HOUR), new(delay=HOUR)]
    await world.send(*commands)

    await bus.send_now(DOMAIN, [command.command_id for command in commands[:2]])

    assert set(await _received(world)) == {c.command_id for c in commands[:2]}


async def test_a_time_in_the_past_is_now(world: World, bus: CommandBus) -> None:
    first, command = new(), new(delay=HOUR)
    await world.send(first, command)

    past = datetime.now(UTC) - timedelta(days=1)
    await bus.reschedule(DOMAIN, [command.command_id], deliver_at=past)

    assert [lease.command_id for lease in await world.receive(1)] == [first.command_id]
    assert await _received(world) == [command.command_id]


async def test_send_now_ends_the_wait_of_what_backs_off_and_its_attempts_stay(
    world: World, bus: CommandBus
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, HOUR))

    await bus.send_now(DOMAIN, lease.command_id)

    [again] = await world.receive()
    assert (again.command_id, again.attempt) == (lease.command_id, 2)


@pytest.mark.parametrize("state", ["leased", "parked", "completed"])
async def test_what_does_not_wait_is_refused(world: World, bus: CommandBus, state: str) -> None:
    waits = new()
    [lease] = await world.send_and_receive(new())
    await world.send(waits)
    if state == "parked":
        await world.settle(parked(lease))
    if state == "completed":
        await world.settle(done(lease))
    before = await world.dump()

    with pytest.raises(InvalidOperationError, match="only a command that is PENDING can be"):
        await bus.reschedule(DOMAIN, [waits.command_id, lease.command_id], delay=HOUR)

    assert await world.dump() == before


async def test_what_nobody_knows_is_refused(world: World, bus: CommandBus) -> None:
    waits = new()
    await world.send(waits)
    before = await world.dump()

    with pytest.raises(CommandNotFoundError):
        await bus.send_now(DOMAIN, [waits.command_id, uuid4()])

    assert await world.dump() == before


async def test_a_time_after_the_expiry_is_refused(world: World, bus: CommandBus) -> None:
    command = new(expires_in=HOUR)
    await world.send(command)
    before = await world.dump()

    with pytest.raises(InvalidOperationError, match=r"it expires at .*, before the new time"):
        await bus.reschedule(DOMAIN, command.command_id, delay=2 * HOUR)

    assert await world.dump() == before


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay": 1, "deliver_at": datetime.now(UTC)},
        {"delay": -1},
        {"delay": 1e9},
        {"deliver_at": datetime.now(UTC) + timedelta(days=400)},
        {"deliver_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    ],
)
async def test_a_time_that_cannot_be_is_refused(
    world: World, bus: CommandBus, options: Any
) -> None:
    command = new()
    await world.send(command)
    before = await world.dump()

    with pytest.raises(InvalidInputError):
        await bus.reschedule(DOMAIN, command.command_id, **options)

    assert await world.dump() == before


@pytest.mark.parametrize("ids", [[], 5, "abc", [7]])
async def test_what_is_no_id_is_refused(bus: CommandBus, ids: Any) -> None:
    with pytest.raises(InvalidInputError):
        await bus.reschedule(DOMAIN, ids, delay=1)


async def test_what_stands_behind_others_of_its_key_is_refused(
    world: World, bus: CommandBus
) -> None:
    first, second = new(ordering_key="k"), new(ordering_key="k")
    await world.send(first, second)

    with pytest.raises(InvalidOperationError, match="behind others of its ordering key"):
        await bus.send_now(DOMAIN, second.command_id)

    assert await _received(world) == [first.command_id]


async def test_what_backs_off_and_holds_its_key_can_be_sent_now(
    world: World, bus: CommandBus
) -> None:
    first, second = new(ordering_key="k"), new(ordering_key="k")
    [lease] = await world.send_and_receive(first, second)
    await world.settle(retried(lease, HOUR))

    await bus.send_now(DOMAIN, first.command_id)

    [again] = await world.receive()
    assert again.command_id == first.command_id
    await world.settle(done(again))
    assert await _received(world) == [second.command_id]


async def test_a_rescheduled_command_expires_as_before(world: World, bus: CommandBus) -> None:
    command = new(expires_in=HOUR)
    await world.send(command)
    await bus.reschedule(DOMAIN, command.command_id, delay=HOUR / 2)

    await world.advance(HOUR + 1)

    assert await world.status(command.command_id) is CommandStatus.CANCELED


async def test_what_is_rescheduled_in_a_paused_domain_is_due_after_both(
    world: World, bus: CommandBus
) -> None:
    command = new()
    await world.send(command)
    await bus.pause(DOMAIN, reason="r")
    await bus.reschedule(DOMAIN, command.command_id, delay=HOUR)

    await bus.resume(DOMAIN)
    assert await world.receive() == []
    await world.advance(HOUR)
    assert await _received(world) == [command.command_id]

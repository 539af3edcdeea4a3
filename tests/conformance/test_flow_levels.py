"""Levels: a higher priority goes first, and a lower one that has waited for long enough."""

from typing import Any
from uuid import UUID

import pytest

from commandbus.database.store import Store
from commandbus.errors import InvalidOperationError
from tests.conformance.worlds import (
    DOMAIN,
    World,
    done,
    new,
    parked,
    released,
    retried,
)


async def _one_by_one(world: World) -> list[UUID]:
    """What is due, in the order in which it is received; a group has none of its own."""
    found = []
    while leases := await world.receive(1, vt_seconds=6_000):
        found += [lease.command_id for lease in leases]
    return found


async def test_with_all_due_at_once_the_highest_level_goes_first(world: World) -> None:
    commands = {level: new(priority=level) for level in (-1, 2, 0, -2, 1)}
    await world.send(*commands.values())

    assert await _one_by_one(world) == [commands[n].command_id for n in (2, 1, 0, -1, -2)]


async def test_commands_of_one_level_come_in_the_order_of_sending(world: World) -> None:
    commands = [new(priority=1) for _ in range(5)]
    await world.send(*commands[:2])
    await world.send(*commands[2:])

    assert await _one_by_one(world) == [command.command_id for command in commands]


async def test_a_group_is_filled_from_the_highest_level(world: World) -> None:
    low, normal, high = [new(priority=-1)], [new() for _ in range(3)], [new(priority=1)]
    await world.send(*low, *normal, *high)

    leases = await world.receive(2)

    assert {lease.command_id for lease in leases} == {high[0].command_id, normal[0].command_id}


@pytest.mark.parametrize(
    ("level", "seconds", "is_first"),
    [(1, 50, False), (1, 70, True), (2, 110, False), (2, 130, True)],
)
async def test_a_level_is_worth_a_minute_of_waiting(
    world: World, level: int, seconds: float, is_first: bool
) -> None:
    old, young = new(), new(priority=level)
    await world.send(old)
    await world.advance(seconds)
    await world.send(young)

    order = [old.command_id, young.command_id]
    assert await _one_by_one(world) == (order if is_first else order[::-1])


async def test_the_lowest_level_waits_four_minutes_for_the_highest_and_no_longer(
    world: World,
) -> None:
    low = new(priority=-2)
    await world.send(low)
    await world.advance(230)
    await world.send(urgent := new(priority=2))
    [lease] = await world.receive(1)
    assert lease.command_id == urgent.command_id

    await world.advance(20)
    await world.send(new(priority=2))
    [lease] = await world.receive(1)

    assert lease.command_id == low.command_id


async def test_a_level_counts_from_the_time_that_a_delayed_command_is_due(world: World) -> None:
    delayed, normal = new(priority=-1, delay=600), new()
    await world.send(delayed)
    await world.advance(590)
    await world.send(normal)
    await world.advance(40)

    # Due for 30 seconds, and worth one minute less.
    assert await _one_by_one(world) == [normal.command_id, delayed.command_id]


@pytest.mark.parametrize("give_back", [released, lambda lease: retried(lease, 0)])
async def test_what_goes_back_keeps_its_level(world: World, give_back: Any) -> None:
    [lease] = await world.send_and_receive(new(priority=1))
    await world.send(other := new())

    await world.settle(give_back(lease))

    assert await _one_by_one(world) == [lease.command_id, other.command_id]


async def test_what_an_operator_sends_again_keeps_its_level(world: World, store: Store) -> None:
    command = new(priority=2)
    await world.park(command)
    await world.send(other := new(priority=1))

    await store.operator_retry(DOMAIN, [command.command_id], actor="ann", reset_attempts=True)

    assert await _one_by_one(world) == [command.command_id, other.command_id]


async def test_what_its_worker_lost_keeps_its_level(world: World) -> None:
    low, other = new(priority=-1), new()
    await world.send_and_receive(low, vt_seconds=30)
    await world.send(other)
    await world.advance(31)

    assert await _one_by_one(world) == [other.command_id, low.command_id]


async def test_low_levels_at_the_head_of_the_queue_wait_for_their_level(world: World) -> None:
    low, normal = new(priority=-1), new()
    await world.send(low, normal)

    [lease] = await world.receive(1, from_head=True)

    assert lease.command_id == normal.command_id


async def test_types_that_are_left_out_are_left_out_of_every_level(world: World) -> None:
    mine, others = new("Credit"), new("Debit", priority=2)
    await world.send(others, mine)

    [lease] = await world.receive(except_types=["Debit"])

    assert lease.command_id == mine.command_id


async def test_a_level_says_nothing_about_how_a_command_ends(world: World) -> None:
    batch_id = await world.create_batch(new(priority=2), new(priority=-2), new())

    leases = await world.receive()
    await world.settle(*[done(lease) for lease in leases[:2]], parked(leases[2]))

    assert await world.counters(batch_id) == ("IN_PROGRESS", 3, 2, 0, 0, 1)


# -- another level


async def test_a_command_that_waits_gets_another_level(world: World, store: Store) -> None:
    commands = [new(), new(priority=1), new()]
    await world.send(*commands)
    first, second, third = (command.command_id for command in commands)

    await store.set_priority(DOMAIN, [third], 2, actor="ann")
    await store.set_priority(DOMAIN, [first, second], 0, actor="ann")

    assert await _one_by_one(world) == [third, first, second]
    assert await world.details(third, "PRIORITY_CHANGED") == [{"from": 0, "to": 2}]
    assert await world.details(second, "PRIORITY_CHANGED") == [{"from": 1, "to": 0}]
    assert await world.details(first, "PRIORITY_CHANGED") == []  # it has not changed


async def test_what_does_not_wait_keeps_its_level(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())
    await world.send(waits := new())
    before = await world.dump()

    with pytest.raises(
        InvalidOperationError, match=f"cannot prioritize command {lease.command_id}"
    ):
        await store.set_priority(DOMAIN, [waits.command_id, lease.command_id], 1, actor="ann")

    assert await world.dump() == before


async def test_a_domain_says_what_a_level_is_worth(world: World, store: Store) -> None:
    await store.set_level_seconds(DOMAIN, 600, actor="ann")
    old, young = new(), new(priority=1)
    await world.send(old)
    await world.advance(500)
    await world.send(young)

    assert await _one_by_one(world) == [young.command_id, old.command_id]


async def test_levels_that_are_worth_nothing_are_ignored(world: World, store: Store) -> None:
    await store.set_level_seconds(DOMAIN, 0, actor="ann")
    first, urgent = new(), new(priority=2)
    await world.send(first)
    await world.send(urgent)

    assert await _one_by_one(world) == [first.command_id, urgent.command_id]

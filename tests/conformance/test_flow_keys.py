"""Ordering keys: commands of one key run one after the other, those of different keys at once."""

from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import CommandBus
from commandbus.database.model import Lease, OutgoingCommands
from commandbus.database.store import Store
from commandbus.errors import DuplicateCommandError
from commandbus.models import CommandStatus, NewCommand
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried


def keyed(key: str = "account:42", command_type: str = "Debit", **options: Any) -> NewCommand:
    return new(command_type, ordering_key=key, **options)


async def _received(world: World) -> list[UUID]:
    return [lease.command_id for lease in await world.receive(vt_seconds=6_000)]


async def _run_all(world: World) -> list[UUID]:
    """Receive and complete until nothing is due; returns the order."""
    found = []
    while leases := await world.receive():
        await world.settle(*(done(lease) for lease in leases))
        found += [lease.command_id for lease in leases]
    return found


async def _one_and_its_followers(world: World, followers: int = 1) -> tuple[Lease, list[UUID]]:
    """The first of a key, leased, and the ids of those behind it."""
    commands = [keyed() for _ in range(followers + 1)]
    [lease] = await world.send_and_receive(*commands)
    assert lease.command_id == commands[0].command_id
    return lease, [command.command_id for command in commands[1:]]


# -- one after the other


@pytest.mark.parametrize("at_once", [True, False])
async def test_commands_of_one_key_run_in_the_order_of_sending(world: World, at_once: bool) -> None:
    commands = [keyed() for _ in range(4)]
    if at_once:
        await world.send(*commands)
    else:
        for command in commands:
            await world.send(command)

    for command in commands:
        [lease] = await world.receive()
        assert lease.command_id == command.command_id
        assert await world.receive() == []
        await world.settle(done(lease))
    assert await world.receive() == []


async def test_a_key_holds_for_all_types_of_its_domain(world: World) -> None:
    debit, credit = keyed(command_type="Debit"), keyed(command_type="Credit")
    await world.send(debit, credit)

    assert await _received(world) == [debit.command_id]


async def test_a_key_says_nothing_in_another_domain(world: World, store: Store) -> None:
    here, there = keyed(), keyed()
    await world.send(here)
    await store.send("shipping", [there])

    [lease] = await store.receive("shipping", vt_seconds=30, quantity=9, worker="w", limits={})

    assert lease.command_id == there.command_id
    assert await _received(world) == [here.command_id]


async def test_different_keys_and_commands_without_one_run_at_once(world: World) -> None:
    first = [keyed("a"), keyed("b"), new()]
    second = [keyed("a"), keyed("b"), new()]
    await world.send(*first, *second)

    assert set(await _received(world)) == {
        *(command.command_id for command in first), second[2].command_id,
    }  # fmt: skip


async def test_a_key_that_nobody_waits_for_is_as_good_as_new(world: World) -> None:
    assert len(await _run_all_of(world, keyed(), keyed())) == 2
    again = keyed()

    assert await _run_all_of(world, again) == [again.command_id]


async def _run_all_of(world: World, *commands: NewCommand) -> list[UUID]:
    await world.send(*commands)
    return await _run_all(world)


async def test_one_key_that_stands_still_holds_up_no_other(world: World) -> None:
    [lease] = await world.send_and_receive(keyed("stuck"))
    await world.send(*(keyed("stuck") for _ in range(5)), *(keyed("other") for _ in range(3)))
    await world.settle(parked(lease))

    assert len(await _run_all(world)) == 3


async def test_a_command_says_that_it_waits_behind_others_of_its_key(world: World) -> None:
    lease, [follower] = await _one_and_its_followers(world)

    row = await world.command(follower)
    assert (row.status, row.due_at) == (CommandStatus.PENDING, None)
    assert row.ordering_key == "account:42"
    assert row.waiting_for == f"number 1 behind {lease.command_id} of key account:42"

    await world.settle(done(lease))
    assert (await world.command(follower)).waiting_for is None


# -- what holds a key


@pytest.mark.parametrize("give_back", [retried, released])
async def test_what_goes_back_keeps_its_place(world: World, give_back: Any) -> None:
    lease, [follower] = await _one_and_its_followers(world)

    await world.settle(give_back(lease))
    assert follower not in await _received(world)

    await world.advance(10_000)
    assert await _run_all(world) == [lease.command_id, follower]


async def test_what_its_worker_lost_keeps_its_place(world: World) -> None:
    lease, [follower] = await _one_and_its_followers(world)

    await world.lapse()

    [again] = await world.receive()
    assert (again.command_id, again.lease_epoch) == (lease.command_id, 2)
    # The result of the worker that came late changes nothing, and lets nobody go.
    assert await world.settle(done(lease)) == {lease.command_id}
    assert await world.receive() == []
    await world.settle(done(again))
    assert await _received(world) == [follower]


@pytest.mark.parametrize("ending", [done, failed])
async def test_what_ends_lets_the_next_one_go(world: World, ending: Any) -> None:
    lease, followers = await _one_and_its_followers(world, 2)

    await world.settle(ending(lease))

    assert await _run_all(world) == followers


async def test_what_expires_lets_the_next_one_go(world: World) -> None:
    first, second = keyed(expires_in=60), keyed()
    await world.send(first, second)

    await world.advance(61)

    assert await world.status(first.command_id) is CommandStatus.CANCELED
    assert await _received(world) == [second.command_id]


async def test_what_expires_behind_others_leaves_the_row(world: World) -> None:
    lease, _ = await _one_and_its_followers(world, 0)
    gone, stays = keyed(expires_in=60), keyed()
    await world.send(gone, stays)

    await world.advance(20)
    await world.store.extend(DOMAIN, [lease], 600)
    await world.advance(50)
    await world.settle(done(lease))

    assert await world.status(gone.command_id) is CommandStatus.CANCELED
    assert await _run_all(world) == [stays.command_id]


async def test_what_is_canceled_while_it_is_first_lets_the_next_one_go(
    world: World, store: Store
) -> None:
    first, second = keyed(), keyed()
    await world.send(first, second)

    await store.cancel(DOMAIN, [first.command_id], reason="r", actor="ann")

    assert await _received(world) == [second.command_id]


async def test_what_is_canceled_behind_others_leaves_the_row(world: World, store: Store) -> None:
    lease, [gone, stays] = await _one_and_its_followers(world, 2)

    await store.cancel(DOMAIN, [gone], reason="r", actor="ann")
    assert await world.receive() == []
    await world.settle(done(lease))

    assert await _run_all(world) == [stays]


async def test_two_ends_in_one_call_let_one_go(world: World, store: Store) -> None:
    commands = [keyed() for _ in range(4)]
    await world.send(*commands)
    ids = [command.command_id for command in commands]

    await store.cancel(DOMAIN, ids[:2], reason="r", actor="ann")

    assert await _received(world) == [ids[2]]


# -- what is parked


async def test_a_parked_command_blocks_its_key(world: World) -> None:
    lease, _ = await _one_and_its_followers(world, 2)

    await world.settle(parked(lease))
    await world.send(keyed())

    await world.advance(10_000)
    assert await world.receive() == []


async def test_what_is_parked_by_a_receive_blocks_its_key_too(world: World) -> None:
    lease, _ = await _one_and_its_followers(world)
    await world.settle(retried(lease, 0))

    assert await world.receive(limits={"Debit": 1}) == []

    assert await world.status(lease.command_id) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert await world.receive() == []


async def test_the_retry_of_what_blocks_a_key_is_first_again(world: World, store: Store) -> None:
    lease, followers = await _one_and_its_followers(world, 2)
    await world.settle(parked(lease))

    await store.operator_retry(DOMAIN, [lease.command_id], actor="ann", reset_attempts=True)

    assert await _run_all(world) == [lease.command_id, *followers]


async def test_what_blocks_a_key_can_be_canceled_or_completed(world: World, store: Store) -> None:
    lease, followers = await _one_and_its_followers(world, 2)
    await world.settle(parked(lease))
    await store.operator_cancel(DOMAIN, [lease.command_id], reason="r", actor="ann")

    [lease] = await world.receive()
    assert lease.command_id == followers[0]
    await world.settle(parked(lease))
    await store.operator_complete(DOMAIN, [lease.command_id], result=b"null", actor="ann")

    assert await _received(world) == [followers[1]]


async def test_where_parked_commands_are_stepped_over_the_next_one_goes(
    world: World, store: Store
) -> None:
    keys = CommandBus(store=store).keys
    assert await keys.get_policy(DOMAIN) == "block"
    await keys.set_policy(DOMAIN, "skip", operator="ann")
    assert await keys.get_policy(DOMAIN) == "skip"
    lease, followers = await _one_and_its_followers(world, 2)

    await world.settle(parked(lease))
    [second] = await world.receive()
    assert second.command_id == followers[0]

    # It has lost its place: its retry goes to the end.
    await store.operator_retry(DOMAIN, [lease.command_id], actor="ann", reset_attempts=True)
    await world.settle(done(second))
    assert await _run_all(world) == [followers[1], lease.command_id]


async def test_keys_that_are_blocked_go_on_once_parked_commands_are_stepped_over(
    world: World, store: Store
) -> None:
    lease, followers = await _one_and_its_followers(world, 2)
    await world.settle(parked(lease))
    assert await world.receive() == []

    await CommandBus(store=store).keys.set_policy(DOMAIN, "skip")

    assert await _run_all(world) == followers
    assert await world.status(lease.command_id) is CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def test_a_failed_command_that_is_retried_with_its_batch_goes_to_the_end(
    world: World, store: Store
) -> None:
    first, second = keyed(), keyed()
    batch_id = await world.create_batch(first)
    [lease] = await world.receive()
    await world.settle(failed(lease))
    await world.send(second)

    assert await store.retry_batch(DOMAIN, batch_id, actor="ann") == 1

    assert await _run_all(world) == [second.command_id, first.command_id]


# -- sending


async def test_a_batch_keeps_the_order_of_its_keys(world: World) -> None:
    commands = [keyed(f"k{n % 2}") for n in range(6)]
    await world.create_batch(*commands)

    order = await _run_all(world)

    ids = [command.command_id for command in commands]
    assert [i for i in order if i in ids[::2]] == ids[::2]
    assert [i for i in order if i in ids[1::2]] == ids[1::2]


async def test_what_a_handler_sends_to_its_own_key_comes_after_those_that_wait(
    world: World,
) -> None:
    lease, followers = await _one_and_its_followers(world)
    follower = keyed()

    await world.settle(done(lease, None, OutgoingCommands(DOMAIN, (follower,))))

    assert await _run_all(world) == [*followers, follower.command_id]


async def test_a_send_that_is_refused_leaves_nothing_in_its_key(world: World) -> None:
    known = new()
    await world.send(known)
    with pytest.raises(DuplicateCommandError):
        await world.send(keyed(), new(command_id=known.command_id))

    command = keyed()
    await world.send(command)

    assert command.command_id in await _received(world)


async def test_a_transaction_that_is_rolled_back_leaves_nothing_in_its_key(
    world: World, store: Store
) -> None:
    await store.ensure_domain(DOMAIN)
    with suppress(ZeroDivisionError):
        async with store.transaction() as transaction:
            await store.send(DOMAIN, [keyed()], conn=transaction.conn)
            _ = 1 / 0

    command = keyed()
    await world.send(command)

    assert await _received(world) == [command.command_id]


async def test_a_transaction_settles_and_sends_within_one_key(world: World, store: Store) -> None:
    lease, followers = await _one_and_its_followers(world)
    command = keyed()

    async with store.transaction() as transaction:
        await store.send(DOMAIN, [command], conn=transaction.conn)
        assert await transaction.settle(DOMAIN, [done(lease)]) == set()
        assert await world.receive() == []

    assert await _run_all(world) == [*followers, command.command_id]


async def test_keys_are_compared_as_they_are(world: World) -> None:
    keys = ["a", "A", "a ", "ä", "a" * 200, "'; drop table x; --", "%", "k:a"]
    await world.send(*(keyed(key) for key in keys))

    assert len(await world.receive()) == len(keys)


async def test_a_level_does_not_change_the_order_of_a_key(world: World) -> None:
    commands = [keyed(priority=level) for level in (-2, 2, 0, 1)]
    await world.send(*commands)

    assert await _run_all(world) == [command.command_id for command in commands]


async def test_one_id_may_be_sent_again_in_another_domain_with_the_same_key(
    world: World, store: Store
) -> None:
    command_id = uuid4()
    await world.send(keyed(command_id=command_id))
    await store.send("shipping", [keyed(command_id=command_id)])

    [lease] = await store.receive("shipping", vt_seconds=30, quantity=9, worker="w", limits={})
    await store.settle("shipping", [done(lease)])

    assert await _received(world) == [command_id]

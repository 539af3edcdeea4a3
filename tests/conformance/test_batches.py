"""Batches: counters follow every move, and the last end closes the batch."""

from uuid import UUID

import pytest

from commandbus.database.store import Store
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried


async def _stages(
    world: World, *, mark_in_progress: bool
) -> list[tuple[str, int, int, int, int, int]]:
    """Every move that a command of a batch can make; returns the counters after each."""
    store = world.store
    batch_id = await world.add_batch()
    seen = []

    async def look() -> None:
        seen.append(await world.counters(batch_id))

    commands = [new() for _ in range(9)]
    ids = [command.command_id for command in commands]
    await world.send(*commands, batch_id=batch_id)
    await look()
    await store.cancel(DOMAIN, ids[8:], reason="r", actor=None)
    await look()
    leases = await world.receive(8, mark_in_progress=mark_in_progress)
    await look()
    by_id = {lease.command_id: lease for lease in leases}
    await world.settle(done(by_id[ids[0]]), failed(by_id[ids[1]]))
    await look()
    await world.settle(retried(by_id[ids[2]], 0), released(by_id[ids[3]]))
    await look()
    await world.settle(*(parked(by_id[command_id]) for command_id in ids[4:7]))
    await look()
    await store.operator_retry(DOMAIN, ids[4:5], actor=None, reset_attempts=True)
    await look()
    await store.operator_cancel(DOMAIN, ids[5:6], reason="r", actor=None)
    await look()
    await store.operator_complete(DOMAIN, ids[6:7], result=b"1", actor=None)
    await look()
    again = await world.receive(3, mark_in_progress=mark_in_progress)
    assert {lease.command_id for lease in again} == set(ids[2:5])
    await world.settle(*(done(lease) for lease in again))
    await look()
    await world.settle(done(by_id[ids[7]]))
    await look()
    assert await world.settle(done(by_id[ids[7]])) == set()
    await look()
    return seen


@pytest.mark.parametrize("mark_in_progress", [True, False])
async def test_counters_follow_every_move_whether_marked_or_not(
    world: World, mark_in_progress: bool
) -> None:
    # status, total, completed, failed, canceled, in troubleshooting
    assert await _stages(world, mark_in_progress=mark_in_progress) == [
        ("PENDING", 9, 0, 0, 0, 0),
        ("PENDING", 9, 0, 0, 1, 0),
        ("IN_PROGRESS", 9, 0, 0, 1, 0),
        ("IN_PROGRESS", 9, 1, 1, 1, 0),
        ("IN_PROGRESS", 9, 1, 1, 1, 0),
        ("IN_PROGRESS", 9, 1, 1, 1, 3),
        ("IN_PROGRESS", 9, 1, 1, 1, 2),
        ("IN_PROGRESS", 9, 1, 1, 2, 1),
        ("IN_PROGRESS", 9, 2, 1, 2, 0),
        ("IN_PROGRESS", 9, 5, 1, 2, 0),
        ("COMPLETED_WITH_FAILURES", 9, 6, 1, 2, 0),
        ("COMPLETED_WITH_FAILURES", 9, 6, 1, 2, 0),
    ]


async def test_a_batch_starts_with_the_first_receive_and_only_once(world: World) -> None:
    batch_id = await world.add_batch()
    await world.send(new(), new(), batch_id=batch_id)
    assert (await world.batch(batch_id)).started_at is None

    await world.receive(1)
    started_at = (await world.batch(batch_id)).started_at
    await world.receive(1)

    assert started_at is not None
    assert (await world.batch(batch_id)).started_at == started_at
    assert await world.events(batch_id) == ["BATCH_STARTED"]
    assert await world.details(batch_id, "BATCH_STARTED") == [None]


async def test_a_batch_without_failures_is_completed(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    leases = await world.send_and_receive(new(), new(), batch_id=batch_id)
    await world.settle(*(done(lease) for lease in leases))

    batch = await world.batch(batch_id)
    assert await world.counters(batch_id) == ("COMPLETED", 2, 2, 0, 0, 0)
    assert batch.completed_at is not None
    assert (batch.name, batch.custom_data, batch.domain) == ("b", {"n": 1}, DOMAIN)
    assert await world.events(batch_id) == ["BATCH_STARTED", "BATCH_COMPLETED"]
    trail = await store.get_audit_trail(batch_id, domain=DOMAIN, limit=9)
    assert {event.batch_id for event in trail} == {batch_id}
    assert trail[-1].details == {
        "status": "COMPLETED", "total": 2, "completed": 2, "failed": 0, "canceled": 0,
    }  # fmt: skip


async def test_a_batch_whose_commands_are_all_canceled_is_closed_without_a_start(
    world: World, store: Store
) -> None:
    batch_id = await world.add_batch()
    command = new()
    await world.send(command, batch_id=batch_id)
    await store.cancel(DOMAIN, [command.command_id], reason="r", actor=None)

    batch = await world.batch(batch_id)
    assert await world.counters(batch_id) == ("COMPLETED_WITH_FAILURES", 1, 0, 0, 1, 0)
    assert batch.started_at == batch.completed_at
    assert await world.events(batch_id) == ["BATCH_COMPLETED"]


async def test_a_parked_command_holds_its_batch_open(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    command = new()
    await world.park(command, batch_id=batch_id)
    assert await world.counters(batch_id) == ("IN_PROGRESS", 1, 0, 0, 0, 1)

    await store.operator_complete(DOMAIN, [command.command_id], result=b"null", actor=None)

    assert await world.counters(batch_id) == ("COMPLETED", 1, 1, 0, 0, 0)


async def test_a_command_parked_for_its_lapses_is_counted_too(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    await world.send_and_receive(new(max_attempts=1), batch_id=batch_id)
    await world.lapse()
    [suspect] = await world.receive()
    await store.confirm_start(suspect)
    await world.lapse()
    await world.receive()

    assert await world.counters(batch_id) == ("IN_PROGRESS", 1, 0, 0, 0, 1)


async def test_stale_results_are_not_counted(world: World) -> None:
    batch_id = await world.add_batch()
    [late] = await world.send_and_receive(new(), batch_id=batch_id)
    await world.lapse()
    [lease] = await world.receive()

    await world.settle(done(late), failed(late))
    assert await world.counters(batch_id) == ("IN_PROGRESS", 1, 0, 0, 0, 0)
    await world.settle(done(lease))
    await world.settle(done(late))

    assert await world.counters(batch_id) == ("COMPLETED", 1, 1, 0, 0, 0)
    assert await world.events(batch_id) == ["BATCH_STARTED", "BATCH_COMPLETED"]


async def test_one_group_may_finish_several_batches(world: World) -> None:
    batches = [await world.add_batch() for _ in range(3)]
    for batch_id in batches:
        await world.send(new(), new(), batch_id=batch_id)
    await world.send(new())
    leases = await world.receive()

    await world.settle(*(done(lease) for lease in leases))

    for batch_id in batches:
        assert await world.counters(batch_id) == ("COMPLETED", 2, 2, 0, 0, 0)


async def test_further_commands_join_an_open_batch(world: World) -> None:
    batch_id = await world.add_batch()
    await world.send(new(), batch_id=batch_id)
    [lease] = await world.receive()
    await world.send(new(), new(), batch_id=batch_id)
    await world.settle(done(lease))

    assert await world.counters(batch_id) == ("IN_PROGRESS", 3, 1, 0, 0, 0)


async def test_events_of_a_command_carry_its_batch(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    command = new()
    await world.park(command, batch_id=batch_id)
    await store.operator_cancel(DOMAIN, [command.command_id], reason="r", actor=None)

    trail = await store.get_audit_trail(command.command_id, domain=DOMAIN, limit=9)
    assert {event.batch_id for event in trail} == {batch_id}


async def test_a_batch_belongs_to_its_domain(world: World, store: Store) -> None:
    batch_id = await world.add_batch()

    assert await store.get_batch("shipping", batch_id) is None
    assert await store.get_batch(DOMAIN, UUID(int=7)) is None

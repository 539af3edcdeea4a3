"""Batches are created whole or not at all, listed in their order, and belong to one domain."""

from contextlib import suppress
from uuid import UUID, uuid4

import pytest

from commandbus.database.store import Store
from commandbus.errors import (
    BatchNotFoundError,
    DatabaseError,
    DuplicateCommandError,
    InvalidNameError,
)
from commandbus.models import CommandStatus
from tests.conformance.batching import CLOSING, ended, ids
from tests.conformance.worlds import (
    DOMAIN,
    World,
    done,
    failed,
    new,
    new_batch,
    parked,
)

# -- creating


async def test_a_batch_is_created_with_its_commands_in_their_order(
    world: World, store: Store
) -> None:
    commands = [new(data={"n": n}) for n in range(5)]
    batch_id = await world.create_batch(*commands, created_by="ann")

    batch = await world.batch(batch_id)
    assert (batch.name, batch.custom_data, batch.started_at) == ("b", {"n": 1}, None)
    assert await world.counters(batch_id) == ("PENDING", 5, 0, 0, 0, 0)
    assert await world.members(batch_id) == ids(commands)
    assert await world.events(batch_id) == []
    for command in commands:
        [sent] = await store.get_audit_trail(command.command_id, domain=DOMAIN, limit=9)
        assert (sent.event_type, sent.actor, sent.batch_id) == ("SENT", "ann", batch_id)
    assert [lease.command_id for lease in await world.receive()] == ids(commands)


@pytest.mark.parametrize("place", [0, 2])
async def test_an_id_that_was_sent_before_leaves_nothing_of_the_batch(
    world: World, store: Store, place: int
) -> None:
    known, batch = new(), new_batch(on_complete=CLOSING)
    await world.send(known)
    before = await world.dump()
    commands = [new(), new()]
    commands.insert(place, new(command_id=known.command_id))

    with pytest.raises(DuplicateCommandError) as refused:
        await store.create_batch(batch, commands)

    assert refused.value.command_ids == (known.command_id,)
    assert await world.dump() == before
    assert await store.get_batch(DOMAIN, batch.batch_id) is None
    assert [await world.events(i) for i in ids(commands) if i != known.command_id] == [[], []]


async def test_an_id_that_stands_twice_leaves_nothing_of_the_batch(
    world: World, store: Store
) -> None:
    twice, batch = new(), new_batch()
    await world.send(new())
    before = await world.dump()

    with pytest.raises(DuplicateCommandError) as refused:
        await store.create_batch(batch, [new(), twice, new(), twice])

    assert refused.value.command_ids == (twice.command_id,)
    assert await world.dump() == before
    await store.create_batch(batch, [twice])


async def test_ids_may_have_to_be_unique_in_all_domains(world: World, store: Store) -> None:
    known, other = new(), new()
    await store.send("shipping", [known])
    await world.make_ids_global()

    with pytest.raises(DuplicateCommandError) as refused:
        await world.create_batch(other, known)

    assert refused.value.command_ids == (known.command_id,)
    await world.create_batch(other)


async def test_a_batch_joins_a_transaction(world: World, store: Store) -> None:
    known, lost, kept = new(), new_batch(), new_batch()
    await world.send(known)

    with suppress(ZeroDivisionError):
        async with store.transaction() as transaction:
            await store.create_batch(lost, [new()], conn=transaction.conn)
            _ = 1 / 0
    async with store.transaction() as transaction:
        with pytest.raises(DuplicateCommandError):
            await store.create_batch(new_batch(), [new(), known], conn=transaction.conn)
        await store.create_batch(kept, [new()], conn=transaction.conn)
        assert await store.get_batch(DOMAIN, kept.batch_id) is None

    assert await store.get_batch(DOMAIN, lost.batch_id) is None
    listed = await store.list_batches(DOMAIN, status=None, limit=9, offset=0)
    assert [batch.batch_id for batch in listed] == [kept.batch_id]
    assert await world.counters(kept.batch_id) == ("PENDING", 1, 0, 0, 0, 0)


async def test_what_is_no_batch_is_refused(world: World, store: Store) -> None:
    batch_id = await world.create_batch(new())
    before = await world.dump()

    with pytest.raises(InvalidNameError):
        await store.create_batch(new_batch(domain="Not A Domain"), [new()])
    with pytest.raises(DatabaseError):
        await store.create_batch(new_batch(batch_id), [new()])

    assert await world.dump() == before


# -- listing


async def test_batches_are_listed_newest_first_by_status_and_page(
    world: World, store: Store
) -> None:
    async def listed(status: str | None = None, limit: int = 9, offset: int = 0) -> list[UUID]:
        page = await store.list_batches(DOMAIN, status=status, limit=limit, offset=offset)
        return [batch.batch_id for batch in page]

    completed, _ = await ended(world, done)
    with_failures, _ = await ended(world, failed)
    begun, _ = await ended(world, parked, done)
    waiting = [await world.create_batch(new()) for _ in range(2)]
    await world.create_batch(new(), domain="shipping")

    assert await listed() == [*reversed(waiting), begun, with_failures, completed]
    assert await listed(limit=2, offset=1) == [waiting[0], begun]
    assert await listed(offset=5) == []
    assert await listed("PENDING") == [*reversed(waiting)]
    assert await listed("PENDING", 1, 1) == waiting[:1]
    assert await listed("IN_PROGRESS") == [begun]
    assert await listed("COMPLETED") == [completed]
    assert await listed("COMPLETED_WITH_FAILURES") == [with_failures]
    [first, *_] = await store.list_batches(DOMAIN, status=None, limit=9, offset=0)
    assert first == await store.get_batch(DOMAIN, waiting[1])


async def test_commands_of_a_batch_are_listed_in_order_by_status_and_page(
    world: World, store: Store
) -> None:
    batch_id, members = await ended(world, done, failed, parked, done)
    joined = [new(), new()]
    await world.send(joined[0], batch_id=batch_id)
    await world.send(joined[1], batch_id=batch_id)
    await world.create_batch(new())

    assert await world.members(batch_id) == [*members, *ids(joined)]
    assert await world.members(batch_id, limit=2, offset=3) == [members[3], ids(joined)[0]]
    for status, expected in {
        CommandStatus.COMPLETED: [members[0], members[3]],
        CommandStatus.FAILED: members[1:2],
        CommandStatus.IN_TROUBLESHOOTING_QUEUE: members[2:3],
        CommandStatus.PENDING: ids(joined),
        CommandStatus.CANCELED: [],
    }.items():
        assert await world.members(batch_id, status=status) == expected
    assert await world.members(batch_id, status=CommandStatus.COMPLETED, limit=1, offset=1) == [
        members[3]
    ]
    [row, *_] = await store.list_batch_commands(DOMAIN, batch_id, status=None, limit=1, offset=0)
    assert row == await store.get_command(DOMAIN, members[0])


# -- whose batch it is


async def test_a_batch_of_another_domain_is_not_found(world: World, store: Store) -> None:
    batch_id = await world.create_batch(new())
    await store.ensure_domain("shipping")
    before = await world.dump()

    for domain, asked in (("shipping", batch_id), (DOMAIN, uuid4())):
        assert await store.get_batch(domain, asked) is None
        assert await world.members(asked, domain=domain) == []
        for verb in (
            store.cancel_batch(domain, asked, reason="r", actor=None),
            store.retry_batch(domain, asked, actor=None),
            store.send(domain, [new()], batch_id=asked),
        ):
            with pytest.raises(BatchNotFoundError) as refused:
                await verb
            assert (refused.value.domain, refused.value.batch_id) == (domain, asked)
    assert await store.list_batches("shipping", status=None, limit=9, offset=0) == []

    assert await world.dump() == before

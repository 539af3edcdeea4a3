"""transaction: the work of a handler and its own outcome, together or not at all."""

from uuid import UUID

import pytest

from commandbus.batches.callbacks import _SETTLED
from commandbus.database.model import NewBatch, OutgoingCommands
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, DuplicateCommandError
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, PostgresWorld, World, done, new, new_batch, parked


class BoomError(Exception):
    pass


async def test_an_outcome_counts_once_the_transaction_is_over(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())
    following = new()
    outcome = done(lease, {"ok": True}, OutgoingCommands(DOMAIN, (following,)))

    async with store.transaction() as transaction:
        assert await transaction.settle(DOMAIN, [outcome]) == set()
        assert await world.status(lease.command_id) is CommandStatus.IN_PROGRESS
        assert await world.receive() == []

    assert await world.status(lease.command_id) is CommandStatus.COMPLETED
    assert [held.command_id for held in await world.receive()] == [following.command_id]
    assert len(await world.replies()) == 1


async def test_an_error_takes_everything_back(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    [lease] = await world.send_and_receive(new(), batch_id=batch_id)
    waiting = new()
    await world.send(waiting)
    before = await world.dump()

    with pytest.raises(BoomError):  # noqa: PT012  (the block is the transaction)
        async with store.transaction() as transaction:
            await store.send(DOMAIN, [new()], batch_id=batch_id, conn=transaction.conn)
            await store.cancel(
                DOMAIN, [waiting.command_id], reason="r", actor=None, conn=transaction.conn
            )
            await transaction.settle(DOMAIN, [parked(lease)])
            raise BoomError

    assert await world.dump() == before


async def test_a_lost_lease_is_known_within_the_transaction(world: World, store: Store) -> None:
    [late] = await world.send_and_receive(new())
    await world.lapse()
    await world.receive()
    before = await world.dump()

    with pytest.raises(BoomError):  # noqa: PT012  (the block is the transaction)
        async with store.transaction() as transaction:
            assert await transaction.settle(DOMAIN, [done(late)]) == {late.command_id}
            raise BoomError

    assert await world.dump() == before


async def test_what_is_sent_on_the_connection_is_there_after_the_commit(
    world: World, store: Store
) -> None:
    command = new()
    async with store.transaction() as transaction:
        await store.send(DOMAIN, [command], conn=transaction.conn)
        assert await store.get_command(DOMAIN, command.command_id) is None
        assert await world.receive() == []

    assert [lease.command_id for lease in await world.receive()] == [command.command_id]


async def test_a_duplicate_leaves_the_transaction_good_to_go_on(world: World, store: Store) -> None:
    known, fresh = new(), new()
    await world.send(known)

    async with store.transaction() as transaction:
        with pytest.raises(DuplicateCommandError):
            await store.send(DOMAIN, [known, new()], conn=transaction.conn)
        await store.send(DOMAIN, [fresh], conn=transaction.conn)
        with pytest.raises(DuplicateCommandError):
            await store.send(DOMAIN, [fresh], conn=transaction.conn)

    assert [lease.command_id for lease in await world.receive()] == [
        known.command_id,
        fresh.command_id,
    ]


async def test_a_command_can_be_canceled_on_the_connection(world: World, store: Store) -> None:
    command = new()
    async with store.transaction() as transaction:
        await store.send(DOMAIN, [command], conn=transaction.conn)
        await store.cancel(
            DOMAIN, [command.command_id], reason="r", actor="ann", conn=transaction.conn
        )

    assert await world.status(command.command_id) is CommandStatus.CANCELED
    assert await world.events(command.command_id) == ["SENT", "CANCELED"]


async def test_a_refusal_on_the_connection_is_the_same_error(store: Store) -> None:
    await store.ensure_domain(DOMAIN)
    command = new()
    with pytest.raises(CommandNotFoundError):  # noqa: PT012  (the block is the transaction)
        async with store.transaction() as transaction:
            await store.send(DOMAIN, [command], conn=transaction.conn)
            await store.cancel(
                DOMAIN, [new().command_id], reason="r", actor=None, conn=transaction.conn
            )

    assert await store.get_command(DOMAIN, command.command_id) is None


@pytest.mark.postgres
async def test_it_is_known_what_became_of_a_batch_when_its_transaction_is_over(
    postgres_world: PostgresWorld,
) -> None:
    store = postgres_world.store
    kept, undone = new_batch(notifies=True), new_batch(notifies=True)
    names: dict[UUID, str] = {}

    async def create(batch: NewBatch, conn: object) -> None:
        name = await store.create_batch(batch, [new()], conn=conn)
        assert name is not None
        names[batch.batch_id] = name

    async def settled() -> dict[UUID, bool]:
        params = (list(names), list(names.values()))
        return dict(await store.gateway.rows(_SETTLED, params))

    async with store.transaction() as transaction:
        await create(kept, transaction.conn)
        assert await settled() == {}, "nobody knows yet"
    with pytest.raises(BoomError):  # noqa: PT012  (the block is the transaction)
        async with store.transaction() as transaction:
            await create(undone, transaction.conn)
            raise BoomError

    assert await settled() == {kept.batch_id: True, undone.batch_id: False}


async def test_only_a_batch_that_notifies_in_a_transaction_names_it(store: Store) -> None:
    async with store.transaction() as transaction:
        silent = await store.create_batch(new_batch(), [new()], conn=transaction.conn)
    assert (silent, await store.create_batch(new_batch(notifies=True), [new()])) == (None, None)

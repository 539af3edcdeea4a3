"""Search by what is known of commands, beside the verbs of the store."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from commandbus.commands.search import Search
from commandbus.database.store import Store
from commandbus.models import CommandStatus
from commandbus.upkeep.figures import Figures
from tests.conformance.worlds import DOMAIN, PostgresWorld, World, done, new, parked

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


@pytest.fixture
async def world(
    pool: AsyncConnectionPool[Any], conn: psycopg.AsyncConnection[Any]
) -> AsyncIterator[PostgresWorld]:
    world = PostgresWorld(pool, conn)
    await world.store.ensure_domain(DOMAIN)
    yield world


@pytest.fixture
def store(world: PostgresWorld) -> Store:
    return world.store


async def _page(store: Store, **criteria: Any):
    return await Search(store, store.secret_keys).commands(**criteria)


async def _ids(store: Store, **criteria: Any):
    return [command.command_id for command in (await _page(store, **criteria)).commands]


async def test_a_query_returns_what_get_command_returns(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())

    [found] = (await _page(store, domain=DOMAIN)).commands

    assert found == await world.command(lease.command_id)
    assert found.status is CommandStatus.IN_PROGRESS


async def test_commands_are_listed_newest_first_and_within_one_call_by_id(
    world: World, store: Store
) -> None:
    calls = [[new() for _ in range(3)] for _ in range(3)]
    for commands in calls:
        await world.send(*commands)

    expected = [
        command_id
        for commands in reversed(calls)
        for command_id in sorted(command.command_id for command in commands)
    ]
    assert await _ids(store) == expected
    first = await _page(store, limit=4)
    assert [command.command_id for command in first.commands] == expected[:4]
    second = await _page(store, limit=4, cursor=first.next_cursor)
    assert [command.command_id for command in second.commands] == expected[4:8]
    third = await _page(store, limit=4, cursor=second.next_cursor)
    assert [command.command_id for command in third.commands] == expected[8:]
    assert third.next_cursor is None


@pytest.mark.parametrize("is_parked", [False, True])
async def test_commands_are_found_by_what_is_known_of_them(
    world: World, store: Store, is_parked: bool
) -> None:
    batch_id, relation = await world.add_batch(), uuid4()
    plain, typed = new("Debit"), new("Credit")
    related, batched = new("Debit", correlation_id=relation), new("Debit")
    elsewhere = new("Debit")
    for command, batch in [(plain, None), (typed, None), (related, None), (batched, batch_id)]:
        await world.send(command, batch_id=batch)
    await store.send("shipping", [elsewhere])
    common: dict[str, Any] = {"status": CommandStatus.PENDING}
    if is_parked:
        for lease in await world.receive():
            await world.settle(parked(lease))
        leases = await store.receive("shipping", vt_seconds=9, quantity=9, worker="w", limits={})
        await store.settle("shipping", [parked(lease) for lease in leases])
        common = {"status": PARKED}

    def ids(*commands):
        return [command.command_id for command in commands]

    assert await _ids(store, **common) == ids(elsewhere, batched, related, typed, plain)
    assert await _ids(store, **common, domain=DOMAIN) == ids(batched, related, typed, plain)
    assert await _ids(store, **common, command_type="Credit") == ids(typed)
    assert await _ids(store, **common, correlation_id=relation) == ids(related)
    assert await _ids(store, **common, batch_id=batch_id) == ids(batched)
    assert await _ids(store, **common, domain="nowhere") == []
    assert await _ids(store, status=CommandStatus.COMPLETED) == []
    moment = (await world.command(related.command_id)).created_at
    assert await _ids(store, **common, domain=DOMAIN, created_after=moment) == ids(batched, related)
    assert await _ids(store, **common, created_before=moment) == ids(typed, plain)
    later = moment + timedelta(days=1)
    assert await _ids(store, **common, created_after=later) == []


async def test_commands_are_counted_by_where_they_stand(world: World, store: Store) -> None:
    first, second, _ = await world.send_and_receive(new(), new(), new())
    await world.settle(done(first), parked(second))
    await world.send(new(), new())
    await store.send("shipping", [new()])

    here = {
        (DOMAIN, CommandStatus.COMPLETED): 1,
        (DOMAIN, PARKED): 1,
        (DOMAIN, CommandStatus.IN_PROGRESS): 1,
        (DOMAIN, CommandStatus.PENDING): 2,
    }
    assert await Figures(store).statuses(DOMAIN) == here
    assert await Figures(store).statuses() == {**here, ("shipping", CommandStatus.PENDING): 1}


async def test_the_domains_of_an_id_are_known_for_commands_and_batches(
    world: World, store: Store
) -> None:
    search = Search(store, store.secret_keys)
    command, batch_id = new(), await world.add_batch()
    await world.send(command)
    await store.send("shipping", [command])

    assert await search.domains(command.command_id) == [DOMAIN, "shipping"]
    assert await search.domains(batch_id) == [DOMAIN]
    assert await search.domains(uuid4()) == []

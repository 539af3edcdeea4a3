"""Search on PostgreSQL: commands and audit events by every criterion, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from commandbus.commands.search import Search
from commandbus.database.store import Store
from commandbus.models import AuditEvent, CommandMetadata, CommandStatus
from commandbus.paging import Page
from commandbus.upkeep.figures import Figures
from tests.conformance.worlds import DOMAIN, PostgresWorld, World, done, failed, new, parked

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE

Find = Callable[..., Awaitable[list[UUID]]]


@pytest.fixture
async def world(
    pool: AsyncConnectionPool[Any], conn: psycopg.AsyncConnection[Any]
) -> PostgresWorld:
    world = PostgresWorld(pool, conn)
    await world.store.ensure_domain(DOMAIN)
    return world


@pytest.fixture
def store(world: PostgresWorld) -> Store:
    return world.store


@pytest.fixture
def find(store: Store) -> Find:
    """The ids of the commands that a search finds."""

    async def search(**criteria: Any) -> list[UUID]:
        return await ids_of(store, **criteria)

    return search


def search_of(store: Store) -> Search:
    return Search(store, lambda *_: frozenset())


async def page_of(store: Store, **criteria: Any) -> Page[CommandMetadata]:
    return await search_of(store).commands(**criteria)


async def ids_of(store: Store, **criteria: Any) -> list[UUID]:
    return [command.command_id for command in (await page_of(store, **criteria)).items]


async def all_pages(store: Store, limit: int, **criteria: Any) -> list[UUID]:
    """What all pages contain together; none is larger than the limit."""
    ids: list[UUID] = []
    cursor: str | None = None
    while True:
        found = await page_of(store, **criteria, cursor=cursor, limit=limit)
        assert len(found.items) <= limit
        ids += [command.command_id for command in found.items]
        if (cursor := found.next_cursor) is None:
            return ids


async def events(store: Store, newest_first: bool = False, **criteria: Any) -> list[AuditEvent]:
    return (await search_of(store).audit(**criteria, newest_first=newest_first, limit=1_000)).items


# -- commands


async def test_a_query_returns_what_get_command_returns(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())

    [found] = (await page_of(store, domain=DOMAIN)).items

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
    assert await ids_of(store) == expected
    first = await page_of(store, limit=4)
    assert [command.command_id for command in first.items] == expected[:4]
    second = await page_of(store, limit=4, cursor=first.next_cursor)
    assert [command.command_id for command in second.items] == expected[4:8]
    third = await page_of(store, limit=4, cursor=second.next_cursor)
    assert [command.command_id for command in third.items] == expected[8:]
    assert third.next_cursor is None


@pytest.mark.parametrize("is_parked", [False, True])
async def test_commands_are_found_by_what_is_known_of_them(
    world: World, store: Store, find: Find, is_parked: bool
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

    assert await find(**common) == ids(elsewhere, batched, related, typed, plain)
    assert await find(**common, domain=DOMAIN) == ids(batched, related, typed, plain)
    assert await find(**common, command_type="Credit") == ids(typed)
    assert await find(**common, correlation_id=relation) == ids(related)
    assert await find(**common, batch_id=batch_id) == ids(batched)
    assert await find(**common, domain="nowhere") == []
    assert await find(status=CommandStatus.COMPLETED) == []
    moment = (await world.command(related.command_id)).created_at
    assert await find(**common, domain=DOMAIN, created_after=moment) == ids(batched, related)
    assert await find(**common, created_before=moment) == ids(typed, plain)
    later = moment + timedelta(days=1)
    assert await find(**common, created_after=later) == []


async def test_a_search_finds_commands_by_each_criterion(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    relation = uuid4()
    first, second, third = new("Debit"), new("Credit", correlation_id=relation), new("Debit")
    await world.park(first, batch_id=batch_id)
    await world.advance(1)
    [lease] = await world.send_and_receive(second)
    await world.settle(failed(lease))
    await world.advance(1)
    await world.send(third)
    a, b, c = first.command_id, second.command_id, third.command_id

    assert await ids_of(store) == [c, b, a]
    assert await ids_of(store, domain=DOMAIN) == [c, b, a]
    assert await ids_of(store, domain="orders") == []
    assert await ids_of(store, command_type="Debit") == [c, a]
    assert await ids_of(store, status=CommandStatus.FAILED) == [b]
    assert await ids_of(store, status=CommandStatus.IN_TROUBLESHOOTING_QUEUE) == [a]
    assert await ids_of(store, batch_id=batch_id) == [a]
    assert await ids_of(store, batch_id=uuid4()) == []
    assert await ids_of(store, correlation_id=relation) == [b]
    assert await ids_of(store, command_id=a) == [a]
    assert await ids_of(store, command_id=a, domain=DOMAIN) == [a]
    assert await ids_of(store, command_id=a, domain="orders") == []
    assert await ids_of(store, command_id=uuid4()) == []
    assert await ids_of(store, error_code="BANK_DOWN") == [b, a]
    assert await ids_of(store, error_code="OTHER") == []
    parked_only: dict[str, Any] = {"status": CommandStatus.IN_TROUBLESHOOTING_QUEUE}
    assert await ids_of(store, error_code="BANK_DOWN", **parked_only) == [a]
    assert await ids_of(store, error_code="OTHER", **parked_only) == []
    assert await ids_of(store, batch_id=batch_id, **parked_only) == [a]
    at = (await world.command(b)).created_at
    assert await ids_of(store, created_after=at) == [c, b]
    assert await ids_of(store, created_before=at) == [a]
    assert await ids_of(store, created_before=at, **parked_only) == [a]
    assert await ids_of(store, created_after=at, **parked_only) == []


async def test_an_id_is_found_in_every_domain_that_knows_it(world: World, store: Store) -> None:
    command = new()
    await world.send(command)
    await store.send("orders", [command])

    found = await page_of(store, command_id=command.command_id, limit=9)

    assert {c.domain for c in found.items} == {DOMAIN, "orders"}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_hold_everything_once(world: World, store: Store, limit: int) -> None:
    # Several of one instant, and several instants: the pages begin and end within both.
    batch_id = await world.create_batch(*(new() for _ in range(3)))
    for size in (4, 1):
        await world.advance(1)
        await world.send(*(new() for _ in range(size)))
    whole = await ids_of(store)
    assert len(whole) == 8

    assert await all_pages(store, limit) == whole
    assert await all_pages(store, limit, domain=DOMAIN, command_type="Debit") == whole
    assert await all_pages(store, limit, batch_id=batch_id) == whole[5:]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_what_is_parked_comes_by_when_it_was_parked(
    world: World, store: Store, limit: int
) -> None:
    leases = await world.send_and_receive(*(new() for _ in range(4)))
    for lease in leases[1::-1]:
        await world.settle(parked(lease))
        await world.advance(1)
    await world.settle(parked(leases[2]), parked(leases[3]))
    together = sorted([leases[2].command_id, leases[3].command_id])
    expected = [*together, leases[0].command_id, leases[1].command_id]
    criteria = {"status": CommandStatus.IN_TROUBLESHOOTING_QUEUE}

    assert await all_pages(store, limit, **criteria) == expected
    assert (
        await all_pages(store, limit, domain=DOMAIN, command_type="Debit", **criteria) == expected
    )
    one = {"command_id": expected[0], **criteria}
    assert await all_pages(store, limit, **one) == expected[:1]


async def test_a_search_goes_on_while_commands_are_sent(world: World, store: Store) -> None:
    for _ in range(4):
        await world.send(new())
        await world.advance(1)
    whole = await ids_of(store)
    page = await page_of(store, limit=2)
    await world.send(new())

    rest = await page_of(store, limit=10, cursor=page.next_cursor)

    assert [c.command_id for c in (*page.items, *rest.items)] == whole


# -- audit


async def test_events_are_found_by_each_criterion(world: World, store: Store) -> None:
    command = new()
    batch_id = await world.create_batch(command)
    mine: dict[str, Any] = {"batch_id": batch_id}
    [lease] = await world.receive(worker="w7")
    await world.settle(done(lease))

    found = await events(store, **mine)
    assert sorted(e.event_type for e in found) == [
        "BATCH_COMPLETED", "BATCH_STARTED", "COMPLETED", "RECEIVED", "SENT",
    ]  # fmt: skip
    numbers = [e.audit_id for e in found]
    assert numbers == sorted(numbers)
    assert await events(store, newest_first=True, **mine) == found[::-1]
    assert [e.event_type for e in await events(store, command_id=command.command_id)] == [
        "SENT", "RECEIVED", "COMPLETED",
    ]  # fmt: skip
    # The events of the batch itself stand under its own id.
    assert {e.event_type for e in await events(store, command_id=batch_id)} == {
        "BATCH_STARTED",
        "BATCH_COMPLETED",
    }
    assert [e.event_type for e in await events(store, actor="w7", **mine)] == ["RECEIVED"]
    two = await events(store, event_types=("SENT", "COMPLETED"), **mine)
    assert [e.event_type for e in two] == ["SENT", "COMPLETED"]
    assert await events(store, domain="orders", **mine) == []
    assert await events(store, since=found[-1].ts + timedelta(seconds=1), **mine) == []
    assert await events(store, since=found[0].ts, **mine) == found
    assert await events(store, until=found[0].ts, **mine) == []
    assert await events(store, until=found[-1].ts + timedelta(seconds=1), **mine) == found
    one = command.command_id
    assert len(await events(store, command_id=one, newest_first=True, actor="w7")) == 1
    assert await events(store, command_id=one, until=found[0].ts) == []


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("by", ["command_id", "batch_id"])
async def test_pages_of_the_audit_hold_everything_once(
    world: World, store: Store, newest_first: bool, by: str
) -> None:
    command = new()
    batch_id = await world.create_batch(command)
    [lease] = await world.receive()
    await world.settle(parked(lease))
    criteria: dict[str, Any] = {by: command.command_id if by == "command_id" else batch_id}
    whole = await events(store, newest_first=newest_first, **criteria)

    pages: list[AuditEvent] = []
    cursor = None
    while True:
        found = await search_of(store).audit(
            **criteria, cursor=cursor, newest_first=newest_first, limit=2
        )
        pages += found.items
        if (cursor := found.next_cursor) is None:
            break

    assert pages == whole


# -- counts and domains


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
    search = search_of(store)
    command, batch_id = new(), await world.add_batch()
    await world.send(command)
    await store.send("shipping", [command])

    assert await search.domains(command.command_id) == [DOMAIN, "shipping"]
    assert await search.domains(batch_id) == [DOMAIN]
    assert await search.domains(uuid4()) == []

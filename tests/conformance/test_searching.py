"""Searching: by every criterion, page by page, in both stores."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError
from commandbus.models import AuditEvent, CommandStatus
from commandbus.store.searching import AuditSearch, CommandSearch, Place
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked


async def search(store: Store, limit: int = 100, **criteria: Any) -> list[UUID]:
    found = await store.search_commands(CommandSearch(**criteria), start=None, limit=limit)
    return [command.command_id for command in found.commands]


async def all_pages(store: Store, limit: int, **criteria: Any) -> list[UUID]:
    """What all pages hold together; none is larger than the limit."""
    ids: list[UUID] = []
    start: Place | None = None
    while True:
        found = await store.search_commands(CommandSearch(**criteria), start=start, limit=limit)
        assert len(found.commands) <= limit
        ids += [command.command_id for command in found.commands]
        start = found.next_place
        if start is None:
            return ids


async def events(store: Store, newest_first: bool = False, **criteria: Any) -> list[AuditEvent]:
    found = await store.list_audit(
        AuditSearch(**criteria), start=None, newest_first=newest_first, limit=1_000
    )
    return found.events


async def test_commands_are_found_by_each_criterion(world: World, store: Store) -> None:
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

    assert await search(store) == [c, b, a]
    assert await search(store, domain=DOMAIN) == [c, b, a]
    assert await search(store, domain="orders") == []
    assert await search(store, command_type="Debit") == [c, a]
    assert await search(store, status=CommandStatus.FAILED) == [b]
    assert await search(store, status=CommandStatus.IN_TROUBLESHOOTING_QUEUE) == [a]
    assert await search(store, batch_id=batch_id) == [a]
    assert await search(store, batch_id=uuid4()) == []
    assert await search(store, correlation_id=relation) == [b]
    assert await search(store, command_id=a) == [a]
    assert await search(store, command_id=a, domain=DOMAIN) == [a]
    assert await search(store, command_id=a, domain="orders") == []
    assert await search(store, command_id=uuid4()) == []
    assert await search(store, error_code="BANK_DOWN") == [b, a]
    assert await search(store, error_code="OTHER") == []
    parked_only: dict[str, Any] = {"status": CommandStatus.IN_TROUBLESHOOTING_QUEUE}
    assert await search(store, error_code="BANK_DOWN", **parked_only) == [a]
    assert await search(store, error_code="OTHER", **parked_only) == []
    assert await search(store, batch_id=batch_id, **parked_only) == [a]
    at = (await world.command(b)).created_at
    assert await search(store, created_after=at) == [c, b]
    assert await search(store, created_before=at) == [a]
    assert await search(store, created_before=at, **parked_only) == [a]
    assert await search(store, created_after=at, **parked_only) == []


async def test_an_id_is_found_in_every_domain_that_knows_it(world: World, store: Store) -> None:
    command = new()
    await world.send(command)
    await store.send("orders", [command])

    found = await store.search_commands(
        CommandSearch(command_id=command.command_id), start=None, limit=9
    )

    assert {c.domain for c in found.commands} == {DOMAIN, "orders"}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_hold_everything_once(world: World, store: Store, limit: int) -> None:
    # Several of one instant, and several instants: the pages begin and end within both.
    batch_id = await world.create_batch(*(new() for _ in range(3)))
    for size in (4, 1):
        await world.advance(1)
        await world.send(*(new() for _ in range(size)))
    whole = await search(store)
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
    whole = await search(store)
    page = await store.search_commands(CommandSearch(), start=None, limit=2)
    await world.send(new())

    rest = await store.search_commands(CommandSearch(), start=page.next_place, limit=10)

    assert [c.command_id for c in (*page.commands, *rest.commands)] == whole


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
    start = None
    while True:
        found = await store.list_audit(
            AuditSearch(**criteria), start=start, newest_first=newest_first, limit=2
        )
        pages += found.events
        if (start := found.next_id) is None:
            break

    assert pages == whole


# -- notes


async def test_a_note_is_kept_in_any_state_and_changes_nothing_else(
    world: World, store: Store
) -> None:
    batch_id = await world.create_batch(new())
    [command_id] = await world.members(batch_id)
    before = await world.dump()

    await store.add_note(DOMAIN, command_id, text="ask the bank", actor="ann")

    trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=100)
    last = trail[-1]
    assert (last.event_type, last.actor, last.details) == ("NOTE", "ann", {"text": "ask the bank"})
    assert last.batch_id == batch_id
    after = await world.dump()
    assert after | {"audit": None} == before | {"audit": None}


async def test_a_note_on_an_unknown_command_is_refused(world: World, store: Store) -> None:
    with pytest.raises(CommandNotFoundError):
        await store.add_note(DOMAIN, uuid4(), text="x", actor=None)


# -- secrets


async def test_declared_secrets_are_known_to_everybody_and_only_grow(
    world: World, store: Store
) -> None:
    await store.declare_secrets(DOMAIN, {"Debit": ["iban"], "Credit": ["pin"]})
    await asyncio.gather(
        store.declare_secrets(DOMAIN, {"Debit": ["iban", "bic"]}),
        store.declare_secrets(DOMAIN, {"Debit": ["bic", "iban"]}),
    )

    assert await store.secret_keys(DOMAIN, "Debit") == {"iban", "bic"}
    assert await store.secret_keys(DOMAIN, "Credit") == {"pin"}
    assert await store.secret_keys("orders", "Debit") == frozenset()

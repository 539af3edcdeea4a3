"""Reading: queries, pages, payloads, trails."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import orjson
import pytest

from commandbus.database.store import CommandFilter, Store
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, World, done, new, parked, retried

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def _ids(store: Store, limit: int = 100, offset: int = 0, **criteria):
    found = await store.query_commands(CommandFilter(**criteria), limit=limit, offset=offset)
    return [command.command_id for command in found]


async def test_what_is_not_there_is_none_or_empty(store: Store) -> None:
    missing = uuid4()

    assert await store.get_command(DOMAIN, missing) is None
    assert await store.get_payload(DOMAIN, missing) is None
    assert await store.get_batch(DOMAIN, missing) is None
    assert await store.take_inbox_reply(DOMAIN, missing) is None
    assert await store.find_domains(missing) == []
    assert await store.get_audit_trail(missing, domain=None, limit=9) == []
    assert await store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0) == []
    assert await store.count_by_status(None) == {}
    assert await _ids(store) == []


async def test_a_command_is_known_in_its_own_domain_only(world: World, store: Store) -> None:
    command = new()
    await world.send(command)

    assert await store.get_command("shipping", command.command_id) is None
    assert await store.get_payload("shipping", command.command_id) is None


async def test_a_query_returns_what_get_command_returns(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())

    [found] = await store.query_commands(CommandFilter(domain=DOMAIN), limit=9, offset=0)

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
    assert await _ids(store, limit=4) == expected[:4]
    assert await _ids(store, limit=4, offset=4) == expected[4:8]
    assert await _ids(store, limit=4, offset=8) == expected[8:]
    assert await _ids(store, limit=4, offset=99) == []


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
        await world.settle(*(parked(lease) for lease in await world.receive()))
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
    assert await store.count_by_status(DOMAIN) == here
    assert await store.count_by_status(None) == {**here, ("shipping", CommandStatus.PENDING): 1}


async def test_what_is_parked_is_listed_longest_first_by_type_and_page(
    world: World, store: Store
) -> None:
    commands = [new("Debit" if n % 2 else "Credit", {"n": n}) for n in range(5)]
    for command in commands:
        await world.park(command)

    async def listed(command_type: str | None = None, limit: int = 9, offset: int = 0):
        items = await store.list_troubleshooting(
            DOMAIN, command_type=command_type, limit=limit, offset=offset
        )
        return [item.data["n"] for item in items if item.data]

    assert await listed() == [0, 1, 2, 3, 4]
    assert await listed("Debit") == [1, 3]
    assert await listed(limit=2, offset=1) == [1, 2]
    assert await listed("Credit", limit=2, offset=2) == [4]
    assert await listed("Other") == []
    assert await store.list_troubleshooting("shipping", command_type=None, limit=9, offset=0) == []


async def test_what_is_parked_in_one_group_is_listed_by_id(world: World, store: Store) -> None:
    commands = [new() for _ in range(4)]
    await world.park(*commands)

    items = await store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0)

    assert [item.command_id for item in items] == sorted(c.command_id for c in commands)


async def test_the_payload_is_there_until_the_command_is_completed(
    world: World, store: Store
) -> None:
    command = new(data={"amount": 5})

    async def payload():
        text = await store.get_payload(DOMAIN, command.command_id)
        return None if text is None else orjson.loads(text)

    [lease] = await world.send_and_receive(command)
    assert await payload() == {"amount": 5}
    await world.settle(parked(lease))
    assert await payload() == {"amount": 5}
    await store.operator_retry(DOMAIN, [command.command_id], actor=None, reset_attempts=True)
    assert await payload() == {"amount": 5}
    [lease] = await world.receive()
    await world.settle(done(lease))
    assert await payload() is None


async def test_the_payload_of_a_canceled_command_is_archived(world: World, store: Store) -> None:
    command = new(data={"amount": 5})
    await world.send(command)
    await store.cancel(DOMAIN, [command.command_id], reason="r", actor=None)
    assert await store.get_payload(DOMAIN, command.command_id) is not None

    await world.lose_archive()
    assert await store.get_payload(DOMAIN, command.command_id) is None


async def test_a_trail_is_in_order_of_time_and_may_be_cut(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(done(lease))

    trail = await store.get_audit_trail(lease.command_id, domain=DOMAIN, limit=100)

    assert [e.event_type for e in trail] == ["SENT", "RECEIVED", "FAILED", "RECEIVED", "COMPLETED"]
    assert [e.ts for e in trail] == sorted(e.ts for e in trail)
    assert [e.audit_id for e in trail] == sorted(e.audit_id for e in trail)
    cut = await store.get_audit_trail(lease.command_id, domain=DOMAIN, limit=2)
    assert cut == trail[:2]
    assert await store.get_audit_trail(lease.command_id, domain="shipping", limit=9) == []

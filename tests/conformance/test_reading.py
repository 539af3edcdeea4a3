"""Reading: queries, pages, payloads, trails."""

from uuid import uuid4

import orjson

from commandbus.database.store import Store
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, World, done, new, parked, retried

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def test_what_is_not_there_is_none_or_empty(store: Store) -> None:
    missing = uuid4()

    assert await store.get_command(DOMAIN, missing) is None
    assert await store.get_payload(DOMAIN, missing) is None
    assert await store.marked_payload(DOMAIN, missing) is None
    assert await store.get_batch(DOMAIN, missing) is None
    assert await store.take_inbox_reply(DOMAIN, missing) is None
    assert await store.get_audit_trail(missing, domain=None, limit=9) == []
    assert await store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0) == []


async def test_a_command_is_known_in_its_own_domain_only(world: World, store: Store) -> None:
    command = new()
    await world.send(command)

    assert await store.get_command("shipping", command.command_id) is None
    assert await store.get_payload("shipping", command.command_id) is None


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


async def test_a_payload_comes_with_its_type_and_the_keys_that_are_secret(
    world: World, store: Store
) -> None:
    command = new(data={"amount": 5, "pin": 1})
    await store.declare_secrets(DOMAIN, {command.command_type: {"pin"}, "Other": {"amount"}})
    [lease] = await world.send_and_receive(command)

    found = await store.marked_payload(DOMAIN, command.command_id)
    assert found is not None
    assert orjson.loads(found.data or "") == {"amount": 5, "pin": 1}
    assert (found.command_type, *found.secret_keys) == (command.command_type, "pin")
    assert await store.marked_payload("shipping", command.command_id) is None

    await world.settle(done(lease))
    found = await store.marked_payload(DOMAIN, command.command_id)
    assert found is not None
    assert (found.command_type, found.data) == (command.command_type, None)


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

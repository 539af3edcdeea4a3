"""Replies: one for each command that ends, where it was asked for, as 004 §7.2 prints it."""

from datetime import datetime
from typing import Any

import orjson
import pytest

from commandbus.database.store import Store
from commandbus.errors import SchemaMissingError
from commandbus.names import INBOX, NO_REPLY
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried

BANK_DOWN = {"code": "BANK_DOWN", "message": "no answer", "class": "TRANSIENT"}
NOT_WANTED = {"code": "CANCELED", "message": "not wanted", "class": "CANCELED"}

WAYS_TO_END = ["done", "failed", "canceled", "operator_cancel", "operator_complete"]


async def _end(world: World, how: str, **options: Any) -> dict[str, Any]:
    """End a command; returns the reply that it should have."""
    command = new("Debit", **options)
    await world.send(command)
    ids = [command.command_id]
    expected: dict[str, Any] = {
        "command_id": str(command.command_id),
        "correlation_id": str(command.correlation_id),
        "domain": DOMAIN,
        "type": "DebitResponse",
        "outcome": "CANCELED",
        "data": None,
        "error": None,
    }
    if how == "canceled":
        await world.store.cancel(DOMAIN, ids, reason="not wanted", actor=None)
        return expected | {"error": NOT_WANTED}
    [lease] = await world.receive()
    if how == "done":
        await world.settle(done(lease, {"balance": [1, None]}))
        return expected | {"outcome": "SUCCESS", "data": {"balance": [1, None]}}
    if how == "failed":
        await world.settle(failed(lease))
        return expected | {"outcome": "FAILED", "error": BANK_DOWN}
    await world.settle(parked(lease))
    if how == "operator_cancel":
        await world.store.operator_cancel(DOMAIN, ids, reason="not wanted", actor="ann")
        return expected | {"error": NOT_WANTED}
    await world.store.operator_complete(DOMAIN, ids, result=b'{"by": "hand"}', actor="ann")
    return expected | {"outcome": "SUCCESS", "data": {"by": "hand"}}


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_command_that_ends_has_one_reply(world: World, how: str) -> None:
    expected = await _end(world, how)

    [reply] = await world.replies()

    completed_at = reply.pop("completed_at")
    assert reply == expected
    assert completed_at.endswith("Z")
    row = await world.command(_id(expected))
    assert datetime.fromisoformat(completed_at) == row.updated_at


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_reply_goes_to_the_queue_that_was_named(world: World, how: str) -> None:
    expected = await _end(world, how, reply_to="orders.answers")

    [reply] = await world.replies("orders.answers")

    assert reply["command_id"] == expected["command_id"]
    assert await world.replies() == []


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_command_that_wants_no_reply_has_none(world: World, how: str) -> None:
    await _end(world, how, reply_to=NO_REPLY)

    assert await world.replies() == []
    assert (await world.dump())["inbox"] == []


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_reply_to_the_inbox_can_be_taken_once(world: World, store: Store, how: str) -> None:
    expected = await _end(world, how, reply_to=INBOX)
    command_id = _id(expected)

    assert await store.take_inbox_reply("shipping", command_id) is None
    body = await store.take_inbox_reply(DOMAIN, command_id)

    assert body is not None
    reply = orjson.loads(body)
    assert reply.pop("completed_at").endswith("Z")
    assert reply == expected
    assert await store.take_inbox_reply(DOMAIN, command_id) is None
    assert await world.replies() == []


@pytest.mark.parametrize("ending", [retried, parked, released])
async def test_a_command_that_does_not_end_has_no_reply(world: World, ending) -> None:
    leases = await world.send_and_receive(new(), new(reply_to=INBOX))
    await world.settle(*(ending(lease) for lease in leases))

    assert await world.replies() == []
    assert (await world.dump())["inbox"] == []


@pytest.mark.parametrize("result", [None, 0, "text", [], {}, {"a": {"b": 1.5}}, True])
async def test_any_json_can_be_a_result(world: World, result: object) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(done(lease, result))

    [reply] = await world.replies()
    assert reply["data"] == result


# -- the queue of replies


async def test_a_reply_is_leased_until_it_is_deleted(world: World, store: Store) -> None:
    for _ in range(3):
        await _end(world, "done")
    first = await store.read_replies("payments.replies", vt_seconds=600, quantity=2)
    rest = await store.read_replies("payments.replies", vt_seconds=600, quantity=2)
    assert [len(first), len(rest)] == [2, 1]
    assert [reply.queue for reply in first] == ["payments.replies"] * 2
    assert [r.msg_id for r in first + rest] == sorted(r.msg_id for r in first + rest)

    await store.delete_replies("payments.replies", {reply.msg_id for reply in first})
    await store.delete_replies("payments.replies", [first[0].msg_id])
    await world.advance(601)

    again = await store.read_replies("payments.replies", vt_seconds=600, quantity=9)
    assert [reply.msg_id for reply in again] == [rest[0].msg_id]


async def test_what_is_archived_is_no_longer_in_the_queue(world: World, store: Store) -> None:
    for _ in range(2):
        await _end(world, "done")
    first, second = await store.read_replies("payments.replies", vt_seconds=600, quantity=2)

    await store.archive_replies("payments.replies", [first.msg_id])
    await store.archive_replies("payments.replies", [first.msg_id])
    await world.advance(601)

    again = await store.read_replies("payments.replies", vt_seconds=600, quantity=9)
    assert [reply.msg_id for reply in again] == [second.msg_id]


async def test_a_queue_that_is_not_there_has_no_replies(store: Store) -> None:
    assert await store.read_replies("nobody.replies", vt_seconds=30, quantity=9) == []

    with pytest.raises(SchemaMissingError):
        await store.delete_replies("nobody.replies", [1])


def _id(reply: dict[str, Any]):
    from uuid import UUID

    return UUID(reply["command_id"])

"""Batches close once, with what was asked for, are retried and closed once more, and canceled."""

import asyncio
from contextlib import suppress
from uuid import uuid4

import orjson
import pytest

from commandbus.database.store import Store
from commandbus.errors import (
    PayloadLostError,
)
from commandbus.models import CommandStatus
from commandbus.names import NO_REPLY, batches_channel
from tests.conformance.batching import CLOSING, closing_commands, closing_id, ended, ids
from tests.conformance.worlds import (
    DOMAIN,
    World,
    done,
    failed,
    new,
    parked,
    retried,
)
from tests.waiting import until

# -- closing


async def test_a_closing_sends_the_command_that_was_asked_for_once(
    world: World, store: Store
) -> None:
    commands = [new(), new()]
    batch_id = await world.create_batch(*commands, on_complete=CLOSING, created_by="ann")
    first, second = await world.receive()
    await world.settle(done(first))
    assert await closing_commands(world) == []

    await world.settle(done(second))
    await world.settle(done(second), done(first))

    command_id = closing_id(batch_id, 1)
    assert await closing_commands(world) == [command_id]
    command = await world.command(command_id)
    assert (command.correlation_id, command.batch_id) == (batch_id, None)
    assert (command.reply_queue, command.max_attempts) == (NO_REPLY, 2)
    [sent] = await store.get_audit_trail(command_id, domain=DOMAIN, limit=9)
    assert (sent.event_type, sent.actor, sent.batch_id) == ("SENT", None, None)
    [lease] = await world.receive()
    assert (lease.command_id, orjson.loads(lease.payload or "")) == (command_id, {"x": 1})
    await world.settle(done(lease))
    assert await world.counters(batch_id) == ("COMPLETED", 2, 2, 0, 0, 0)


async def test_a_closing_command_needs_no_more_than_a_type(world: World) -> None:
    batch_id, _ = await ended(world, done, on_complete={"domain": DOMAIN, "type": "Close"})

    command = await world.command(closing_id(batch_id, 1))
    assert (command.reply_queue, command.max_attempts) == ("payments.replies", 3)
    [lease] = await world.receive()
    assert lease.payload == "{}"


@pytest.mark.parametrize("verb", ["cancel", "cancel_batch", "operator_cancel", "complete", "fail"])
async def test_whatever_ends_the_last_command_closes_the_batch(
    world: World, store: Store, verb: str
) -> None:
    command = new()
    batch_id = await world.create_batch(command, on_complete=CLOSING)
    if verb in {"operator_cancel", "complete", "fail"}:
        [lease] = await world.receive()
        await world.settle(failed(lease) if verb == "fail" else parked(lease))
    match verb:
        case "cancel":
            await store.cancel(DOMAIN, [command.command_id], reason="r", actor=None)
        case "cancel_batch":
            await store.cancel_batch(DOMAIN, batch_id, reason="r", actor=None)
        case "operator_cancel":
            await store.operator_cancel(DOMAIN, [command.command_id], reason="r", actor=None)
        case "complete":
            await store.operator_complete(DOMAIN, [command.command_id], result=b"null", actor=None)
        case _:
            assert verb == "fail"

    assert (await world.events(batch_id)).count("BATCH_COMPLETED") == 1
    assert await closing_commands(world) == [closing_id(batch_id, 1)]


async def test_a_closing_that_is_taken_back_has_sent_nothing(world: World, store: Store) -> None:
    batch_id = await world.create_batch(new(), on_complete=CLOSING)
    [lease] = await world.receive()
    before = await world.dump()

    with suppress(ZeroDivisionError):
        async with store.transaction() as transaction:
            await transaction.settle(DOMAIN, [done(lease)])
            _ = 1 / 0
    assert await world.dump() == before

    async with store.transaction() as transaction:
        await transaction.settle(DOMAIN, [done(lease)])
    assert await closing_commands(world) == [closing_id(batch_id, 1)]


async def test_closed_batches_are_those_that_have_ended(world: World, store: Store) -> None:
    first, _ = await ended(world, done)
    second, _ = await ended(world, failed)
    still_open, _ = await ended(world, parked)
    elsewhere = await world.create_batch(new(), domain="shipping")
    await store.cancel_batch("shipping", elsewhere, reason="r", actor=None)

    asked = [first, second, still_open, elsewhere, first, uuid4()]
    found = {batch.batch_id: batch for batch in await store.closed_batches(asked)}

    assert set(found) == {first, second, elsewhere}
    assert found[second] == await store.get_batch(DOMAIN, second)
    assert await store.closed_batches([still_open]) == []
    assert await store.closed_batches([]) == []


async def test_whoever_waits_for_a_batch_is_woken_when_it_closes(
    world: World, store: Store
) -> None:
    wakes: list[str] = []
    listener = store.listener()
    listener.subscribe(batches_channel(DOMAIN), lambda: wakes.append("woken"))
    running = asyncio.create_task(listener.run())
    try:
        await until(lambda: wakes, "the first wake-up, to have a look")
        await ended(world, done)
        await ended(world, done, notifies=True)
        await until(lambda: len(wakes) > 1, "the wake-up of the batch that somebody waits for")
        assert len(wakes) == 2
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


# -- retrying


async def test_a_retry_sends_again_what_is_parked_and_what_failed(
    world: World, store: Store
) -> None:
    batch_id, members = await ended(world, done, failed, parked, failed)
    await world.replies()
    assert await world.counters(batch_id) == ("IN_PROGRESS", 4, 1, 2, 0, 1)

    assert await store.retry_batch(DOMAIN, batch_id, actor="ann") == 3

    assert await world.counters(batch_id) == ("IN_PROGRESS", 4, 1, 0, 0, 0)
    assert "BATCH_REOPENED" not in await world.events(batch_id)
    for command_id in members[1:]:
        command = await world.command(command_id)
        assert (command.status, command.attempts) == (CommandStatus.PENDING, 0)
        trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=99)
        assert (trail[-1].event_type, trail[-1].actor) == ("OPERATOR_RETRY", "ann")
        assert trail[-1].details == {"msg_id": command.msg_id, "reset_attempts": True}
    leases = await world.receive()
    assert [lease.command_id for lease in leases] == members[1:]
    await world.settle(*(done(lease) for lease in leases))
    assert await world.counters(batch_id) == ("COMPLETED", 4, 4, 0, 0, 0)
    assert [reply["outcome"] for reply in await world.replies()] == ["SUCCESS"] * 3


async def test_a_retry_opens_a_closed_batch_again_and_it_closes_once_more(
    world: World, store: Store
) -> None:
    batch_id, _ = await ended(world, done, failed, on_complete=CLOSING)
    first = await world.batch(batch_id)
    assert (first.status, first.completed_at is None) == ("COMPLETED_WITH_FAILURES", False)

    assert await store.retry_batch(DOMAIN, batch_id, actor="ann") == 1

    opened = await world.batch(batch_id)
    assert (opened.status, opened.completed_at) == ("IN_PROGRESS", None)
    assert opened.started_at == first.started_at
    assert await store.closed_batches([batch_id]) == []
    await world.send(new(), batch_id=batch_id)
    await world.settle(*(done(lease) for lease in await world.receive()))
    assert await world.counters(batch_id) == ("COMPLETED", 3, 3, 0, 0, 0)
    trail = await store.get_audit_trail(batch_id, domain=DOMAIN, limit=99)
    assert [(event.event_type, event.actor) for event in trail] == [
        ("BATCH_STARTED", None),
        ("BATCH_COMPLETED", None),
        ("BATCH_REOPENED", "ann"),
        ("BATCH_COMPLETED", None),
    ]
    assert trail[2].details is None
    assert set(await closing_commands(world)) == {closing_id(batch_id, n) for n in (1, 2)}


async def test_a_second_retry_changes_nothing(world: World, store: Store) -> None:
    batch_id, _ = await ended(world, failed, parked, done)
    await store.retry_batch(DOMAIN, batch_id, actor="ann")
    before = await world.dump()

    assert await store.retry_batch(DOMAIN, batch_id, actor="bob") == 0

    assert await world.dump() == before


async def test_a_command_that_failed_is_not_retried_by_itself_but_may_be_parked_later(
    world: World, store: Store
) -> None:
    batch_id, [command_id] = await ended(world, failed)
    await store.retry_batch(DOMAIN, batch_id, actor=None)
    [lease] = await world.receive()
    await world.settle(parked(lease))
    assert await world.counters(batch_id) == ("IN_PROGRESS", 1, 0, 0, 0, 1)

    await store.operator_retry(DOMAIN, [command_id], actor=None, reset_attempts=True)

    [lease] = await world.receive()
    await world.settle(failed(lease))
    assert await world.counters(batch_id) == ("COMPLETED_WITH_FAILURES", 1, 0, 1, 0, 0)
    assert [reply["outcome"] for reply in await world.replies()] == ["FAILED", "FAILED"]


async def test_a_payload_that_is_gone_stops_the_whole_retry(world: World, store: Store) -> None:
    batch_id, members = await ended(world, failed, parked)
    await world.lose_archive()
    before = await world.dump()

    with pytest.raises(PayloadLostError, match=str(members[0])):
        await store.retry_batch(DOMAIN, batch_id, actor=None)

    assert await world.dump() == before


# -- canceling


async def test_a_cancel_ends_what_nobody_works_on_with_a_reply_each(
    world: World, store: Store
) -> None:
    commands = [new() for _ in range(5)]
    batch_id = await world.create_batch(*commands)
    other = new()
    await world.send(other)
    leased, later = await world.receive(2)
    await world.settle(retried(later))

    assert await store.cancel_batch(DOMAIN, batch_id, reason="wrong file", actor="ann") == 4

    assert await world.counters(batch_id) == ("IN_PROGRESS", 5, 0, 0, 4, 0)
    assert await world.status(leased.command_id) is CommandStatus.IN_PROGRESS
    assert await world.status(other.command_id) is CommandStatus.PENDING
    replies = await world.replies()
    assert {reply["command_id"] for reply in replies} == {str(i) for i in ids(commands)[1:]}
    error = {"code": "CANCELED", "message": "wrong file", "class": "CANCELED"}
    assert all((r["outcome"], r["error"]) == ("CANCELED", error) for r in replies)
    for command_id in ids(commands)[1:]:
        trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=99)
        assert (trail[-1].event_type, trail[-1].actor) == ("CANCELED", "ann")
        assert trail[-1].details == {"reason": "wrong file"}
    before = await world.dump()
    assert await store.cancel_batch(DOMAIN, batch_id, reason="again", actor=None) == 0
    assert await world.dump() == before
    await world.settle(done(leased))
    assert await world.counters(batch_id) == ("COMPLETED_WITH_FAILURES", 5, 1, 0, 4, 0)


async def test_a_cancel_leaves_what_is_parked_and_what_has_ended(
    world: World, store: Store
) -> None:
    batch_id, _ = await ended(world, done, failed, parked)
    before = await world.dump()

    assert await store.cancel_batch(DOMAIN, batch_id, reason="r", actor=None) == 0

    assert await world.dump() == before

"""Snooze and Discard: what a handler says of a command that neither succeeded nor failed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus, Discard, InvalidSettingError, RetryPolicy, Settings, Snooze
from commandbus.database.store import Store
from tests.conformance.worlds import (
    DOMAIN,
    World,
    discarded,
    done,
    new,
    new_batch,
    parked,
    released,
    retried,
    snoozed,
)


@pytest.fixture
def bus(store: Store) -> CommandBus:
    return CommandBus(store=store, settings=Settings(poll_max_seconds=0.05))


async def test_a_snoozed_command_comes_again_after_its_delay_without_a_counted_attempt(
    world: World,
) -> None:
    [lease] = await world.send_and_receive(new())
    assert not lease.snoozes
    await world.settle(snoozed(lease, 600, "the bank is closed"))
    row = await world.command(lease.command_id)
    assert (row.status, row.attempts, row.msg_id) == ("PENDING", 0, lease.msg_id)
    assert (row.last_error_code, row.leased_by) == (None, None)

    await world.advance(300)
    assert await world.receive() == []
    await world.advance(301)
    [again] = await world.receive()

    assert (again.attempt, again.snoozes, again.lease_epoch) == (1, 1, 2)
    assert await world.details(lease.command_id, "SNOOZED") == [
        {"seconds": 600, "snoozes": 1, "reason": "the bank is closed"}
    ]


async def test_each_snooze_is_counted_and_an_attempt_between_two_is_kept(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(snoozed(lease, 0))
    [lease] = await world.receive()
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(snoozed(lease, 0))
    [lease] = await world.receive()

    assert (lease.attempt, lease.snoozes) == (2, 2)
    assert await world.details(lease.command_id, "SNOOZED") == [
        {"seconds": 0, "snoozes": 1},
        {"seconds": 0, "snoozes": 2},
    ]


async def test_snoozes_of_one_group_come_back_each_after_its_own_delay(world: World) -> None:
    soon, late = await world.send_and_receive(new(), new())
    await world.settle(snoozed(soon, 600), snoozed(late, 6_000))

    await world.advance(601)

    assert [lease.command_id for lease in await world.receive()] == [soon.command_id]


async def test_a_snooze_keeps_the_last_error(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(snoozed(lease, 0))

    assert (await world.command(lease.command_id)).last_error_code == "BANK_DOWN"


async def test_a_snooze_is_a_word_so_a_suspect_is_one_no_more(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    for _ in range(2):
        await world.lapse()
        [lease] = await world.receive()
    assert lease.is_suspect
    await world.settle(snoozed(lease, 0))

    [lease] = await world.receive()

    assert not lease.is_suspect
    assert (await world.events(lease.command_id)).count("LEASE_EXPIRED") == 2


async def test_a_release_between_leaves_the_number_of_snoozes(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(snoozed(lease, 0))
    [lease] = await world.receive()
    await world.settle(released(lease))
    [lease] = await world.receive()

    assert (lease.attempt, lease.snoozes) == (1, 1)


@pytest.mark.parametrize(("reset", "expected"), [(True, None), (False, 1)])
async def test_an_operators_retry_counts_snoozes_anew_if_it_does_so_with_attempts(
    world: World, reset: bool, expected: int | None
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(snoozed(lease, 0))
    [lease] = await world.receive()
    await world.settle(parked(lease))
    await world.store.operator_retry(DOMAIN, [lease.command_id], actor=None, reset_attempts=reset)

    [lease] = await world.receive()

    assert lease.snoozes == expected


async def test_a_discarded_command_ends_as_canceled_with_its_reply(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(discarded(lease, "the order was canceled"))

    row = await world.command(lease.command_id)
    assert (row.status, row.attempts, row.last_error_code) == ("CANCELED", 1, None)
    dump = await world.dump()
    assert (len(dump["queue"]), len(dump["archive"])) == (0, 1)
    [reply] = dump["replies"]
    assert (reply["outcome"], reply["data"]) == ("CANCELED", None)
    assert reply["error"] == {
        "code": "DISCARDED",
        "message": "the order was canceled",
        "class": "CANCELED",
    }
    assert await world.details(lease.command_id, "DISCARDED") == [
        {"reason": "the order was canceled"}
    ]
    assert await world.receive() == []


async def test_children_that_are_snoozed_and_discarded_are_counted_once_by_their_batch(
    world: World,
) -> None:
    batch = new_batch()
    await world.store.create_batch(batch, [new(), new()])
    first, second = await world.receive()
    await world.settle(snoozed(first, 0), discarded(second))
    found = await world.store.get_batch(DOMAIN, batch.batch_id)
    assert found is not None
    assert (found.status, found.canceled_count, found.completed_count) == ("IN_PROGRESS", 1, 0)

    [again] = await world.receive()
    await world.settle(done(again))

    found = await world.store.get_batch(DOMAIN, batch.batch_id)
    assert found is not None
    assert (found.status, found.canceled_count) == ("COMPLETED_WITH_FAILURES", 1)
    assert (found.total_count, found.completed_count) == (2, 1)


# -- a consumer


async def test_a_consumer_snoozes_and_discards(world: World, bus: CommandBus) -> None:
    one = await bus.send(DOMAIN, "Debit", uuid4(), {})
    async with bus.consumer(DOMAIN) as consumer:
        [leased] = await consumer.receive()
        assert leased.snoozes == 0
        await leased.snooze(0, reason="too early")
        assert leased.ended_as == "snoozed"
        [leased] = await consumer.receive()
        assert (leased.attempt, leased.snoozes) == (1, 1)
        await leased.discard("nobody wants it")
        assert leased.ended_as == "discarded"

    assert await world.events(one) == ["SENT", "RECEIVED", "SNOOZED", "RECEIVED", "DISCARDED"]
    assert await world.status(one) == "CANCELED"


async def test_a_consumer_that_snoozes_too_often_has_failed(world: World, bus: CommandBus) -> None:
    sent = await bus.send(DOMAIN, "Debit", uuid4(), {})
    policy = RetryPolicy(max_snoozes=1)
    async with bus.consumer(DOMAIN, retry_policy=policy) as consumer:
        for _ in range(2):
            [leased] = await consumer.receive()
            await leased.snooze(0)

    row = await world.command(sent)
    assert (row.status, row.attempts) == ("PENDING", 1)
    assert row.last_error_code == "SNOOZED_TOO_OFTEN"
    assert await world.events(sent) == ["SENT", "RECEIVED", "SNOOZED", "RECEIVED", "FAILED"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "60", None, True, 10**9])
async def test_an_impossible_snooze_is_refused_and_the_command_stays_leased(
    world: World, bus: CommandBus, seconds: Any
) -> None:
    sent = await bus.send(DOMAIN, "Debit", uuid4(), {})
    async with bus.consumer(DOMAIN) as consumer:
        [leased] = await consumer.receive()
        with pytest.raises(InvalidSettingError, match="seconds of Snooze"):
            await leased.snooze(seconds)
        assert leased.ended_as is None
        await leased.complete()

    assert await world.status(sent) == "COMPLETED"


@pytest.mark.parametrize("reason", [5, None, b"x"])
def test_a_reason_that_is_no_text_is_refused(reason: Any) -> None:
    with pytest.raises(InvalidSettingError, match="reason of Discard"):
        Discard(reason)


def test_a_snooze_needs_no_reason_but_not_any_object_is_one() -> None:
    assert Snooze(1).reason is None
    with pytest.raises(InvalidSettingError, match="reason of Snooze"):
        Snooze(1, reason=object())  # type: ignore[arg-type]

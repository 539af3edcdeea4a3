"""Cancels of commands that a worker has: the mark, and what each outcome becomes."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidOperationError
from tests.conformance.worlds import (
    DOMAIN,
    World,
    discarded,
    done,
    failed,
    new,
    new_batch,
    parked,
    released,
    retried,
    snoozed,
)

#: What each outcome of a command whose cancel was requested leads to.
STANDS = {
    done: ("COMPLETED", "SUCCESS", "COMPLETED"),
    failed: ("FAILED", "FAILED", "GIVEN_UP"),
    parked: ("IN_TROUBLESHOOTING_QUEUE", None, "MOVED_TO_TROUBLESHOOTING_QUEUE"),
    discarded: ("CANCELED", "CANCELED", "DISCARDED"),
    retried: ("CANCELED", "CANCELED", "CANCELED"),
    snoozed: ("CANCELED", "CANCELED", "CANCELED"),
    released: ("CANCELED", "CANCELED", "CANCELED"),
}


async def asked(world: World, lease: Lease, reason: str = "not needed") -> None:
    found = await world.store.request_cancel(DOMAIN, [lease.command_id], reason=reason, actor="ann")
    assert found == {lease.command_id}


async def test_a_command_that_waits_is_canceled_at_once(world: World) -> None:
    command = new()
    await world.store.send(DOMAIN, [command])
    found = await world.store.request_cancel(
        DOMAIN, [command.command_id], reason="why", actor="ann"
    )
    assert found == set()
    assert await world.status(command.command_id) == "CANCELED"
    assert await world.events(command.command_id) == ["SENT", "CANCELED"]


@pytest.mark.parametrize("mark_in_progress", [True, False])
async def test_a_command_that_runs_is_marked_and_goes_on(
    world: World, mark_in_progress: bool
) -> None:
    [lease] = await world.send_and_receive(new(), mark_in_progress=mark_in_progress)
    before = await world.command(lease.command_id)
    await asked(world, lease)

    row = await world.command(lease.command_id)
    assert (row.status, row.leased_by) == (before.status, before.leased_by)
    assert await world.events(lease.command_id) == ["SENT", "RECEIVED", "CANCEL_REQUESTED"]
    assert await world.details(lease.command_id, "CANCEL_REQUESTED") == [{"reason": "not needed"}]
    assert (await world.dump())["replies"] == []


async def test_a_second_request_changes_nothing_and_the_first_reason_stays(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease, "first")
    before = await world.dump()
    await asked(world, lease, "second")
    assert await world.dump() == before

    await world.settle(released(lease))
    assert await world.details(lease.command_id, "CANCELED") == [{"reason": "first"}]


@pytest.mark.parametrize("ending", STANDS)
async def test_success_and_ends_stand_and_what_would_start_again_is_canceled(
    world: World, ending
) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease)

    assert await world.settle(ending(lease)) == set()

    status, outcome, event = STANDS[ending]
    row = await world.command(lease.command_id)
    assert (row.status, row.leased_by) == (status, None)
    assert [reply["outcome"] for reply in (await world.dump())["replies"]] == [
        each for each in [outcome] if each is not None
    ]
    assert (await world.events(lease.command_id))[-1] == event
    await world.advance(10_000)
    assert await world.receive() == []


@pytest.mark.parametrize("ending", [retried, snoozed, released])
async def test_the_same_outcome_twice_cancels_once(world: World, ending) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease)
    await world.settle(ending(lease))
    before = await world.dump()

    assert await world.settle(ending(lease)) == set()
    assert await world.dump() == before


async def test_a_canceled_retry_keeps_the_error_in_its_event(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease)
    await world.settle(retried(lease))

    assert await world.details(lease.command_id, "CANCELED") == [
        {
            "reason": "not needed",
            "error": {"class": "TRANSIENT", "code": "BANK_DOWN", "message": "no answer"},
        }
    ]
    [reply] = (await world.dump())["replies"]
    assert reply["error"] == {"code": "CANCELED", "message": "not needed", "class": "CANCELED"}


async def test_of_a_group_only_those_are_canceled_that_were_asked_for(world: World) -> None:
    first, second, third = await world.send_and_receive(new(), new(), new())
    await asked(world, second)
    await world.settle(retried(first, 0), retried(second, 0), released(third))

    assert await world.status(second.command_id) == "CANCELED"
    again = {lease.command_id for lease in await world.receive()}
    assert again == {first.command_id, third.command_id}


async def test_the_next_receive_cancels_what_a_dead_worker_had(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease)
    await world.lapse()

    assert await world.receive() == []
    assert await world.status(lease.command_id) == "CANCELED"
    assert await world.events(lease.command_id) == [
        "SENT", "RECEIVED", "CANCEL_REQUESTED", "LEASE_EXPIRED", "CANCELED",
    ]  # fmt: skip
    # The dead one comes back, too late: its result is refused.
    assert await world.settle(done(lease)) == {lease.command_id}
    assert await world.status(lease.command_id) == "CANCELED"


async def test_a_late_result_of_a_lost_lease_does_not_cancel_the_command(world: World) -> None:
    [lost] = await world.send_and_receive(new())
    await world.lapse()
    [lease] = await world.receive()
    await asked(world, lease)

    assert await world.settle(released(lost)) == {lease.command_id}
    assert await world.status(lease.command_id) == "IN_PROGRESS"


async def test_whoever_has_the_lease_learns_of_the_request(world: World, store: Store) -> None:
    first, second = await world.send_and_receive(new(), new())
    assert await store.cancel_requests(DOMAIN, [first, second]) == set()
    await asked(world, second)
    assert await store.cancel_requests(DOMAIN, [first, second]) == {second.command_id}
    extender = await store.open_extender()
    try:
        found = await asyncio.to_thread(extender.extend, DOMAIN, [first, second], 6_000)
    finally:
        extender.close()
    assert found == (set(), {second.command_id})

    await world.settle(done(second))
    assert await store.cancel_requests(DOMAIN, [first, second]) == set()


async def test_an_operators_retry_of_what_was_parked_meanwhile_starts_it(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await asked(world, lease)
    await world.settle(parked(lease))
    await world.store.operator_retry(DOMAIN, [lease.command_id], actor=None, reset_attempts=True)

    [again] = await world.receive()
    await world.settle(retried(again, 0))
    assert [each.command_id for each in await world.receive()] == [lease.command_id]


@pytest.mark.parametrize("ending", [done, failed, discarded, parked])
async def test_what_has_ended_or_is_parked_is_refused(world: World, ending) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(ending(lease))
    before = await world.dump()
    with pytest.raises(InvalidOperationError, match="PENDING or that a worker has"):
        await world.store.request_cancel(DOMAIN, [lease.command_id], reason="why", actor=None)
    assert await world.dump() == before


async def test_requests_are_all_or_none(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    before = await world.dump()
    with pytest.raises(CommandNotFoundError):
        await world.store.request_cancel(
            DOMAIN, [lease.command_id, uuid4()], reason="why", actor=None
        )
    assert await world.dump() == before


async def test_the_running_children_of_a_batch_are_marked_once_and_counted_when_they_end(
    world: World,
) -> None:
    batch = new_batch()
    await world.store.create_batch(batch, [new(), new(), new()])
    first, second = await world.receive(quantity=2)
    request = world.store.request_batch_cancel
    assert await request(DOMAIN, batch.batch_id, reason="why", actor="ann") == 2
    assert await request(DOMAIN, batch.batch_id, reason="why", actor="ann") == 0
    assert await world.store.cancel_batch(DOMAIN, batch.batch_id, reason="why", actor="ann") == 1

    await world.settle(done(first), Outcome(second, OutcomeKind.RELEASE))

    found = await world.store.get_batch(DOMAIN, batch.batch_id)
    assert found is not None
    assert (found.status, found.canceled_count) == ("COMPLETED_WITH_FAILURES", 2)
    assert (found.completed_count, found.total_count) == (1, 3)

"""settle: each way a lease ends; twice; too late; and what handlers send with it."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from commandbus.database.model import Outcome, OutcomeKind, OutgoingCommands
from commandbus.database.store import Store
from commandbus.errors import DuplicateCommandError
from commandbus.models import CommandStatus, ParkReason
from tests.conformance.worlds import (
    DOMAIN,
    World,
    discarded,
    done,
    failed,
    new,
    parked,
    released,
    retried,
    snoozed,
)

ENDINGS: list[Callable[..., Outcome]] = [
    done, retried, parked, failed, released, snoozed, discarded,
]  # fmt: skip
#: Where each ending leaves a command, and the events that it writes.
STANDING = {
    done: ("COMPLETED", ["COMPLETED"]),
    retried: ("PENDING", ["FAILED"]),
    parked: ("IN_TROUBLESHOOTING_QUEUE", ["FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE"]),
    failed: ("FAILED", ["FAILED", "GIVEN_UP"]),
    released: ("PENDING", ["RELEASED"]),
    snoozed: ("PENDING", ["SNOOZED"]),
    discarded: ("CANCELED", ["DISCARDED"]),
}
FAILED_DETAILS = {
    "attempt": 1,
    "class": "TRANSIENT",
    "code": "BANK_DOWN",
    "message": "no answer",
    "details": {
        "host": "b1",
        "port": None,
        "tried": [1, None, {"x": None}],
    },
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mark_in_progress", [True, False])
async def test_a_lease_ends_where_its_outcome_says(
    world: World, ending, mark_in_progress: bool
) -> None:
    [lease] = await world.send_and_receive(new(), mark_in_progress=mark_in_progress)

    assert await world.settle(ending(lease)) == set()

    status, events = STANDING[ending]
    row = await world.command(lease.command_id)
    assert row.status == status
    assert (row.leased_by, row.lease_expires_at) == (None, None)
    assert row.lease_epoch == 1
    assert await world.events(lease.command_id) == ["SENT", "RECEIVED", *events]


@pytest.mark.parametrize("repeat", ENDINGS)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_outcome_after_the_first_changes_nothing_and_is_not_stale(
    world: World, ending, repeat
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(ending(lease))
    before = await world.dump()

    assert await world.settle(repeat(lease)) == set()
    assert await world.dump() == before


@pytest.mark.parametrize("from_head", [True, False])
async def test_only_from_the_head_a_lapsed_command_goes_before_what_waited_meanwhile(
    world: World, from_head: bool
) -> None:
    [lapsed] = await world.send_and_receive(new())
    waited = new()
    await world.send(waited)
    await world.lapse()
    [first] = await world.receive(1, from_head=from_head)
    assert first.command_id == (lapsed if from_head else waited).command_id


async def test_what_backs_off_at_the_head_does_not_hide_the_others(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease))
    commands = [new(), new()]
    await world.send(*commands)
    leases = await world.receive(from_head=True)
    assert [lease.command_id for lease in leases] == [each.command_id for each in commands]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_outcome_after_its_lease_is_stale_and_changes_nothing(
    world: World, ending
) -> None:
    [late] = await world.send_and_receive(new(), worker="w1")
    await world.lapse()
    await world.receive(worker="w2")
    before = await world.dump()

    assert await world.settle(ending(late)) == {late.command_id}

    after = await world.dump()
    assert after["audit"][late.command_id].pop() == (
        "STALE_RESULT_REJECTED", {"lease_epoch": 1}, None, None,
    )  # fmt: skip
    assert after == before


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_outcome_after_another_worker_ended_the_command_is_stale(
    world: World, ending
) -> None:
    [late] = await world.send_and_receive(new(), worker="w1")
    await world.lapse()
    [lease] = await world.receive(worker="w2")
    await world.settle(done(lease, {"by": "w2"}))

    assert await world.settle(ending(late)) == {late.command_id}

    assert await world.status(late.command_id) is CommandStatus.COMPLETED
    assert [reply["data"] for reply in await world.replies()] == [{"by": "w2"}]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_of_two_results_of_one_command_in_a_group_the_older_is_stale(
    world: World, ending
) -> None:
    """A worker that lost a lease to itself, in a bad network, brings both results at once."""
    [late] = await world.send_and_receive(new(), worker="w1")
    await world.lapse()
    [lease] = await world.receive(worker="w1")

    assert await world.settle(ending(late), done(lease, {"by": "w1"})) == {late.command_id}

    assert await world.status(late.command_id) is CommandStatus.COMPLETED
    assert [reply["data"] for reply in await world.replies()] == [{"by": "w1"}]
    events = (await world.dump())["audit"][late.command_id]
    assert [details for kind, details, *_ in events if kind == "STALE_RESULT_REJECTED"] == [
        {"lease_epoch": 1}
    ]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_outcome_of_a_command_that_is_not_there_is_ignored(world: World, ending) -> None:
    import dataclasses

    [lease] = await world.send_and_receive(new())
    before = await world.dump()

    stranger = dataclasses.replace(lease, command_id=uuid4())

    assert await world.settle(ending(stranger)) == set()
    assert await world.dump() == before


async def test_one_group_may_end_leases_in_every_way(world: World) -> None:
    leases = await world.send_and_receive(*(new() for _ in range(len(ENDINGS) + 1)))
    late = leases.pop()
    await world.lapse()
    for lease in await world.receive():
        if lease.command_id != late.command_id:
            leases = [held if held.command_id != lease.command_id else lease for held in leases]
    outcomes = [ending(lease) for ending, lease in zip(ENDINGS, leases, strict=True)]

    assert await world.settle(*outcomes, done(late)) == {late.command_id}

    for ending, lease in zip(ENDINGS, leases, strict=True):
        assert await world.status(lease.command_id) == STANDING[ending][0]


async def test_an_empty_group_is_no_error(world: World, store: Store) -> None:
    await store.ensure_domain(DOMAIN)

    assert await world.settle() == set()


# -- each kind


async def test_a_completed_command_leaves_the_queue_for_good(world: World) -> None:
    [lease] = await world.send_and_receive(new(data={"a": 1}))
    await world.settle(done(lease))

    dump = await world.dump()
    assert (dump["queue"], dump["archive"]) == ([], [])
    assert await world.store.get_payload(DOMAIN, lease.command_id) is None


async def test_a_retried_command_comes_again_after_its_delay_as_the_same_message(
    world: World,
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 600))
    row = await world.command(lease.command_id)
    assert (row.attempts, row.msg_id) == (1, lease.msg_id)
    assert (row.last_error_type, row.last_error_code, row.last_error_msg) == (
        "TRANSIENT", "BANK_DOWN", "no answer",
    )  # fmt: skip

    await world.advance(300)
    assert await world.receive() == []
    await world.advance(301)
    [again] = await world.receive()

    assert (again.attempt, again.lease_epoch, again.msg_id) == (2, 2, lease.msg_id)
    assert again.is_suspect is False
    assert await world.details(lease.command_id, "FAILED") == [
        {**FAILED_DETAILS, "retry_in_seconds": 600}
    ]


async def test_a_retry_without_delay_comes_at_once(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 0))

    assert [again.attempt for again in await world.receive()] == [2]


async def test_a_retry_may_be_delayed_by_a_fraction_of_a_second(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 600.5))

    [details] = await world.details(lease.command_id, "FAILED")
    assert details["retry_in_seconds"] == 600.5


async def test_commands_of_one_group_are_retried_each_after_its_own_delay(world: World) -> None:
    soon, late = await world.send_and_receive(new(), new())
    await world.settle(retried(soon, 600), retried(late, 6_000))

    await world.advance(601)

    assert [lease.command_id for lease in await world.receive()] == [soon.command_id]


async def test_an_outcome_without_a_failure_clears_the_error(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(Outcome(lease, OutcomeKind.RETRY))

    row = await world.command(lease.command_id)
    assert row.last_error_type is row.last_error_code is row.last_error_msg is None
    assert (await world.details(lease.command_id, "FAILED"))[1] == {
        "attempt": 2,
        "retry_in_seconds": 0,
    }


async def test_a_completed_command_still_shows_its_last_error(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(done(lease))

    assert (await world.command(lease.command_id)).last_error_code == "BANK_DOWN"


@pytest.mark.parametrize("reason", list(ParkReason))
async def test_a_parked_command_waits_with_its_payload_and_without_a_reply(
    world: World, store: Store, reason: ParkReason
) -> None:
    command = new("Debit", {"amount": 5})
    [lease] = await world.send_and_receive(command)
    await world.settle(parked(lease, reason))

    [item] = await store.list_troubleshooting(DOMAIN, command_type=None, limit=10, offset=0)
    row = await world.command(command.command_id)

    assert item.command_id == command.command_id
    assert (item.reason, item.data) == (reason, {"amount": 5})
    assert (item.attempts, item.max_attempts, item.last_error_code) == (1, 3, "BANK_DOWN")
    assert item.parked_at == row.updated_at
    assert await world.details(command.command_id, "FAILED") == [FAILED_DETAILS]
    assert await world.details(command.command_id, "MOVED_TO_TROUBLESHOOTING_QUEUE") == [
        {"reason": reason.value, "code": "BANK_DOWN", "attempts": 1}
    ]
    assert await world.replies() == []
    await world.lapse()
    assert await world.receive() == []
    dump = await world.dump()
    assert (len(dump["queue"]), len(dump["archive"])) == (0, 1)


async def test_a_failed_command_is_archived(world: World) -> None:
    [lease] = await world.send_and_receive(new(data={"a": 1}))
    await world.settle(failed(lease))

    dump = await world.dump()
    assert (dump["queue"], len(dump["archive"]), dump["parked"]) == ([], 1, [])
    assert await world.details(lease.command_id, "FAILED") == [FAILED_DETAILS]
    assert await world.details(lease.command_id, "GIVEN_UP") == [None]


async def test_a_released_command_comes_again_at_once_with_its_attempt_given_back(
    world: World,
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(released(lease))
    assert (await world.command(lease.command_id)).attempts == 0

    [again] = await world.receive()

    assert (again.attempt, again.lease_epoch, again.is_suspect) == (1, 2, False)


async def test_a_suspect_that_is_released_does_not_go_below_zero_attempts(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(released(lease))
    await world.receive()
    await world.lapse()
    [suspect] = await world.receive()

    await world.settle(released(suspect))

    assert (await world.command(lease.command_id)).attempts == 0


# -- what handlers send


def _to(domain: str, *commands, batch_id: UUID | None = None) -> OutgoingCommands:
    return OutgoingCommands(domain, commands, batch_id)


@pytest.mark.parametrize("kind", [done, retried])
async def test_what_a_handler_sends_goes_out_with_its_outcome(
    world: World, store: Store, kind
) -> None:
    first, second, third = new("Next"), new("Next"), new("Ship", {"x": 1}, reply_to="")
    [lease] = await world.send_and_receive(new())

    sends = (_to(DOMAIN, first, second), _to("shipping", third))
    assert await world.settle(kind(lease, 600, *sends)) == set()

    assert [held.command_id for held in await world.receive()] == [
        first.command_id,
        second.command_id,
    ]
    assert await world.events(third.command_id) == ["SENT"]
    assert await world.domains_of(third.command_id) == ["shipping"]


async def test_what_a_handler_sends_may_join_a_batch(world: World) -> None:
    batch_id = await world.add_batch()
    [lease] = await world.send_and_receive(new())
    await world.settle(done(lease, None, _to(DOMAIN, new(), new(), batch_id=batch_id)))

    assert (await world.batch(batch_id)).total_count == 2


async def test_what_the_handler_of_a_stale_outcome_sends_does_not_go_out(world: World) -> None:
    other, command = new(), new()
    [late] = await world.send_and_receive(command)
    await world.lapse()
    await world.receive()

    assert await world.settle(done(late, None, _to(DOMAIN, other))) == {late.command_id}

    assert await world.store.get_command(DOMAIN, other.command_id) is None
    assert (await world.events(command.command_id))[-1] == "STALE_RESULT_REJECTED"


async def test_what_was_sent_with_an_outcome_is_not_sent_again_by_its_repeat(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    outcome = done(lease, None, _to(DOMAIN, new()))
    await world.settle(outcome)
    before = await world.dump()

    assert await world.settle(outcome) == set()
    assert await world.dump() == before


async def test_a_duplicate_among_what_handlers_send_undoes_the_whole_group(world: World) -> None:
    known = new()
    await world.send(known)
    _, first, second = await world.send_and_receive(new(), new())
    before = await world.dump()

    with pytest.raises(DuplicateCommandError) as caught:
        await world.settle(
            done(first, None, _to(DOMAIN, new())),
            parked(second),
            done(second, None, _to(DOMAIN, known)),
        )

    assert caught.value.command_ids == (known.command_id,)
    assert await world.dump() == before


async def test_a_reply_finds_its_queue_even_if_somebody_dropped_it(world: World) -> None:
    """Better an empty queue than a handler that runs again because its reply has no place."""
    for ending in (done, failed):
        await world.send(new(reply_to="gone.replies"))
        [lease] = await world.receive()
        await world.drop_queue("gone.replies")

        assert await world.settle(ending(lease)) == set()

        [reply] = await world.store.read_replies("gone.replies", vt_seconds=30, quantity=5)
        assert str(lease.command_id) in reply.body


async def test_a_suspect_that_is_given_back_is_still_one(world: World) -> None:
    """Restarts between the crashes must not hide the command that causes them."""
    await world.send(new())
    await world.receive()
    await world.lapse()
    await world.receive()
    await world.lapse()
    [suspect] = await world.receive()
    await world.settle(Outcome(suspect, OutcomeKind.RELEASE))

    [again] = await world.receive()

    assert (again.is_suspect, again.attempt) == (True, 1)
    trail = await world.store.get_audit_trail(again.command_id, domain=None, limit=100)
    assert [event.event_type for event in trail].count("LEASE_EXPIRED") == 2

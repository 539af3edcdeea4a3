"""receive: leases, their order, their end without a word, messages that must not be delivered."""

from datetime import timedelta
from uuid import UUID, uuid4

import orjson
import pytest

from commandbus.database.model import Lease
from commandbus.database.store import Store
from commandbus.errors import SchemaMissingError
from commandbus.models import CommandStatus
from tests.conformance.showing import shown
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def test_a_lease_carries_the_command(world: World) -> None:
    command = new("Debit", {"amount": 5}, reply_to="", max_attempts=4)
    batch_id = await world.add_batch()

    [lease] = await world.send_and_receive(command, batch_id=batch_id, worker="w7")

    row = await world.command(command.command_id)
    assert lease.payload is not None
    assert orjson.loads(lease.payload) == {"amount": 5}
    assert (lease.domain, lease.command_id, lease.command_type) == (
        DOMAIN, command.command_id, "Debit",
    )  # fmt: skip
    assert (lease.attempt, lease.max_attempts, lease.lease_epoch) == (1, 4, 1)
    assert (lease.reply_queue, lease.batch_id) == ("", batch_id)
    assert lease.correlation_id == command.correlation_id
    assert lease.msg_id == row.msg_id
    assert lease.created_at == row.created_at
    assert lease.is_suspect is False


async def test_a_leased_command_is_in_progress_until_its_lease_expires(world: World) -> None:
    [lease] = await world.send_and_receive(new(), vt_seconds=45, worker="w7")

    row = await world.command(lease.command_id)

    assert row.status is CommandStatus.IN_PROGRESS
    assert (row.attempts, row.lease_epoch, row.leased_by) == (1, 1, "w7")
    assert row.lease_expires_at == row.updated_at + timedelta(seconds=45)
    assert await world.events(lease.command_id) == ["SENT", "RECEIVED"]
    trail = await world.store.get_audit_trail(lease.command_id, domain=None, limit=10)
    assert (trail[1].details, trail[1].actor) == ({"attempt": 1}, "w7")


async def test_a_leased_command_shows_as_pending_when_nobody_wants_the_mark(world: World) -> None:
    [lease] = await world.send_and_receive(new(), mark_in_progress=False)

    row = await world.command(lease.command_id)
    assert (row.status, row.leased_by) == (CommandStatus.PENDING, "w1")
    assert await world.receive() == []


async def test_commands_come_in_the_order_of_sending(world: World) -> None:
    commands = [new() for _ in range(7)]
    await world.send(*commands[:4])
    await world.send(*commands[4:])

    first, second = await world.receive(3), await world.receive(10)

    ids = [lease.command_id for lease in first + second]
    assert ids == [command.command_id for command in commands]
    assert len(first) == 3


async def test_a_leased_command_is_not_delivered_again_before_its_lease_ends(world: World) -> None:
    await world.send_and_receive(new(), vt_seconds=600)
    assert await world.receive() == []

    await world.advance(300)
    assert await world.receive() == []

    await world.advance(301)
    assert len(await world.receive()) == 1


async def test_a_domain_that_nobody_knows_cannot_be_received_from(world: World) -> None:
    with pytest.raises(SchemaMissingError):
        await world.receive()


async def test_the_limit_of_the_worker_wins_over_the_limit_of_the_command(world: World) -> None:
    many, few = new("Debit", max_attempts=1), new("Credit", max_attempts=5)
    leases = await world.send_and_receive(many, few, limits={"Debit": 9})

    assert [lease.max_attempts for lease in leases] == [9, 5]
    assert (await world.command(many.command_id)).max_attempts == 9


async def test_a_command_beyond_the_limit_of_the_worker_is_parked_unheard(world: World) -> None:
    command = new(max_attempts=5)
    [lease] = await world.send_and_receive(command)
    await world.settle(retried(lease, 0))
    [lease] = await world.receive()
    await world.settle(retried(lease, 0))

    assert await world.receive(limits={"Debit": 2}) == []

    row = await world.command(command.command_id)
    assert row.status is PARKED
    assert (row.last_error_type, row.last_error_code) == ("TRANSIENT", "ATTEMPTS_EXHAUSTED")
    assert row.lease_epoch == 3
    [item] = await world.store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0)
    assert item.reason == "EXHAUSTED"


# -- leases that end without a word


async def test_the_first_lapse_is_not_counted_and_makes_no_suspect(world: World) -> None:
    [first] = await world.send_and_receive(new())
    await world.lapse()

    [second] = await world.receive(worker="w2")

    assert (second.attempt, second.lease_epoch, second.is_suspect) == (1, 2, False)
    assert await world.events(first.command_id) == ["SENT", "RECEIVED", "LEASE_EXPIRED", "RECEIVED"]
    [lapsed] = await world.details(first.command_id, "LEASE_EXPIRED")
    assert shown(lapsed) == {"worker": "w1", "leased_at": True, "lease_ended_at": True}
    assert lapsed["leased_at"] < lapsed["lease_ended_at"]
    assert await world.details(first.command_id, "RECEIVED") == [{"attempt": 1}, {"attempt": 1}]


async def test_the_second_lapse_in_a_row_is_not_counted_but_makes_a_suspect(
    world: World,
) -> None:
    await world.send_and_receive(new())
    await world.lapse()
    await world.receive()
    await world.lapse()

    [lease] = await world.receive(worker="w2")

    assert (lease.attempt, lease.lease_epoch, lease.is_suspect) == (1, 3, True)


async def test_a_lapse_of_a_suspect_that_ran_alone_is_counted(world: World, store: Store) -> None:
    await world.send_and_receive(new())
    await world.lapse()
    [suspect] = await world.receive()
    assert await store.confirm_start(suspect) is True
    assert await store.confirm_start(suspect) is True
    await world.lapse()

    [third] = await world.receive()

    assert (third.attempt, third.is_suspect) == (2, True)


async def test_a_start_cannot_be_confirmed_without_the_lease(world: World, store: Store) -> None:
    [first] = await world.send_and_receive(new())
    await world.lapse()
    [second] = await world.receive()
    before = await world.dump()

    assert await store.confirm_start(first) is False
    assert await world.dump() == before

    await world.settle(done(second))
    assert await store.confirm_start(second) is False


async def test_a_command_that_kills_its_workers_is_parked_when_its_attempts_are_used_up(
    world: World, store: Store
) -> None:
    [lease] = await world.send_and_receive(new(max_attempts=2))
    received = 1
    while True:
        await world.lapse()
        leases = await world.receive()
        if not leases:
            break
        received += 1
        await store.confirm_start(leases[0])

    row = await world.command(lease.command_id)
    assert received == 3  # one unconfirmed, two confirmed
    assert row.status is PARKED
    assert (row.attempts, row.leased_by, row.lease_epoch) == (2, None, 4)
    assert row.last_error_code == "LEASE_EXPIRED"
    assert (await world.events(lease.command_id))[-2:] == [
        "FAILED",
        "MOVED_TO_TROUBLESHOOTING_QUEUE",
    ]
    assert [shown(each) for each in await world.details(lease.command_id, "FAILED")] == [
        {
            "attempt": 2,
            "class": "TRANSIENT",
            "code": "LEASE_EXPIRED",
            "message": (
                "the lease ran out before a result came, attempt 2 of 2: the worker crashed, was "
                "killed, or lost its connection"
            ),
            "details": {"worker": "w1", "leased_at": True, "lease_ended_at": True},
        }
    ]
    assert await world.details(lease.command_id, "MOVED_TO_TROUBLESHOOTING_QUEUE") == [
        {"reason": "EXHAUSTED", "code": "LEASE_EXPIRED", "attempts": 2}
    ]
    assert await world.replies() == []


@pytest.mark.parametrize("max_attempts", [1, 2, 12])
async def test_a_command_that_counts_every_lapse_is_leased_as_often_as_it_has_attempts(
    world: World, max_attempts: int
) -> None:
    counted, other = new(max_attempts=max_attempts), new("Credit", max_attempts=max_attempts)
    await world.send(counted, other)
    leases: list[Lease] = []
    while found := await world.receive(count_every=["Debit"]):
        leases += found
        await world.lapse()

    attempts = [lease.attempt for lease in leases if lease.command_id == counted.command_id]
    others = [lease.attempt for lease in leases if lease.command_id == other.command_id]
    assert attempts == list(range(1, max_attempts + 1))
    assert others == [1] * 11  # by the rule that holds without a word on it
    row = await world.command(counted.command_id)
    assert (row.status, row.attempts, row.last_error_code) == (
        PARKED, max_attempts, "LEASE_EXPIRED",
    )  # fmt: skip
    [failure] = await world.details(counted.command_id, "FAILED")
    assert failure["attempt"] == max_attempts
    assert f"attempt {max_attempts} of {max_attempts}" in failure["message"]


async def test_a_release_is_no_attempt_also_where_every_lapse_is_counted(world: World) -> None:
    await world.send_and_receive(new(), count_every=["Debit"])
    await world.lapse()
    [second] = await world.receive(count_every=["Debit"])
    await world.settle(released(second))

    [third] = await world.receive(count_every=["Debit"])

    assert (second.attempt, third.attempt) == (2, 2)


async def test_ten_lapses_that_nobody_confirmed_park_a_command_too(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    for number in range(10):
        await world.lapse()
        [again] = await world.receive()
        assert (again.attempt, again.is_suspect) == (1, number > 0)
    await world.lapse()

    assert await world.receive() == []

    row = await world.command(lease.command_id)
    assert (row.status, row.last_error_code) == (PARKED, "LEASE_EXPIRED")


async def test_the_result_of_a_worker_whose_command_was_parked_meanwhile_is_stale(
    world: World,
) -> None:
    [lease] = await world.send_and_receive(new(max_attempts=1))
    await world.lapse()
    [suspect] = await world.receive()
    await world.store.confirm_start(suspect)
    await world.lapse()
    assert await world.receive() == []

    assert await world.settle(done(suspect)) == {lease.command_id}

    assert await world.status(lease.command_id) is PARKED
    assert (await world.events(lease.command_id))[-1] == "STALE_RESULT_REJECTED"


async def test_a_command_that_came_back_with_a_word_is_no_suspect(world: World) -> None:
    await world.send_and_receive(new())
    await world.lapse()
    await world.receive()
    await world.lapse()
    [suspect] = await world.receive()
    await world.settle(retried(suspect))
    for _ in range(2):
        await world.lapse()
        [lease] = await world.receive()
        assert lease.is_suspect is False


# -- messages that must not be delivered


async def _put(world: World, command_id: object) -> None:
    await world.pgmq.send("payments.commands", {"command_id": str(command_id), "data": {}})


@pytest.mark.parametrize("ending", [done, failed, parked])
async def test_a_message_of_a_command_that_ended_is_archived(world: World, ending) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(ending(lease))
    status = await world.status(lease.command_id)
    await _put(world, lease.command_id)

    assert await world.receive() == []

    dump = await world.dump()
    assert dump["queue"] == []
    assert len(dump["archive"]) == (1 if ending is done else 2)
    assert await world.status(lease.command_id) is status


async def test_a_second_message_of_a_waiting_command_is_archived(world: World) -> None:
    command = new()
    await world.send(command)
    await _put(world, command.command_id)

    leases = await world.receive()

    assert [lease.command_id for lease in leases] == [command.command_id]
    dump = await world.dump()
    assert (len(dump["queue"]), len(dump["archive"])) == (1, 1)


@pytest.mark.parametrize(
    "message",
    [
        {"command_id": str(uuid4()), "data": {}},
        {"command_id": "not-a-uuid"},
        {"command_id": 5},
        {"other": True},
        ["a", "list"],
        "text",
        None,
    ],
)
async def test_a_message_without_a_command_is_archived(world: World, message: object) -> None:
    command = new()
    await world.send(command)
    await world.pgmq.send("payments.commands", message)

    assert [lease.command_id for lease in await world.receive()] == [command.command_id]
    assert len((await world.dump())["archive"]) == 1


async def test_what_is_turned_away_does_not_hide_what_is_good(world: World) -> None:
    old = new()
    [lease] = await world.send_and_receive(old)
    await world.settle(done(lease))
    await _put(world, old.command_id)
    await _put(world, UUID(int=0))
    good = new()
    await world.send(good)

    assert [lease.command_id for lease in await world.receive(3)] == [good.command_id]


# -- extending


async def test_an_extended_lease_lasts_longer(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new(), vt_seconds=600)
    assert await store.extend(DOMAIN, [lease], 6_000) == set()

    await world.advance(3_000)
    assert await world.receive() == []
    await world.advance(3_001)
    [again] = await world.receive()
    assert again.lease_epoch == 2


async def test_a_lease_that_ran_out_can_be_extended_while_nobody_took_it(
    world: World, store: Store
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.lapse()

    assert await store.extend(DOMAIN, [lease], 600) == set()
    assert await world.receive() == []


async def test_a_lost_lease_cannot_be_extended(world: World, store: Store) -> None:
    lost, kept = await world.send_and_receive(new(), new(), vt_seconds=600)
    await world.settle(retried(lost, 0))
    before = await world.dump()

    assert await store.extend(DOMAIN, [lost, kept], 600) == {lost.command_id}
    assert await store.extend(DOMAIN, [lost], 600) == {lost.command_id}

    assert await world.dump() == before


async def test_extending_leaves_no_trace_but_the_expiry(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new(), vt_seconds=600)
    before = await world.command(lease.command_id)

    await store.extend(DOMAIN, [lease], 1_200)

    after = await world.command(lease.command_id)
    assert before.lease_expires_at is not None
    assert after.lease_expires_at is not None
    assert after.lease_expires_at >= before.lease_expires_at + timedelta(seconds=600)
    assert after.updated_at == before.updated_at
    assert await world.events(lease.command_id) == ["SENT", "RECEIVED"]


async def test_a_lease_can_be_extended_from_a_thread(world: World, store: Store) -> None:
    import asyncio

    [lease] = await world.send_and_receive(new(), vt_seconds=600)
    extender = await store.open_extender()
    try:
        assert await asyncio.to_thread(extender.extend, DOMAIN, [lease], 6_000) == (set(), set())
        await world.advance(3_000)
        assert await world.receive() == []
        await world.settle(done(lease))
        lost = await asyncio.to_thread(extender.extend, DOMAIN, [lease], 600)
        assert lost == ({lease.command_id}, set())
    finally:
        extender.close()
        extender.close()


# -- types that are left to other workers


@pytest.mark.parametrize("from_head", [False, True])
async def test_commands_of_types_that_are_left_out_stay_as_they_are(
    world: World, from_head: bool
) -> None:
    one, two, three = new(command_type="Slow"), new(command_type="Quick"), new(command_type="Odd")
    await world.send(one, two, three)

    leases = await world.receive(except_types=["Slow", "Odd"], from_head=from_head)

    assert [lease.command_id for lease in leases] == [two.command_id]
    row = await world.command(one.command_id)
    assert (row.status, row.attempts, row.lease_epoch) == ("PENDING", 0, 0)
    others = await world.receive(worker="w2")
    assert {lease.command_id for lease in others} == {one.command_id, three.command_id}


async def test_no_more_are_leased_beside_those_left_out_than_asked_for(world: World) -> None:
    await world.send(*(new(command_type=name) for name in ("Slow", "Quick") * 3))

    assert len(await world.receive(2, except_types=["Slow"])) == 2
    assert len(await world.receive(2, except_types=["Slow"])) == 1
    assert await world.receive(2, except_types=["Slow"]) == []
    assert await world.receive(9, except_types=["Slow", "Other"]) == []
    assert len(await world.receive()) == 3


async def test_an_end_that_also_receives_ends_first(world: World) -> None:
    """Whether it leases something is left to the store: it may, where an end makes room."""
    first, second = new(ordering_key="a"), new(ordering_key="a")
    await world.send(first, second)
    [lease] = await world.receive()
    lost, leases = await world.store.settle_and_receive(
        DOMAIN, [done(lease)], {"vt_seconds": 30, "quantity": 5, "worker": "w2", "limits": {}}
    )
    assert lost == set()
    assert (await world.command(first.command_id)).status is CommandStatus.COMPLETED
    leases += await world.receive()
    assert [each.command_id for each in leases] == [second.command_id]
    lost, leases = await world.store.settle_and_receive(
        DOMAIN, [done(lease)], {"vt_seconds": 30, "quantity": 5, "worker": "w2", "limits": {}}
    )
    assert (lost, leases) == (set(), [])

"""Operators: retry, cancel, complete what is parked, cancel what waits. All of the ids, or none."""

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from commandbus import CommandBus
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried

Verb = Callable[[Store, list[UUID]], Awaitable[None]]


async def retry(store: Store, ids: list[UUID]) -> None:
    await store.operator_retry(DOMAIN, ids, actor="ann", reset_attempts=True)


async def cancel_parked(store: Store, ids: list[UUID]) -> None:
    await store.operator_cancel(DOMAIN, ids, reason="not wanted", actor="ann")


async def complete(store: Store, ids: list[UUID]) -> None:
    await store.operator_complete(DOMAIN, ids, result=b'{"by": "hand"}', actor="ann")


async def cancel(store: Store, ids: list[UUID]) -> None:
    await store.cancel(DOMAIN, ids, reason="not wanted", actor="ann")


#: Each verb, where it leaves a command, its event and the details of that.
PARKED_VERBS = [
    (retry, "PENDING", "OPERATOR_RETRY"),
    (cancel_parked, "CANCELED", "OPERATOR_CANCEL"),
    (complete, "COMPLETED", "OPERATOR_COMPLETE"),
]
ALL_VERBS = [retry, cancel_parked, complete, cancel]


async def _in_state(world: World, state: str) -> UUID:
    """A command in this state."""
    command = new(data={"a": 1})
    if state == "PENDING":
        await world.send(command)
        return command.command_id
    [lease] = await world.send_and_receive(command)
    ending = {
        "COMPLETED": done,
        "FAILED": failed,
        "IN_TROUBLESHOOTING_QUEUE": parked,
        "RETRIED": retried,
        "RELEASED": released,
    }.get(state)
    if ending is not None:
        await world.settle(ending(lease))
    if state == "CANCELED":
        await world.settle(parked(lease))
        await cancel_parked(world.store, [command.command_id])
    return command.command_id


@pytest.mark.parametrize(("verb", "status", "event"), PARKED_VERBS)
async def test_a_parked_command_is_moved_by_an_operator(
    world: World, store: Store, verb: Verb, status: str, event: str
) -> None:
    ids = [await _in_state(world, "IN_TROUBLESHOOTING_QUEUE") for _ in range(2)]

    await verb(store, [*ids, ids[0]])  # naming one twice is no harm

    assert await store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0) == []
    for command_id in ids:
        assert await world.status(command_id) == status
        trail = await store.get_audit_trail(command_id, domain=None, limit=100)
        assert (trail[-1].event_type, trail[-1].actor) == (event, "ann")
        assert len(trail) == 5


@pytest.mark.parametrize(("verb", "status", "event"), PARKED_VERBS)
async def test_a_second_operator_is_refused(
    world: World, store: Store, verb: Verb, status: str, event: str
) -> None:
    command_id = await _in_state(world, "IN_TROUBLESHOOTING_QUEUE")
    await verb(store, [command_id])
    before = await world.dump()

    for second in (retry, cancel_parked, complete):
        with pytest.raises(InvalidOperationError, match=f"{command_id}: it is {status}"):
            await second(store, [command_id])

    assert await world.dump() == before


@pytest.mark.parametrize(
    "state", ["PENDING", "RETRIED", "RELEASED", "COMPLETED", "FAILED", "CANCELED"]
)
@pytest.mark.parametrize(
    ("verb", "name"), [(retry, "retry"), (cancel_parked, "cancel"), (complete, "complete")]
)
async def test_what_is_not_parked_is_refused(
    world: World, store: Store, verb: Verb, name: str, state: str
) -> None:
    command_id = await _in_state(world, state)
    before = await world.dump()

    shown = "PENDING" if state in {"RETRIED", "RELEASED"} else state
    with pytest.raises(
        InvalidOperationError,
        match=f"cannot {name} command {command_id}: it is {shown}, and only a command in "
        "troubleshooting can be",
    ):
        await verb(store, [command_id])

    assert await world.dump() == before


@pytest.mark.parametrize("verb", ALL_VERBS)
@pytest.mark.parametrize("mark_in_progress", [True, False])
async def test_what_a_worker_holds_is_refused(
    world: World, store: Store, verb: Verb, mark_in_progress: bool
) -> None:
    [lease] = await world.send_and_receive(new(), mark_in_progress=mark_in_progress)
    before = await world.dump()

    with pytest.raises(InvalidOperationError, match="it is leased by a worker"):
        await verb(store, [lease.command_id])

    assert await world.dump() == before


@pytest.mark.parametrize("verb", ALL_VERBS)
async def test_an_unknown_command_is_refused(world: World, store: Store, verb: Verb) -> None:
    missing = uuid4()
    for _ in range(2):  # in a domain that is not there, and in one that is
        with pytest.raises(CommandNotFoundError) as caught:
            await verb(store, [missing])
        assert (caught.value.domain, caught.value.command_id) == (DOMAIN, missing)
        await store.ensure_domain(DOMAIN)


@pytest.mark.parametrize("verb", ALL_VERBS)
async def test_if_one_cannot_be_moved_none_is(world: World, store: Store, verb: Verb) -> None:
    ended = await _in_state(world, "FAILED")
    good = await _in_state(world, "PENDING" if verb is cancel else "IN_TROUBLESHOOTING_QUEUE")
    before = await world.dump()

    with pytest.raises(InvalidOperationError):
        await verb(store, [good, ended])
    with pytest.raises(CommandNotFoundError):
        await verb(store, [good, uuid4()])

    assert await world.dump() == before


@pytest.mark.parametrize("verb", ALL_VERBS)
async def test_moving_nothing_is_no_error(world: World, store: Store, verb: Verb) -> None:
    await store.ensure_domain(DOMAIN)
    before = await world.dump()

    await verb(store, [])

    assert await world.dump() == before


# -- retry


async def test_a_retry_sends_the_same_payload_in_a_new_message(world: World, store: Store) -> None:
    command = new(data={"amount": 5, "a": [1, 2]})
    [lease] = await world.send_and_receive(command)
    await world.settle(parked(lease))
    await retry(store, [command.command_id])

    [again] = await world.receive()

    assert again.msg_id > lease.msg_id
    assert again.payload == lease.payload
    assert (again.attempt, again.lease_epoch, again.is_suspect) == (1, 2, False)
    assert await world.details(command.command_id, "OPERATOR_RETRY") == [
        {"msg_id": again.msg_id, "reset_attempts": True}
    ]
    assert (await world.command(command.command_id)).last_error_code == "BANK_DOWN"


async def test_retried_commands_come_in_the_order_of_their_ids(world: World, store: Store) -> None:
    ids = [await _in_state(world, "IN_TROUBLESHOOTING_QUEUE") for _ in range(4)]
    await retry(store, ids)

    assert [lease.command_id for lease in await world.receive()] == sorted(ids)


@pytest.mark.parametrize(("attempts", "next_attempt"), [(1, 2), (3, 3)])
async def test_a_retry_without_a_reset_leaves_at_least_one_attempt(
    world: World, store: Store, attempts: int, next_attempt: int
) -> None:
    command = new(max_attempts=3)
    [lease] = await world.send_and_receive(command)
    for _ in range(attempts - 1):
        await world.settle(retried(lease, 0))
        [lease] = await world.receive()
    await world.settle(parked(lease))

    await store.operator_retry(DOMAIN, [command.command_id], actor=None, reset_attempts=False)

    [again] = await world.receive()
    assert again.attempt == next_attempt
    assert await world.details(command.command_id, "OPERATOR_RETRY") == [
        {"msg_id": again.msg_id, "reset_attempts": False}
    ]


async def test_a_retry_is_refused_when_the_payload_is_lost(world: World, store: Store) -> None:
    command_id = await _in_state(world, "IN_TROUBLESHOOTING_QUEUE")
    await world.lose_archive()
    before = await world.dump()

    with pytest.raises(PayloadLostError, match=str(command_id)):
        await retry(store, [command_id])

    assert await world.dump() == before
    [item] = await store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0)
    assert item.data is None
    await complete(store, [command_id])


async def test_a_command_can_be_parked_and_retried_again_and_again(
    world: World, store: Store
) -> None:
    command = new(data={"n": 1})
    await world.send(command)
    for _ in range(3):
        [lease] = await world.receive()
        await world.settle(parked(lease))
        await retry(store, [command.command_id])
    [lease] = await world.receive()
    await world.settle(done(lease))

    assert lease.lease_epoch == 4
    assert len(await world.replies()) == 1


async def test_the_result_of_a_lease_before_the_retry_counts_as_recorded(
    world: World, store: Store
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(parked(lease))
    await retry(store, [lease.command_id])
    before = await world.dump()

    assert await world.settle(done(lease)) == set()
    assert await world.dump() == before

    await world.receive()
    assert await world.settle(done(lease)) == {lease.command_id}


# -- cancel


@pytest.mark.parametrize("state", ["PENDING", "RETRIED", "RELEASED"])
async def test_what_nobody_works_on_can_be_canceled(world: World, store: Store, state: str) -> None:
    command_id = await _in_state(world, state)

    await cancel(store, [command_id])

    assert await world.status(command_id) is CommandStatus.CANCELED
    trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=100)
    assert (trail[-1].event_type, trail[-1].actor) == ("CANCELED", "ann")
    assert trail[-1].details == {"reason": "not wanted"}
    await world.lapse()
    assert await world.receive() == []
    assert len((await world.dump())["archive"]) == 1


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELED", "IN_TROUBLESHOOTING_QUEUE"])
async def test_what_does_not_wait_cannot_be_canceled(
    world: World, store: Store, state: str
) -> None:
    command_id = await _in_state(world, state)
    before = await world.dump()

    with pytest.raises(
        InvalidOperationError, match=f"it is {state}, and only a command that is PENDING can be"
    ):
        await cancel(store, [command_id])

    assert await world.dump() == before


async def test_a_lapsed_lease_still_keeps_a_command_from_being_canceled(
    world: World, store: Store
) -> None:
    [lease] = await world.send_and_receive(new())
    await world.lapse()

    with pytest.raises(InvalidOperationError, match="leased by a worker"):
        await cancel(store, [lease.command_id])


async def test_the_reason_of_a_cancel_is_recorded(world: World, store: Store) -> None:
    command_id = await _in_state(world, "CANCELED")

    assert await world.details(command_id, "OPERATOR_CANCEL") == [{"reason": "not wanted"}]


async def test_an_operator_may_stay_unnamed(world: World, store: Store) -> None:
    command_id = await _in_state(world, "IN_TROUBLESHOOTING_QUEUE")
    await store.operator_complete(DOMAIN, [command_id], result=b"null", actor=None)

    trail = await store.get_audit_trail(command_id, domain=DOMAIN, limit=100)
    assert (trail[-1].actor, trail[-1].details) == (None, None)


async def test_parked_commands_of_one_key_are_retried_in_the_order_of_sending(
    world: World, store: Store
) -> None:
    await CommandBus(store=store).keys.set_policy(DOMAIN, "skip")
    # Their ids have the other order.
    ids = [UUID(int=2**100 - n) for n in range(4)]
    for command_id in ids:
        await world.send(new(command_id=command_id, ordering_key="account:42"))
    while leases := await world.receive():
        await world.settle(*(parked(lease) for lease in leases))

    await retry(store, sorted(ids))

    order = []
    while leases := await world.receive():
        order += [lease.command_id for lease in leases]
        await world.settle(*(done(lease) for lease in leases))
    assert order == ids

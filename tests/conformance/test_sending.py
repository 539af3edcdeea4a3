"""send: all or nothing, once for every id."""

from uuid import uuid4

import orjson
import pytest

from commandbus.database.store import Store
from commandbus.errors import (
    BatchNotFoundError,
    DuplicateCommandError,
    InvalidNameError,
    InvalidOperationError,
)
from commandbus.models import CommandStatus
from commandbus.names import INBOX, NO_REPLY
from tests.conformance.worlds import DOMAIN, World, done, new


async def test_the_first_event_tells_type_and_correlation_id(world: World) -> None:
    command = new("Debit")
    await world.send(command)
    told = {"type": "Debit", "correlation_id": str(command.correlation_id)}
    assert await world.details(command.command_id, "SENT") == [told]


async def test_a_sent_command_is_pending_with_all_that_was_given(world: World) -> None:
    command = new("Debit", {"amount": 5}, reply_to="audit.replies", max_attempts=7)
    await world.send(command)

    found = await world.command(command.command_id)

    assert found.domain == DOMAIN
    assert found.queue_name == "payments.commands"
    assert found.msg_id is not None
    assert found.command_type == "Debit"
    assert found.status is CommandStatus.PENDING
    assert (found.attempts, found.max_attempts, found.lease_epoch) == (0, 7, 0)
    assert found.reply_queue == "audit.replies"
    assert found.correlation_id == command.correlation_id
    assert found.created_at == found.updated_at
    assert (found.leased_by, found.lease_expires_at, found.batch_id) == (None, None, None)
    assert (found.last_error_type, found.last_error_code, found.last_error_msg) == (None,) * 3
    assert await world.events(command.command_id) == ["SENT"]


async def test_the_message_has_the_body_that_was_specified(world: World) -> None:
    commands = [
        new(reply_to="payments.replies", data={"a": [1, None, {"b": "ü"}]}),
        new(reply_to=NO_REPLY),
        new(reply_to=INBOX),
    ]
    await world.send(*commands)

    queue = (await world.dump())["queue"]

    assert [message for message, _, _ in queue] == [
        {
            "command_id": str(command.command_id),
            "type": command.command_type,
            "domain": DOMAIN,
            "correlation_id": str(command.correlation_id),
            "reply_to": command.reply_to or None,
            "created_at": True,
            "data": orjson.loads(command.data),
        }
        for command in commands
    ]


async def test_an_id_that_was_sent_before_is_refused_and_nothing_of_the_call_is_created(
    world: World,
) -> None:
    first, fresh = new(), new()
    await world.send(first)
    before = await world.dump()

    with pytest.raises(DuplicateCommandError) as caught:
        await world.send(fresh, new(command_id=first.command_id))

    assert caught.value.command_ids == (first.command_id,)
    assert caught.value.domain == DOMAIN
    assert await world.dump() == before
    await world.send(fresh)  # it is still free
    assert len(await world.receive()) == 2


async def test_an_id_that_stands_twice_in_a_call_is_refused(world: World) -> None:
    twice, once = new(), new()
    with pytest.raises(DuplicateCommandError) as caught:
        await world.send(twice, once, new(command_id=twice.command_id))

    assert caught.value.command_ids == (twice.command_id,)
    assert await world.store.get_command(DOMAIN, once.command_id) is None
    assert await world.receive() == []


async def test_ids_known_before_are_named_rather_than_those_that_stand_twice(world: World) -> None:
    known, twice = new(), new()
    await world.send(known)
    with pytest.raises(DuplicateCommandError) as caught:
        await world.send(known, twice, twice)

    assert caught.value.command_ids == (known.command_id,)


async def test_an_ended_command_keeps_its_id(world: World) -> None:
    command = new()
    [lease] = await world.send_and_receive(command)
    await world.settle(done(lease))

    with pytest.raises(DuplicateCommandError):
        await world.send(command)


async def test_two_domains_may_know_the_same_id(world: World, store: Store) -> None:
    command = new()
    await world.send(command)
    await store.send("shipping", [command])

    assert await world.domains_of(command.command_id) == [DOMAIN, "shipping"]
    trail = await store.get_audit_trail(command.command_id, domain=None, limit=10)
    assert [event.domain for event in trail] == [DOMAIN, "shipping"]
    trail = await store.get_audit_trail(command.command_id, domain="shipping", limit=10)
    assert [event.domain for event in trail] == ["shipping"]


async def test_with_global_ids_one_domain_only_may_know_an_id(world: World, store: Store) -> None:
    early, late, fresh = new(), new(), new()
    await world.send(early)
    await world.make_ids_global()
    await world.send(late)

    for known in (early, late):
        with pytest.raises(DuplicateCommandError) as caught:
            await store.send("shipping", [fresh, known])
        assert caught.value.command_ids == (known.command_id,)

    assert await world.domains_of(fresh.command_id) == []
    await store.send("shipping", [fresh])


async def test_sending_nothing_creates_nothing(world: World, store: Store) -> None:
    await store.send(DOMAIN, [], batch_id=uuid4())

    assert await world.counts(DOMAIN) == {}


async def test_a_domain_can_be_ensured_twice(world: World, store: Store) -> None:
    await store.ensure_domain(DOMAIN)
    await store.ensure_domain(DOMAIN)

    assert await world.receive() == []


@pytest.mark.parametrize("domain", ["Payments", "a__b", "1a", "", "a-b", "x" * 38, "a.b"])
async def test_a_badly_formed_domain_is_refused(store: Store, domain: str) -> None:
    with pytest.raises(InvalidNameError):
        await store.send(domain, [new()])
    with pytest.raises(InvalidNameError):
        await store.ensure_domain(domain)
    with pytest.raises(InvalidNameError):
        await store.operator_retry(domain, [uuid4()], actor=None, reset_attempts=True)
    with pytest.raises(InvalidNameError):
        await store.cancel(domain, [uuid4()], reason="r", actor=None)
    with pytest.raises(InvalidNameError):
        await store.list_troubleshooting(domain, command_type=None, limit=1, offset=0)


async def test_a_badly_formed_reply_queue_is_refused(world: World) -> None:
    command = new(reply_to="Not A Queue")
    with pytest.raises(InvalidNameError):
        await world.send(command)

    assert await world.store.get_command(DOMAIN, command.command_id) is None


async def test_a_batch_that_is_not_there_is_refused(world: World, store: Store) -> None:
    missing, elsewhere = uuid4(), await world.add_batch("shipping")
    for batch_id in (missing, elsewhere):
        with pytest.raises(BatchNotFoundError) as caught:
            await world.send(new(), batch_id=batch_id)
        assert (caught.value.domain, caught.value.batch_id) == (DOMAIN, batch_id)

    assert await world.counts(DOMAIN) == {}


async def test_a_finished_batch_takes_no_more_commands(world: World, store: Store) -> None:
    batch_id = await world.add_batch()
    [lease] = await world.send_and_receive(new(), batch_id=batch_id)
    await world.settle(done(lease))
    before = await world.dump()

    with pytest.raises(InvalidOperationError, match="is finished"):
        await world.send(new(), batch_id=batch_id)

    assert await world.dump() == before

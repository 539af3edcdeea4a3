"""Time: commands that are delayed, and commands that must have begun by a time."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import orjson
import pytest

from commandbus import BatchCommand, CommandBus, SendOptions
from commandbus.database.model import OutgoingCommands
from commandbus.database.store import Store
from commandbus.errors import DuplicateCommandError, InvalidInputError
from commandbus.models import CommandStatus
from commandbus.names import INBOX
from tests.conformance.worlds import DOMAIN, World, done, failed, new, parked, released, retried

HOUR = 3600.0


def now() -> datetime:
    return datetime.now(UTC)


async def _received(world: World, quantity: int = 100) -> list[Any]:
    return [lease.command_id for lease in await world.receive(quantity)]


# -- not before a time


@pytest.mark.parametrize("form", ["seconds", "timedelta", "time"])
async def test_a_delayed_command_is_received_when_it_is_due(world: World, form: str) -> None:
    forms: dict[str, SendOptions] = {
        "seconds": {"delay": HOUR},
        "timedelta": {"delay": timedelta(hours=1)},
        "time": {"deliver_at": now() + timedelta(hours=1)},
    }
    later, at_once = new(**forms[form]), new()
    await world.send(later, at_once)

    assert await _received(world) == [at_once.command_id]
    assert await world.status(later.command_id) is CommandStatus.PENDING

    await world.advance(HOUR - 60)
    assert later.command_id not in await _received(world)

    await world.advance(120)
    assert later.command_id in await _received(world)


async def test_a_time_in_the_past_is_now_and_goes_before_nothing(world: World) -> None:
    first, late = new(), new(deliver_at=now() - timedelta(days=9))
    await world.send(first)
    await world.send(late)

    assert await _received(world, 1) == [first.command_id]
    assert await _received(world, 1) == [late.command_id]


async def test_a_delay_of_nothing_is_now(world: World) -> None:
    command = new(delay=0)
    await world.send(command)

    assert await _received(world) == [command.command_id]


async def test_what_is_due_for_longest_goes_first_whenever_it_was_sent(world: World) -> None:
    last, first, second = new(delay=HOUR), new(delay=60), new()
    await world.send(last, first)
    await world.advance(120)
    await world.send(second)
    await world.advance(HOUR)

    assert [await _received(world, 1) for _ in range(3)] == [
        [first.command_id], [second.command_id], [last.command_id],
    ]  # fmt: skip


async def test_the_audit_says_what_a_sender_asked_for(world: World) -> None:
    at = datetime(2026, 12, 24, 18, 0, tzinfo=UTC).replace(year=now().year)
    at = max(at, now() + timedelta(days=1)).replace(microsecond=0)
    shown = at.strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    command = new(deliver_at=at, priority=-1, limit_key="bank")
    keyed = new(ordering_key="account:42", expires_at=at.astimezone())
    await world.send(command, keyed, new(priority=0))

    [told] = await world.details(command.command_id, "SENT")
    [of_keyed] = await world.details(keyed.command_id, "SENT")
    basics = {"type", "correlation_id"}
    assert {name: told[name] for name in told.keys() - basics} == {
        "deliver_at": shown, "priority": -1, "limit_key": "bank",
    }  # fmt: skip
    assert {name: of_keyed[name] for name in of_keyed.keys() - basics} == {
        "ordering_key": "account:42", "expires_at": shown,
    }  # fmt: skip


async def test_a_command_says_when_it_is_due_while_it_waits_for_that(world: World) -> None:
    at = (now() + timedelta(hours=1)).replace(microsecond=0)
    delayed, at_once = new(deliver_at=at, expires_at=at + timedelta(hours=1), priority=1), new()
    await world.send(delayed, at_once)

    row = await world.command(delayed.command_id)
    assert (row.due_at, row.deliver_at, row.expires_at) == (at, at, at + timedelta(hours=1))
    assert (row.priority, row.ordering_key, row.limit_key) == (1, None, None)
    row = await world.command(at_once.command_id)
    assert (row.due_at, row.deliver_at, row.expires_at, row.waiting_for) == (None,) * 4

    await world.advance(HOUR + 60)
    assert (await world.command(delayed.command_id)).due_at is None


async def test_what_backs_off_says_when_it_is_due(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    assert (await world.command(lease.command_id)).due_at is None
    await world.settle(retried(lease, HOUR))

    row = await world.command(lease.command_id)

    assert row.due_at == row.updated_at + timedelta(seconds=HOUR)
    assert row.deliver_at is None


async def test_a_delayed_command_can_be_canceled(world: World, store: Store) -> None:
    command = new(delay=HOUR)
    await world.send(command)

    await store.cancel(DOMAIN, [command.command_id], reason="not wanted", actor="ann")
    await world.advance(2 * HOUR)

    assert await world.receive() == []
    assert await world.status(command.command_id) is CommandStatus.CANCELED


async def test_commands_of_a_batch_have_their_own_times(world: World) -> None:
    later, at_once = new(delay=HOUR), new(expires_in=60)
    batch_id = await world.create_batch(later, at_once)

    [lease] = await world.receive()
    await world.settle(done(lease))
    assert await world.counters(batch_id) == ("IN_PROGRESS", 2, 1, 0, 0, 0)

    await world.advance(HOUR)
    [lease] = await world.receive()
    await world.settle(done(lease))
    assert await world.counters(batch_id) == ("COMPLETED", 2, 2, 0, 0, 0)


async def test_the_closing_command_of_a_batch_is_delayed_from_its_end(world: World) -> None:
    asked = {"domain": DOMAIN, "type": "Report", "data": {}, "reply_to": "", "delay_seconds": 60}
    await world.create_batch(new(), on_complete={**asked, "priority": 1})
    [lease] = await world.receive()
    await world.settle(done(lease))

    assert await world.receive() == []
    await world.advance(60)
    [closing] = await world.receive()
    assert closing.command_type == "Report"


async def test_a_handler_sends_delayed_commands_with_its_outcome(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    follower = new(delay=HOUR, expires_in=2 * HOUR)

    await world.settle(done(lease, None, OutgoingCommands(DOMAIN, (follower,))))

    assert await world.receive() == []
    await world.advance(HOUR)
    assert await _received(world) == [follower.command_id]


async def test_an_operators_retry_does_not_wait_for_a_time_that_is_over(
    world: World, store: Store
) -> None:
    command = new(delay=HOUR)
    await world.send(command)
    await world.advance(HOUR)
    [lease] = await world.receive()
    await world.settle(parked(lease))

    await store.operator_retry(DOMAIN, [command.command_id], actor="ann", reset_attempts=True)

    assert await _received(world) == [command.command_id]


# -- not after a time


async def test_what_has_not_begun_by_its_time_ends_with_an_event_and_a_reply(world: World) -> None:
    command = new(expires_in=60)
    await world.send(command)
    await world.advance(61)

    assert await world.status(command.command_id) is CommandStatus.CANCELED
    assert await world.receive() == []
    assert await world.events(command.command_id) == ["SENT", "EXPIRED"]
    [details] = await world.details(command.command_id, "EXPIRED")
    assert details["reason"].startswith("not begun by 2")
    [reply] = await world.replies()
    assert (reply["command_id"], reply["outcome"]) == (str(command.command_id), "CANCELED")
    assert reply["error"] == {
        "code": "EXPIRED", "message": details["reason"], "class": "CANCELED",
    }  # fmt: skip


async def test_what_begins_before_its_time_is_over_goes_on(world: World) -> None:
    command = new(expires_in=60)
    await world.send(command)
    await world.advance(30)
    [lease] = await world.receive(vt_seconds=600)

    await world.advance(60)
    assert await world.status(command.command_id) is CommandStatus.IN_PROGRESS

    assert await world.settle(done(lease)) == set()
    assert await world.status(command.command_id) is CommandStatus.COMPLETED


@pytest.mark.parametrize("give_back", [retried, released])
async def test_what_goes_back_must_begin_again_in_time(world: World, give_back: Any) -> None:
    command = new(expires_in=60)
    [lease] = await world.send_and_receive(command)
    await world.settle(give_back(lease))

    await world.advance(61)

    assert await world.status(command.command_id) is CommandStatus.CANCELED
    assert (await world.events(command.command_id))[-1] == "EXPIRED"


async def test_what_its_worker_lost_does_not_begin_again_after_its_time(world: World) -> None:
    command = new(expires_in=60)
    [lease] = await world.send_and_receive(command)
    await world.advance(601)
    assert await world.status(command.command_id) is CommandStatus.IN_PROGRESS

    assert await world.receive() == []

    assert await world.status(command.command_id) is CommandStatus.CANCELED
    assert (await world.events(command.command_id))[-1] == "EXPIRED"
    # The worker that may still be running it is fenced.
    assert await world.settle(done(lease)) == {command.command_id}
    assert await world.status(command.command_id) is CommandStatus.CANCELED
    assert len(await world.replies()) == 1


async def test_a_parked_command_does_not_expire_and_a_retry_lifts_its_expiry(
    world: World, store: Store
) -> None:
    command = new(expires_in=60)
    await world.park(command)
    await world.advance(61)
    assert await world.status(command.command_id) is CommandStatus.IN_TROUBLESHOOTING_QUEUE

    await store.operator_retry(DOMAIN, [command.command_id], actor="ann", reset_attempts=True)
    await world.advance(61)

    [lease] = await world.receive()
    await world.settle(done(lease))
    assert await world.status(command.command_id) is CommandStatus.COMPLETED


async def test_a_batch_counts_expired_commands_as_canceled_and_a_retry_leaves_them(
    world: World, store: Store
) -> None:
    gone, fails = new(expires_in=60, delay=30), new()
    batch_id = await world.create_batch(gone, fails)
    [lease] = await world.receive()
    await world.settle(failed(lease))
    await world.advance(61)
    assert await world.counters(batch_id) == ("COMPLETED_WITH_FAILURES", 2, 0, 1, 1, 0)

    assert await store.retry_batch(DOMAIN, batch_id, actor="ann") == 1

    assert await world.status(gone.command_id) is CommandStatus.CANCELED


async def test_a_caller_learns_that_its_command_expired(world: World, store: Store) -> None:
    command = new(reply_to=INBOX, expires_in=60)
    await world.send(command)
    await world.advance(61)

    body = await store.take_inbox_reply(DOMAIN, command.command_id)

    assert body is not None
    assert orjson.loads(body)["error"]["code"] == "EXPIRED"


# -- what cannot be


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"expires_at": -timedelta(hours=1)}, "expires_at is in the past"),
        ({"deliver_at": timedelta(days=400)}, "more than a year ahead"),
        ({"expires_at": timedelta(days=800)}, "more than two years ahead"),
        ({"delay": HOUR, "expires_at": timedelta(minutes=9)}, "before it is delivered"),
        ({"deliver_at": timedelta(hours=1), "expires_in": 60}, "before it is delivered"),
        ({"delay": HOUR, "deliver_at": timedelta(0)}, "both given"),
        ({"expires_in": HOUR, "expires_at": timedelta(0)}, "both given"),
        ({"delay": HOUR, "expires_in": 60}, "expires_in must be longer"),
        ({"delay": -1}, "delay is -1"),
        ({"delay": 1e9}, "delay is"),
        ({"expires_in": 0}, "expires_in is 0"),
        ({"deliver_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, "use a datetime"),
        ({"priority": 3}, "priority is 3"),
        ({"ordering_key": ""}, "1 to 200"),
        ({"ordering_key": "k" * 201}, "1 to 200"),
        ({"ordering_key": "half \ud800"}, "1 to 200"),
        ({"limit_key": "half \ud800"}, "1 to 200"),
        ({"ordering_key": "k", "delay": 60}, "cannot be delayed"),
        ({"ordering_key": "k", "deliver_at": timedelta(hours=1)}, "cannot be delayed"),
        ({"urgency": 3}, "is not an option"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    world: World, store: Store, options: Any, problem: str
) -> None:
    # Times are given from now on: from that of the test, not from when it was collected.
    options = {
        name: now() + value if name.endswith("_at") and isinstance(value, timedelta) else value
        for name, value in options.items()
    }
    bus = CommandBus(store=store)
    await store.ensure_domain(DOMAIN)
    before = await world.dump()

    with pytest.raises(InvalidInputError, match=problem):
        await bus.send(DOMAIN, "Debit", uuid4(), {}, **options)
    with pytest.raises(InvalidInputError, match=problem):
        await bus.send_many(
            DOMAIN,
            [BatchCommand("Debit", uuid4(), {}), BatchCommand("Debit", uuid4(), {}, **options)],
        )
    with pytest.raises(InvalidInputError, match=problem):
        await bus.create_batch(DOMAIN, [BatchCommand("Debit", uuid4(), {}, **options)])

    assert await world.dump() == before


async def test_a_known_id_is_refused_whatever_its_options_are(world: World) -> None:
    command = new(delay=HOUR)
    await world.send(command)
    before = await world.dump()

    with pytest.raises(DuplicateCommandError):
        await world.send(new(command_id=command.command_id, priority=1, expires_in=60))

    assert await world.dump() == before

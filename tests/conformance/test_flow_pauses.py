"""Pause: a domain, or one of its types, of which nothing is started until it is resumed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError
from commandbus.models import CommandStatus
from tests.conformance.worlds import DOMAIN, World, done, new, parked, released, retried

NOBODY = UUID(int=0)


@pytest.fixture
def bus(store: Store) -> CommandBus:
    return CommandBus(store=store)


async def _received(world: World) -> list[UUID]:
    return [lease.command_id for lease in await world.receive(vt_seconds=6_000)]


async def _told(world: World) -> list[tuple[str, str | None, dict[str, Any]]]:
    """What the audit has of pauses: event, actor and details; also those of earlier tests."""
    trail = await world.store.get_audit_trail(NOBODY, domain=DOMAIN, limit=10_000)
    found = [e for e in trail if e.event_type in {"PAUSED", "RESUMED"}]
    return [(e.event_type, e.actor, e.details or {}) for e in found]


# -- a domain


async def test_nothing_of_a_paused_domain_is_received(world: World, bus: CommandBus) -> None:
    before, meanwhile = new(), new(priority=2)
    await world.send(before)

    await bus.pause(DOMAIN, reason="the bank is down", operator="ann")
    await world.send(meanwhile)

    assert await world.receive() == []
    assert await world.receive(from_head=True) == []
    assert await world.status(before.command_id) is CommandStatus.PENDING

    assert await bus.resume(DOMAIN, operator="bob") is True
    assert set(await _received(world)) == {before.command_id, meanwhile.command_id}


async def test_other_domains_go_on(world: World, store: Store, bus: CommandBus) -> None:
    await store.ensure_domain(DOMAIN)
    await store.send("shipping", [new()])

    await bus.pause(DOMAIN, reason="r")

    leases = await store.receive("shipping", vt_seconds=30, quantity=9, worker="w", limits={})
    assert len(leases) == 1


async def test_what_runs_goes_on_and_what_goes_back_waits(world: World, bus: CommandBus) -> None:
    leases = await world.send_and_receive(new(), new(), new())
    await bus.pause(DOMAIN, reason="r")

    assert await world.store.extend(DOMAIN, leases, 600) == set()
    outcomes = [done(leases[0]), retried(leases[1], 0), released(leases[2])]
    assert await world.settle(*outcomes) == set()

    assert await world.receive() == []
    await bus.resume(DOMAIN)
    assert set(await _received(world)) == {leases[1].command_id, leases[2].command_id}


async def test_operators_work_on_a_paused_domain(
    world: World, store: Store, bus: CommandBus
) -> None:
    stuck, gone = new(), new()
    await world.park(stuck)
    await world.send(gone)
    await bus.pause(DOMAIN, reason="r")

    await store.operator_retry(DOMAIN, [stuck.command_id], actor="ann", reset_attempts=True)
    await store.cancel(DOMAIN, [gone.command_id], reason="r", actor="ann")

    assert await world.receive() == []
    await bus.resume(DOMAIN)
    assert await _received(world) == [stuck.command_id]


async def test_commands_of_a_paused_domain_expire(world: World, bus: CommandBus) -> None:
    command = new(expires_in=60)
    await world.send(command)
    await bus.pause(DOMAIN, reason="r")

    await world.advance(61)

    assert await world.status(command.command_id) is CommandStatus.CANCELED


@pytest.mark.parametrize("in_seconds", [True, False])
async def test_a_pause_with_an_end_is_over_by_itself(
    world: World, bus: CommandBus, in_seconds: bool
) -> None:
    command = new()
    await world.send(command)
    until = timedelta(hours=1) if in_seconds else datetime.now(UTC) + timedelta(hours=1)
    await bus.pause(DOMAIN, reason="r", until=until)

    await world.advance(3_500)
    assert await world.receive() == []

    await world.advance(200)
    assert await _received(world) == [command.command_id]
    assert await bus.pauses(DOMAIN) == []
    assert await bus.resume(DOMAIN) is False


async def test_a_second_pause_replaces_the_first(world: World, bus: CommandBus) -> None:
    await world.send(new())
    await bus.pause(DOMAIN, reason="first", until=timedelta(hours=1), operator="ann")
    await bus.pause(DOMAIN, reason="second", operator="bob")

    [pause] = await bus.pauses(DOMAIN)
    assert (pause.domain, pause.reason, pause.by, pause.until) == (DOMAIN, "second", "bob", None)
    await world.advance(4_000)
    assert await world.receive() == []
    assert await bus.resume(DOMAIN) is True
    assert await bus.resume(DOMAIN) is False


async def test_the_audit_tells_who_paused_and_who_resumed(world: World, bus: CommandBus) -> None:
    await world.send(new())
    earlier = len(await _told(world))
    await bus.pause(DOMAIN, reason="the bank is down", operator="ann")
    await bus.resume(DOMAIN, operator="bob")
    await bus.pause(DOMAIN, reason="a short while", until=timedelta(seconds=60))
    await world.advance(61)

    told = (await _told(world))[earlier:]
    assert [(event, actor) for event, actor, _ in told] == [
        ("PAUSED", "ann"), ("RESUMED", "bob"), ("PAUSED", None), ("RESUMED", None),
    ]  # fmt: skip
    details = [each for _, _, each in told]
    assert [sorted(each) for each in details] == [
        ["reason"], ["paused_at", "reason"], ["reason", "until"], ["until"],
    ]  # fmt: skip
    assert [each.get("reason") for each in details] == [
        "the bank is down", "the bank is down", "a short while", None,
    ]  # fmt: skip


async def test_a_pause_that_cannot_be_is_refused(world: World, bus: CommandBus) -> None:
    with pytest.raises(InvalidInputError, match="there is no domain"):
        await bus.pause("payment", reason="a typing error")
    await world.send(new())
    for until in (datetime.now(UTC) - timedelta(hours=1), timedelta(0), datetime(2030, 1, 1)):  # noqa: DTZ001
        with pytest.raises(InvalidInputError):
            await bus.pause(DOMAIN, reason="r", until=until)
    with pytest.raises(InvalidInputError):
        await bus.pause(DOMAIN, reason=" ")

    assert await bus.pauses() == []
    assert len(await world.receive()) == 1


# -- a type


async def test_nothing_of_a_paused_type_is_received(world: World, bus: CommandBus) -> None:
    debit, credit = new("Debit"), new("Credit")
    await world.send(debit, credit)

    await bus.pause(DOMAIN, type="Debit", reason="r", operator="ann")
    await world.send(later := new("Debit"))

    assert await _received(world) == [credit.command_id]
    assert await world.receive(from_head=True) == []
    assert await bus.resume(DOMAIN, operator="ann") is False

    assert await bus.resume(DOMAIN, type="Debit", operator="ann") is True
    assert await _received(world) == [debit.command_id, later.command_id]
    assert await bus.resume(DOMAIN, type="Debit") is False


async def test_many_of_a_paused_type_hold_up_no_other(world: World, bus: CommandBus) -> None:
    await world.store.ensure_domain(DOMAIN)
    await bus.pause(DOMAIN, type="Debit", reason="r")
    await world.send(*(new("Debit") for _ in range(30)), other := new("Credit"))

    # A receive turns away so many at most; the next one does not meet them again.
    groups = [await world.receive(2) for _ in range(20)]

    assert [lease.command_id for leases in groups for lease in leases] == [other.command_id]


async def test_a_paused_type_and_a_paused_domain_are_two_pauses(
    world: World, bus: CommandBus
) -> None:
    debit, credit = new("Debit"), new("Credit")
    await world.send(debit, credit)
    await bus.pause(DOMAIN, type="Debit", reason="of the type")
    await bus.pause(DOMAIN, reason="of the domain")

    await bus.resume(DOMAIN)
    assert await _received(world) == [credit.command_id]

    await bus.pause(DOMAIN, reason="of the domain")
    await bus.resume(DOMAIN, type="Debit")
    assert await world.receive() == []
    await bus.resume(DOMAIN)
    assert await _received(world) == [debit.command_id]


async def test_the_pause_of_a_type_with_an_end_is_over_by_itself(
    world: World, bus: CommandBus
) -> None:
    command = new("Debit")
    await world.send(command)
    await bus.pause(DOMAIN, type="Debit", reason="r", until=timedelta(hours=1))
    assert await world.receive() == []

    await world.advance(3_700)

    assert await _received(world) == [command.command_id]


async def test_the_pauses_of_a_domain_and_of_its_types_are_listed(
    world: World, bus: CommandBus
) -> None:
    await world.send(new())
    await bus.pause(DOMAIN, type="Debit", reason="of the type", operator="ann")
    await bus.pause(DOMAIN, reason="of the domain", until=timedelta(hours=1))

    found = await bus.pauses(DOMAIN)

    shown = [(each.type, each.reason, each.by, each.until is not None) for each in found]
    assert sorted(shown, key=str) == [
        ("Debit", "of the type", "ann", False), (None, "of the domain", None, True),
    ]  # fmt: skip


async def test_the_audit_tells_which_type_was_paused(world: World, bus: CommandBus) -> None:
    await world.send(new())
    earlier = len(await _told(world))
    await bus.pause(DOMAIN, type="Debit", reason="r", operator="ann")
    await bus.resume(DOMAIN, type="Debit", operator="bob")
    await bus.pause(DOMAIN, type="Debit", reason="r", until=timedelta(seconds=60))
    await world.advance(61)

    told = (await _told(world))[earlier:]

    assert [(event, actor, details["type"]) for event, actor, details in told] == [
        ("PAUSED", "ann", "Debit"), ("RESUMED", "bob", "Debit"),
        ("PAUSED", None, "Debit"), ("RESUMED", None, "Debit"),
    ]  # fmt: skip
    assert [sorted(details.keys() - {"type"}) for _, _, details in told] == [
        ["reason"], ["paused_at", "reason"], ["reason", "until"], ["paused_at", "reason", "until"],
    ]  # fmt: skip


async def test_what_of_a_paused_type_runs_goes_on_and_its_retry_waits(
    world: World, bus: CommandBus
) -> None:
    leases = await world.send_and_receive(new(), new(), new())
    await bus.pause(DOMAIN, type="Debit", reason="r")

    outcomes = [done(leases[0]), retried(leases[1], 0), parked(leases[2])]
    assert await world.settle(*outcomes) == set()

    assert await world.receive() == []
    await bus.resume(DOMAIN, type="Debit")
    assert await _received(world) == [leases[1].command_id]


async def test_commands_of_a_paused_type_expire_and_are_canceled(
    world: World, store: Store, bus: CommandBus
) -> None:
    late, unwanted, stays = new(expires_in=60), new(), new()
    await world.send(late, unwanted, stays)
    await bus.pause(DOMAIN, type="Debit", reason="r")
    assert await world.receive() == []

    await world.advance(61)
    await store.cancel(DOMAIN, [unwanted.command_id], reason="r", actor="ann")

    assert await world.status(late.command_id) is CommandStatus.CANCELED
    await bus.resume(DOMAIN, type="Debit")
    assert await _received(world) == [stays.command_id]


async def test_a_command_of_a_paused_type_blocks_its_key(world: World, bus: CommandBus) -> None:
    debit, credit = new("Debit", ordering_key="k"), new("Credit", ordering_key="k")
    await world.send(debit, credit)
    await bus.pause(DOMAIN, type="Debit", reason="r")
    assert await world.receive() == []

    await bus.resume(DOMAIN, type="Debit")

    assert await _received(world) == [debit.command_id]


# -- what a dead worker had


@pytest.mark.parametrize("kind", [None, "Debit"])
async def test_what_a_dead_worker_had_can_be_ended_and_moved_in_a_pause(
    world: World, bus: CommandBus, kind: str | None
) -> None:
    ended, asked, moved = (new("Debit") for _ in range(3))
    late = new("Debit", expires_in=2_000_000)
    leases = await world.send_and_receive(ended, asked, moved, late)
    await world.lapse()
    await bus.pause(DOMAIN, type=kind, reason="it kills its workers")

    await bus.cancel(DOMAIN, ended.command_id, "why")
    assert await bus.cancel(DOMAIN, asked.command_id, "why", running="request") == "canceled"
    await bus.set_priority(DOMAIN, moved.command_id, 1)
    await bus.reschedule(DOMAIN, moved.command_id, delay=5)
    await bus.send_now(DOMAIN, moved.command_id)
    await world.lapse()
    await world.lapse()

    assert await world.status(ended.command_id) is CommandStatus.CANCELED
    assert await world.status(asked.command_id) is CommandStatus.CANCELED
    assert await world.status(late.command_id) is CommandStatus.CANCELED
    assert await world.status(moved.command_id) is CommandStatus.PENDING
    assert "LEASE_EXPIRED" in await world.events(moved.command_id)
    assert await world.settle(*(done(lease) for lease in leases)) == {
        lease.command_id for lease in leases
    }
    await bus.resume(DOMAIN, type=kind)
    [again] = await world.receive()
    assert (again.command_id, again.attempt, again.lease_epoch) == (moved.command_id, 1, 3)
    assert (await world.events(moved.command_id)).count("LEASE_EXPIRED") == 1


async def test_a_lapse_before_a_pause_counts_if_every_one_does(
    world: World, bus: CommandBus
) -> None:
    [lease] = await world.send_and_receive(new("Debit", max_attempts=1))
    await world.lapse()
    await bus.pause(DOMAIN, type="Debit", reason="r")
    assert await world.receive() == []
    await bus.resume(DOMAIN, type="Debit")

    assert await world.receive(count_every=["Debit"]) == []

    assert await world.status(lease.command_id) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert (await world.events(lease.command_id)).count("LEASE_EXPIRED") == 1
    [failure] = await world.details(lease.command_id, "FAILED")
    assert failure["code"] == "LEASE_EXPIRED"

"""Sending once: ids that are known are skipped, and of a key one command at a time is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, Command, CommandBus, SendReport, Settings
from commandbus.database.model import OutgoingCommands
from commandbus.errors import (
    BatchNotFoundError,
    DuplicateCommandError,
    InvalidInputError,
    InvalidOperationError,
    RepeatedIdError,
    UniqueKeyHeldError,
)
from commandbus.flow import check_flow
from commandbus.handler import HandlerContext
from tests.conformance.worlds import DOMAIN, World, done, new, parked, retried

SECRET = "4711-secret"


@pytest.fixture
def bus(world: World) -> CommandBus:
    return CommandBus(store=world.store, settings=Settings(poll_max_seconds=0.05))


def item(command_id: UUID | None = None, n: int = 0, **options: Any) -> BatchCommand:
    return BatchCommand("Debit", command_id or uuid4(), {"n": n}, **options)


async def send(bus: CommandBus, key: str = "k", n: int = 0, **options: Any) -> UUID:
    """Send a new command with a key; returns who holds it."""
    given = {"unique_key": key, "on_duplicate": "skip", **options}
    return await bus.send(DOMAIN, "Debit", uuid4(), {"n": n}, **given)


@asynccontextmanager
async def undone(world: World) -> AsyncIterator[Any]:
    """A transaction that is rolled back."""
    with suppress(ZeroDivisionError):
        async with world.store.transaction() as transaction:
            yield transaction.conn
            raise ZeroDivisionError


async def payload(world: World, command_id: UUID) -> Any:
    return json.loads(await world.store.get_payload(DOMAIN, command_id) or "null")


# -- known ids


async def test_known_ids_are_skipped_and_the_others_are_sent(world: World, bus: CommandBus) -> None:
    known, ended, fresh = uuid4(), uuid4(), uuid4()
    await bus.send_many(DOMAIN, [item(known), item(ended)])
    leases = await world.receive()
    await world.settle(*(done(lease) for lease in leases if lease.command_id == ended))

    report = await bus.send_many(
        DOMAIN, [item(known, n=9), item(fresh), item(ended)], on_duplicate="skip"
    )

    assert isinstance(report, SendReport)
    assert (report.sent, report.skipped) == ([fresh], [known, ended])
    assert report == [fresh]
    assert await payload(world, known) == {"n": 0}
    assert await world.events(known) == ["SENT", "RECEIVED"]
    assert await world.events(fresh) == ["SENT"]
    assert [lease.command_id for lease in await world.receive()] == [fresh]


async def test_of_an_id_that_is_there_twice_the_first_is_sent(
    world: World, bus: CommandBus
) -> None:
    one, other = uuid4(), uuid4()
    report = await bus.send_many(
        DOMAIN, [item(one, n=1), item(other), item(one, n=2)], on_duplicate="skip"
    )
    assert (report.sent, report.skipped) == ([one, other], [one])
    assert await payload(world, one) == {"n": 1}


async def test_all_known_is_nothing_sent(world: World, bus: CommandBus) -> None:
    one = uuid4()
    await bus.send_many(DOMAIN, [item(one)])
    report = await bus.send_many(DOMAIN, [item(one)], on_duplicate="skip")
    assert (report.sent, report.skipped) == ([], [one])
    assert len(await world.receive()) == 1


async def test_a_batch_counts_what_was_sent(world: World, bus: CommandBus) -> None:
    known, fresh = uuid4(), uuid4()
    await bus.send_many(DOMAIN, [item(known)])
    batch = await world.create_batch(new())
    await bus.send_many(DOMAIN, [item(known), item(fresh)], batch_id=batch, on_duplicate="skip")
    assert (await world.batch(batch)).total_count == 2
    assert (await world.command(known)).batch_id is None
    with pytest.raises(BatchNotFoundError):
        await bus.send_many(DOMAIN, [item(known)], batch_id=uuid4(), on_duplicate="skip")


async def test_known_ids_are_skipped_in_the_transaction_of_the_caller(
    world: World, bus: CommandBus
) -> None:
    known, fresh, lost = uuid4(), uuid4(), uuid4()
    await bus.send_many(DOMAIN, [item(known)])
    async with world.store.transaction() as transaction:
        report = await bus.send_many(
            DOMAIN, [item(known), item(fresh)], on_duplicate="skip", conn=transaction.conn
        )
        assert (report.sent, report.skipped) == ([fresh], [known])
    async with undone(world) as conn:
        await bus.send_many(DOMAIN, [item(lost)], on_duplicate="skip", conn=conn)
    assert {lease.command_id for lease in await world.receive()} == {known, fresh}


async def test_very_many_are_sent_in_chunks(world: World) -> None:
    bus = CommandBus(store=world.store, settings=Settings())
    ids = [uuid4() for _ in range(2_500)]
    await bus.send_many(DOMAIN, (item(each) for each in ids[::2]))
    again = [*ids, ids[1], ids[2_001]]
    report = await bus.send_many(DOMAIN, (item(each) for each in again), on_duplicate="skip")
    assert report.sent == ids[1::2]
    assert report.skipped == [*ids[::2], ids[1], ids[2_001]]


async def test_without_skip_known_ids_are_refused_as_before(bus: CommandBus) -> None:
    one = uuid4()
    assert await bus.send_many(DOMAIN, [item(one)]) == [one]
    with pytest.raises(DuplicateCommandError):
        await bus.send_many(DOMAIN, [item(one), item()])
    with pytest.raises(RepeatedIdError):
        await bus.send_many(DOMAIN, [item(other := uuid4()), item(other)])
    with pytest.raises(InvalidInputError, match="on_duplicate"):
        await bus.send_many(DOMAIN, [item()], on_duplicate="replace")  # type: ignore[arg-type]


async def test_ids_of_other_domains_are_known_where_ids_are_global(
    world: World, bus: CommandBus
) -> None:
    one = uuid4()
    await bus.send_many("returns", [item(one)])
    await world.make_ids_global()
    report = await bus.send_many(DOMAIN, [item(one), item(two := uuid4())], on_duplicate="skip")
    assert (report.sent, report.skipped) == ([two], [one])


# -- keys


async def test_an_open_command_holds_its_key_until_it_has_ended(
    world: World, bus: CommandBus
) -> None:
    first = await send(bus)
    assert await send(bus) == first
    [lease] = await world.receive()
    assert await send(bus) == first
    await world.settle(retried(lease))
    assert await send(bus) == first
    await world.lapse()
    [lease] = await world.receive()
    await world.settle(done(lease))
    second = await send(bus)
    assert second != first
    assert await send(bus) == second


async def test_another_key_and_another_domain_are_not_held(bus: CommandBus) -> None:
    first = await send(bus)
    assert await send(bus, "other") != first
    assert (
        await bus.send("returns", "Debit", other := uuid4(), {}, unique_key="k") == other != first
    )


async def test_a_canceled_command_holds_nothing(world: World, bus: CommandBus) -> None:
    first = await send(bus)
    await bus.cancel(DOMAIN, first, "not needed")
    assert await send(bus) != first


async def test_a_parked_command_holds_nothing_until_it_is_sent_again(
    world: World, bus: CommandBus
) -> None:
    first = await send(bus)
    [lease] = await world.receive()
    await world.settle(parked(lease))
    await world.store.operator_retry(DOMAIN, [first], actor=None, reset_attempts=True)
    assert await send(bus) == first
    [lease] = await world.receive()
    await world.settle(parked(lease))
    second = await send(bus)
    assert second != first
    # The key has gone on to the second: a retry never collides with it, and takes nothing back.
    await world.store.operator_retry(DOMAIN, [first], actor=None, reset_attempts=True)
    assert await send(bus) == second


async def test_a_waiting_command_holds_its_key_until_it_is_leased(
    world: World, bus: CommandBus
) -> None:
    first = await send(bus, unique_while="waiting")
    assert await send(bus, unique_while="waiting") == first
    [lease] = await world.receive()
    second = await send(bus, unique_while="waiting")
    assert second != first
    await world.settle(retried(lease))
    assert await send(bus, unique_while="waiting") == second


async def test_a_waiting_command_that_is_leased_without_a_mark_holds_nothing(
    world: World, bus: CommandBus
) -> None:
    first = await send(bus, unique_while="waiting")
    await world.receive(mark_in_progress=False)
    assert await send(bus, unique_while="waiting") != first


async def test_a_throttle_holds_for_its_seconds_whatever_becomes_of_the_command(
    world: World, bus: CommandBus
) -> None:
    first = await send(bus, unique_while=timedelta(hours=1))
    [lease] = await world.receive()
    await world.settle(done(lease))
    assert await send(bus, unique_while=3_600) == first
    short = await send(bus, "short", unique_while=0.001)
    await world.advance(1)
    assert await send(bus, "short", unique_while=0.001) != short


async def test_what_the_holder_asked_for_decides(world: World, bus: CommandBus) -> None:
    first = await send(bus, unique_while=3_600)
    await world.receive()
    assert await send(bus, unique_while="waiting") == first


async def test_a_held_key_is_refused_by_default(world: World, bus: CommandBus) -> None:
    first = await send(bus)
    with pytest.raises(UniqueKeyHeldError, match=f"'k' .* is held by command {first}") as raised:
        await bus.send(DOMAIN, "Debit", uuid4(), {}, unique_key="k")
    assert (raised.value.unique_key, raised.value.command_id) == ("k", first)
    assert len(await world.receive()) == 1


async def test_a_known_id_is_refused_whatever_its_key_does(world: World, bus: CommandBus) -> None:
    first = await send(bus, unique_while="waiting")
    await world.receive()
    with pytest.raises(DuplicateCommandError) as raised:
        await bus.send(DOMAIN, "Debit", first, {}, unique_key="other", on_duplicate="skip")
    assert not isinstance(raised.value, UniqueKeyHeldError)
    # The key that was asked for in vain is free.
    second = await send(bus, "other")
    assert second != first


async def test_a_repeat_of_the_same_send_gets_its_own_command(bus: CommandBus) -> None:
    one = uuid4()
    for _ in range(2):
        given = await bus.send(DOMAIN, "Debit", one, {}, unique_key="k", on_duplicate="skip")
        assert given == one


async def test_many_commands_with_keys_are_sent_together(world: World, bus: CommandBus) -> None:
    held = await send(bus, "b")
    a, c, plain = uuid4(), uuid4(), uuid4()
    report = await bus.send_many(
        DOMAIN,
        [
            item(c, unique_key="c"),
            item(unique_key="b"),
            item(plain),
            item(a, unique_key="a"),
            item(unique_key="c"),
        ],
        on_duplicate="skip",
    )
    assert (report.sent, report.skipped) == ([c, plain, a], [held, c])
    assert {lease.command_id for lease in await world.receive()} == {held, a, c, plain}


async def test_one_held_key_refuses_the_whole_call(world: World, bus: CommandBus) -> None:
    held = await send(bus, "b")
    with pytest.raises(UniqueKeyHeldError, match="'b'"):
        await bus.send_many(DOMAIN, [item(unique_key="a"), item(unique_key="b")])
    with pytest.raises(UniqueKeyHeldError, match="'d'"):
        await bus.send_many(DOMAIN, [item(unique_key="d"), item(unique_key="d")])
    assert [lease.command_id for lease in await world.receive()] == [held]
    # Nothing of it holds a key.
    report = await bus.send_many(DOMAIN, [item(unique_key="a"), item(unique_key="d")])
    assert len(report) == 2


async def test_known_ids_among_commands_with_keys_are_skipped_too(
    world: World, bus: CommandBus
) -> None:
    known = uuid4()
    await bus.send_many(DOMAIN, [item(known)])
    fresh = uuid4()
    report = await bus.send_many(
        DOMAIN, [item(known, unique_key="a"), item(fresh, unique_key="b")], on_duplicate="skip"
    )
    assert (report.sent, report.skipped) == ([fresh], [known])
    assert await send(bus, "a") not in {known, fresh}
    with pytest.raises(DuplicateCommandError):
        await bus.send_many(DOMAIN, [item(known, unique_key="x"), item(unique_key="y")])
    assert len(await bus.send_many(DOMAIN, [item(unique_key="x"), item(unique_key="y")])) == 2


async def test_a_batch_counts_only_what_its_keys_let_in(world: World, bus: CommandBus) -> None:
    held = await send(bus)
    batch = await world.create_batch(new())
    report = await bus.send_many(
        DOMAIN,
        [item(unique_key="k"), item(unique_key="free")],
        batch_id=batch,
        on_duplicate="skip",
    )
    assert report.skipped == [held]
    assert (await world.batch(batch)).total_count == 2


async def test_the_rollback_of_the_holder_frees_its_key(world: World, bus: CommandBus) -> None:
    async with undone(world) as conn:
        first = await send(bus, conn=conn)
        assert await send(bus, conn=conn) == first
    second = await send(bus, unique_while=600)
    assert await send(bus) == second


async def test_what_handlers_send_holds_its_key(world: World) -> None:
    flow = check_flow({"unique_key": "c", "on_duplicate": "skip"})
    leases = await world.send_and_receive(new(), new(), new())
    sends = [OutgoingCommands(DOMAIN, (replace(new("Credit"), flow=flow),)) for _ in leases]
    await world.settle(
        *(done(lease, None, each) for lease, each in zip(leases, sends, strict=True))
    )
    assert [lease.command_type for lease in await world.receive()] == ["Credit"]


async def test_a_handler_that_sends_with_a_held_key_is_parked(
    world: World, bus: CommandBus
) -> None:
    held = await send(bus, "c")

    async def handle(command: Command, context: HandlerContext) -> None:
        if command.command_id != held:
            context.send(DOMAIN, "Debit", uuid4(), {}, unique_key="c", unique_while=600)
        else:
            await asyncio.Event().wait()

    await world.receive()
    bus.register_handler(DOMAIN, "Debit", handle)
    await bus.send(DOMAIN, "Debit", other := uuid4(), {})
    await bus.run_worker(DOMAIN, until_empty=True)
    command = await world.command(other)
    assert command.status == "IN_TROUBLESHOOTING_QUEUE"
    assert command.last_error_code == "DUPLICATE_COMMAND"


# -- replacing


async def test_a_replacement_gives_the_waiting_command_its_payload(
    world: World, bus: CommandBus
) -> None:
    how: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "replace"}
    first = await send(bus, n=1, **how)
    assert await send(bus, n=2, actor="ann", **how) == first
    assert await payload(world, first) == {"n": 2}
    assert await world.events(first) == ["SENT", "REPLACED"]
    [lease] = await world.receive()
    assert lease.command_id == first
    assert json.loads(lease.payload or "") == {"n": 2}
    second = await send(bus, n=3, **how)
    assert second != first
    assert await payload(world, first) == {"n": 2}


async def test_a_replacement_has_all_its_attempts(world: World, bus: CommandBus) -> None:
    how: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "replace"}
    first = await send(bus, n=1, **how)
    [lease] = await world.receive()
    await world.settle(retried(lease))
    assert (await world.command(first)).attempts == 1
    assert await send(bus, n=2, **how) == first
    shown = await world.command(first)
    assert (shown.attempts, shown.last_error_code) == (0, None)
    [again] = await world.receive()
    assert again.attempt == 1


async def test_the_audit_has_no_payload_of_a_replacement(world: World, bus: CommandBus) -> None:
    how: dict[str, Any] = {
        "unique_key": "k", "unique_while": "waiting", "on_duplicate": "replace",
    }  # fmt: skip
    first = await bus.send(DOMAIN, "Debit", uuid4(), {"password": SECRET}, **how)
    await bus.send(DOMAIN, "Debit", offered := uuid4(), {"password": SECRET + "2"}, **how)
    trail = await world.store.get_audit_trail(first, domain=DOMAIN, limit=100)
    assert SECRET not in repr(trail)
    assert trail[-1].details == {"offered_id": str(offered)}


async def test_a_debounced_command_waits_for_a_quiet_time(world: World, bus: CommandBus) -> None:
    how: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "replace", "delay": 60}
    first = await send(bus, n=1, **how)
    await world.advance(50)
    assert await send(bus, n=2, **how) == first
    await world.advance(50)
    assert await world.receive() == []
    await world.advance(20)
    [lease] = await world.receive()
    assert lease.command_id == first
    assert await payload(world, first) == {"n": 2}


async def test_a_command_of_another_type_is_not_replaced(world: World, bus: CommandBus) -> None:
    how: dict[str, Any] = {
        "unique_key": "k", "unique_while": "waiting", "on_duplicate": "replace",
    }  # fmt: skip
    first = await bus.send(DOMAIN, "Debit", uuid4(), {"n": 1}, **how)
    with pytest.raises(InvalidInputError, match=f"held by {first}, a Debit"):
        await bus.send(DOMAIN, "Credit", uuid4(), {"n": 2}, **how)
    assert await payload(world, first) == {"n": 1}


async def test_a_command_of_a_batch_is_not_replaced(world: World, bus: CommandBus) -> None:
    batch = await world.create_batch(new())
    first = uuid4()
    await bus.send_many(
        DOMAIN, [item(first, unique_key="k", unique_while="waiting")], batch_id=batch
    )
    with pytest.raises(InvalidOperationError, match="not replaced"):
        await send(bus, unique_while="waiting", on_duplicate="replace")
    assert await payload(world, first) == {"n": 0}
    with pytest.raises(InvalidInputError, match="batch"):
        await send(bus, unique_while="waiting", on_duplicate="replace", batch_id=batch)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"unique_key": ""}, "1 to 200"),
        ({"unique_key": 7}, "1 to 200"),
        ({"unique_key": "x" * 201}, "1 to 200"),
        ({"unique_key": "half \ud800"}, "1 to 200"),
        ({"unique_key": "k", "unique_while": "done"}, "waiting, open"),
        ({"unique_key": "k", "unique_while": 0}, "unique_while"),
        ({"unique_key": "k", "unique_while": -5}, "unique_while"),
        ({"unique_key": "k", "unique_while": True}, "unique_while"),
        ({"unique_key": "k", "on_duplicate": "ignore"}, "refuse, skip, replace"),
        ({"unique_key": "k", "on_duplicate": "replace"}, "only a command that waits"),
        ({"unique_key": "k", "on_duplicate": "skip", "max_wait": 5}, "max_wait goes with"),
        ({"unique_while": "open"}, "unique_key"),
        ({"on_duplicate": "skip"}, "unique_key"),
        ({"max_wait": 5}, "unique_key"),
        (
            {
                "unique_key": "k",
                "unique_while": "waiting",
                "on_duplicate": "replace",
                "delay": 9,
                "max_wait": 5,
            },
            "at least as long",
        ),
        (
            {
                "unique_key": "k",
                "unique_while": "waiting",
                "on_duplicate": "replace",
                "ordering_key": "o",
            },
            "ordering_key",
        ),
    ],
)
async def test_options_that_cannot_be_are_refused(
    world: World, bus: CommandBus, options: dict[str, Any], match: str
) -> None:
    await world.store.ensure_domain(DOMAIN)
    with pytest.raises(InvalidInputError, match=match):
        await bus.send(DOMAIN, "Debit", uuid4(), {}, **options)
    assert await world.receive() == []


async def test_where_all_must_be_sent_a_key_is_refused(bus: CommandBus) -> None:
    with pytest.raises(InvalidInputError, match="unique_key"):
        await bus.create_batch(DOMAIN, [item(unique_key="k")])
    with pytest.raises(InvalidInputError, match="unique_key"):
        await bus.create_batch(DOMAIN, [item()], on_complete_command=item(unique_key="k"))
    with pytest.raises(InvalidInputError, match="as a list"):
        await bus.send_many(DOMAIN, (item(unique_key=str(n)) for n in range(3)))
    with pytest.raises(InvalidInputError, match="alone"):
        await bus.send_many(
            DOMAIN, [item(unique_key="k", unique_while="waiting", on_duplicate="replace"), item()]
        )

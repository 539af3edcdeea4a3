"""What travels with a command beside its data: absent when empty, kept on every way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    InvalidInputError,
    Settings,
)
from commandbus.commands.replies import parse_reply
from commandbus.database.model import OutgoingCommands
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

META = {"tenant": "north", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def bus(world: World) -> CommandBus:
    return CommandBus(store=world.store, settings=Settings(poll_max_seconds=0.05))


def of(lease: Any) -> Any:
    return None if lease.meta is None else json.loads(lease.meta)


async def kept(world: World, command_id: UUID) -> Any:
    return json.loads(await world.store.get_meta(DOMAIN, command_id) or "null")


async def test_every_way_to_send_brings_meta_to_the_lease(world: World, bus: CommandBus) -> None:
    ways: dict[UUID, str] = {}

    def one(way: str, **options: Any) -> BatchCommand:
        command = BatchCommand("Debit", uuid4(), {}, meta=META, **options)
        ways[command.command_id] = way
        return command

    single = one("send")
    await bus.send(DOMAIN, "Debit", single.command_id, {}, meta=META)
    delayed = one("with flow")
    await bus.send(DOMAIN, "Debit", delayed.command_id, {}, meta=META, limit_key="k")
    named = one("with an actor")
    await bus.send(DOMAIN, "Debit", named.command_id, {}, meta=META, actor="ann")
    unique = one("unique")
    await bus.send(DOMAIN, "Debit", unique.command_id, {}, meta=META, unique_key="u")
    await bus.send_many(DOMAIN, [one("send_many")])
    await bus.send_many(DOMAIN, [one("packed") for _ in range(500)])
    await bus.send_many(DOMAIN, [one("skipping")], on_duplicate="skip")
    await bus.create_batch(DOMAIN, [one("batch")])
    async with world.store.transaction() as transaction:
        inside = one("in a transaction")
        await bus.send(DOMAIN, "Debit", inside.command_id, {}, meta=META, conn=transaction.conn)

    leases = await world.receive(1_000)

    assert {ways[lease.command_id] for lease in leases} == set(ways.values())
    assert len(leases) == len(ways)
    assert [ways[lease.command_id] for lease in leases if of(lease) != META] == []


async def test_without_meta_the_message_has_no_such_member(world: World, bus: CommandBus) -> None:
    sent = [
        await bus.send(DOMAIN, "Debit", uuid4(), {}),
        await bus.send(DOMAIN, "Debit", uuid4(), {}, meta={}),
        await bus.send(DOMAIN, "Debit", uuid4(), {}, meta=None, limit_key="k"),
        *await bus.send_many(DOMAIN, [BatchCommand("Debit", uuid4(), {}, meta={})]),
    ]
    assert [await kept(world, each) for each in sent] == [None] * 4
    assert [lease.meta for lease in await world.receive()] == [None] * 4


@pytest.mark.parametrize(
    "end", [lambda lease: retried(lease, 0), released, lambda lease: snoozed(lease, 0)]
)
async def test_a_command_that_comes_back_has_its_meta_still(world: World, end: Any) -> None:
    await world.send(new(meta=META))
    (lease,) = await world.receive()
    await world.settle(end(lease))
    (again,) = await world.receive()
    assert of(again) == META


@pytest.mark.parametrize("payload", [None, {"n": 2}])
async def test_an_operators_retry_keeps_meta_also_with_an_edited_payload(
    world: World, bus: CommandBus, payload: Any
) -> None:
    command = new(data={"n": 1}, meta=META)
    await world.park(command)
    assert await kept(world, command.command_id) == META
    await bus.operator_retry(DOMAIN, command.command_id, payload=payload)
    (lease,) = await world.receive()
    assert of(lease) == META


async def test_a_send_that_replaces_a_waiting_command_replaces_its_meta(
    world: World, bus: CommandBus
) -> None:
    async def send(**options: Any) -> UUID:
        return await bus.send(
            DOMAIN, "Debit", uuid4(), {}, unique_key="k", unique_while="waiting",
            on_duplicate="replace", **options,
        )  # fmt: skip

    held = await send(meta=META)
    await send(meta={"tenant": "south"})
    assert await kept(world, held) == {"tenant": "south"}
    await send()
    assert await kept(world, held) is None


@pytest.mark.parametrize("end", [done, failed, discarded])
async def test_the_reply_carries_what_the_outcome_says(world: World, end: Any) -> None:
    commands = [new(meta=META), new(meta=META)]
    await world.send(*commands)
    first, second = await world.receive()
    await world.settle(replace(end(first), meta={"from": "handler"}))
    await world.settle(end(second))
    queued = await world.store.read_replies(f"{DOMAIN}.replies", vt_seconds=30, quantity=10)
    replies = {reply.command_id: reply for reply in (parse_reply(each.body) for each in queued)}
    assert replies[first.command_id].meta == {"from": "handler"}
    assert replies[second.command_id].meta is None
    bodies = [json.loads(each.body) for each in queued]
    assert sorted("meta" in body for body in bodies) == [False, True]


async def test_what_a_handler_sends_has_its_own_meta(world: World) -> None:
    await world.send(new())
    (lease,) = await world.receive()
    await world.settle(done(lease, None, OutgoingCommands(DOMAIN, (new(meta=META),))))
    (sent,) = await world.receive()
    assert of(sent) == META


async def test_the_closing_command_of_a_batch_has_its_meta(world: World, bus: CommandBus) -> None:
    await bus.create_batch(
        DOMAIN, [BatchCommand("Debit", uuid4(), {})],
        on_complete_command=BatchCommand("Closed", uuid4(), {}, meta=META),
    )  # fmt: skip
    await world.settle(*(done(lease) for lease in await world.receive()))
    (closing,) = await world.receive()
    assert (closing.command_type, of(closing)) == ("Closed", META)


async def test_a_handler_reads_meta_and_adds_to_the_reply(world: World, bus: CommandBus) -> None:
    async def debit(command: Command, ctx: HandlerContext) -> None:
        ctx.add_reply_meta({"seen": ctx.meta["tenant"]})
        ctx.add_reply_meta({"and": "more"})
        with pytest.raises(InvalidInputError):
            ctx.add_reply_meta({"bad": 3})  # type: ignore[dict-item]

    bus.register_handler(DOMAIN, "Debit", debit)
    await bus.send(DOMAIN, "Debit", uuid4(), {}, meta=META)
    async with bus.worker(DOMAIN):
        reply = await anext(bus.replies(DOMAIN))
    assert reply.meta == {"seen": "north", "and": "more"}


async def test_a_parked_command_that_was_sent_without_meta_is_retried_without(
    world: World, bus: CommandBus
) -> None:
    await world.send(new())
    (lease,) = await world.receive()
    await world.settle(parked(lease))
    await bus.operator_retry(DOMAIN, lease.command_id)
    (again,) = await world.receive()
    assert again.meta is None

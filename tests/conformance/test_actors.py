"""Who sends, and who ends a batch, as the audit has it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.database.model import OutgoingCommands
from tests.conformance.batching import CLOSING, closing_id
from tests.conformance.worlds import DOMAIN, World, done, new, parked


async def actors(world: World, command_id: UUID) -> dict[str, Any]:
    trail = await world.store.get_audit_trail(command_id, domain=DOMAIN, limit=100)
    return {event.event_type: event.actor for event in trail}


@pytest.mark.parametrize("count", [1, 3])
async def test_the_sender_is_in_the_audit_if_it_was_named(world: World, count: int) -> None:
    named, silent = [new() for _ in range(count)], [new() for _ in range(count)]
    await world.store.send(DOMAIN, named, actor="cron")
    await world.store.send(DOMAIN, silent)
    for command in named:
        assert await actors(world, command.command_id) == {"SENT": "cron"}
    for command in silent:
        assert await actors(world, command.command_id) == {"SENT": None}


async def test_commands_that_join_a_batch_have_their_sender(world: World) -> None:
    batch_id = await world.create_batch(new())
    joining = new()
    await world.store.send(DOMAIN, [joining], batch_id=batch_id, actor="cron")
    assert await actors(world, joining.command_id) == {"SENT": "cron"}


async def test_the_commands_of_a_batch_have_its_sender_else_its_creator(world: World) -> None:
    first, second = new(), new()
    await world.create_batch(first, created_by="ada", actor="cron")
    await world.create_batch(second, created_by="ada")
    assert await actors(world, first.command_id) == {"SENT": "cron"}
    assert await actors(world, second.command_id) == {"SENT": "ada"}


async def test_what_a_handler_sends_has_the_actor_that_it_names(world: World) -> None:
    sent = new()
    (lease,) = await world.send_and_receive(new())
    await world.settle(done(lease, None, OutgoingCommands(DOMAIN, (sent,), None, "robot")))
    assert await actors(world, sent.command_id) == {"SENT": "robot"}


@pytest.mark.parametrize("verb", ["cancel", "operator_cancel", "operator_complete"])
async def test_who_ends_the_last_command_of_a_batch_ends_the_batch(world: World, verb: str) -> None:
    command = new()
    batch_id = await world.create_batch(command, on_complete=CLOSING)
    if verb != "cancel":
        await world.settle(*(parked(lease) for lease in await world.receive()))
    more: dict[str, Any] = {"result": b"null"} if verb.endswith("complete") else {"reason": "no"}
    await getattr(world.store, verb)(DOMAIN, [command.command_id], actor="olga", **more)
    assert (await actors(world, batch_id))["BATCH_COMPLETED"] == "olga"
    assert await actors(world, closing_id(batch_id, 1)) == {"SENT": "olga"}


async def test_a_batch_that_a_worker_ends_has_no_actor_there(world: World) -> None:
    batch_id = await world.create_batch(new(), created_by=str(uuid4()))
    await world.settle(*(done(lease) for lease in await world.receive()))
    assert (await actors(world, batch_id))["BATCH_COMPLETED"] is None

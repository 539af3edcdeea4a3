"""What the tests of batches share."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from commandbus.models import NewCommand
from tests.conformance.worlds import DOMAIN, World, new

CLOSING = {"domain": DOMAIN, "type": "Close", "data": {"x": 1}, "reply_to": "", "max_attempts": 2}


def closing_id(batch_id: UUID, closing: int) -> UUID:
    return UUID(hashlib.md5(f"{batch_id}/{closing}".encode()).hexdigest())


def ids(commands: list[NewCommand]) -> list[UUID]:
    return [command.command_id for command in commands]


async def closing_commands(world: World) -> list[UUID]:
    found = await world.dump()
    return [i for i, c in found["commands"].items() if c["command_type"] == "Close"]


async def ended(world: World, *endings: Any, **options: Any) -> tuple[UUID, list[UUID]]:
    """A batch with one command for each ending, which it has come to."""
    commands = [new() for _ in endings]
    batch_id = await world.create_batch(*commands, **options)
    leases = {lease.command_id: lease for lease in await world.receive()}
    pairs = zip(ids(commands), endings, strict=True)
    await world.settle(*(ending(leases[command_id]) for command_id, ending in pairs))
    return batch_id, ids(commands)

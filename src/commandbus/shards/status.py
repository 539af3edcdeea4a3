"""How each shard stands: is it up, what does it know of the map, what have its domains to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from commandbus.bus import CommandBus
from commandbus.errors import CommandBusError
from commandbus.settings import Settings
from commandbus.shards.map import ShardMap
from commandbus.shards.moves import Move, moved_away, open_moves
from commandbus.shards.record import closed_domains, domains_here, left_in, record_of

#: How long a shard may take to answer, in seconds.
DEADLINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard."""

    shard: str
    #: The version of the map that its database knows; None: it knows of none, or did not answer.
    version: int | None = None
    #: By domain with a queue there: what it has to do, counted.
    domains: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Domains that have left it; their history is still there.
    left: list[str] = field(default_factory=list)
    #: Domains that let nothing new in, because they are about to leave.
    closed: list[str] = field(default_factory=list)
    #: Of those that have left, the ones that took their history along.
    gone: list[str] = field(default_factory=list)
    #: By domain: a move that goes on, to or from here, and how far it is.
    moves: dict[str, str] = field(default_factory=dict)
    #: What is wrong, and what to do; None: nothing.
    problem: str | None = None


async def shard_states(shards: ShardMap, *, settings: Settings | None = None) -> list[ShardStatus]:
    """All shards. One that is down has a problem; an empty one is set up."""

    async def look(name: str, address: str) -> ShardStatus:
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                CommandBus.connect(address, settings=settings) as bus,
            ):
                return await _status(shards, name, bus)
        except CommandBusError as error:
            return ShardStatus(name, problem=str(error))
        except TimeoutError:
            return ShardStatus(name, problem=f"no answer within {DEADLINE_SECONDS:g} s")

    looks = (look(name, address) for name, address in shards.shards.items())
    return list(await asyncio.gather(*looks))


async def _status(shards: ShardMap, name: str, bus: CommandBus) -> ShardStatus:
    gateway = bus._store.gateway
    record = await record_of(gateway)
    here = await domains_here(gateway)
    domains = {
        each: await left_in(gateway, each) for each, has_left in here.items() if not has_left
    }
    left = [each for each, has_left in here.items() if has_left]
    closed = await closed_domains(gateway)
    moves = {each.domain: _how(each) for each in await open_moves(gateway)}
    gone = await moved_away(gateway, left)
    if record is None:
        told: str | None = "it does not know the map yet; run `commandbus shards apply`"
    else:
        told = record.difference(name, shards)
    version = None if record is None else record.version
    return ShardStatus(name, version, domains, left, closed, gone, moves, told)


def _how(move: Move) -> str:
    where = f"to {move.to_shard}" if move.is_leaving else f"from {move.from_shard}"
    closed = ", and closed" if move.is_leaving and move.phase in {"closing", "verified"} else ""
    return f"on its way {where}: {move.phase}{closed}; `commandbus shards move` goes on"

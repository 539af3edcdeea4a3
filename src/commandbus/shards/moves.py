"""The records of moves in a database, and what keeps a domain still there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString
from uuid import UUID

import orjson

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway
    from commandbus.shards.map import ShardMap

#: In the order of Move.
_FROM_MOVES: LiteralString = (
    "select m.move_id, m.domain, m.is_leaving, m.from_shard, m.to_shard, m.phase, m.is_frozen,"
    " m.counts from {schema}.command_bus_move m"
)
_MOVES: LiteralString = _FROM_MOVES + " where m.domain = %s order by m.started_at desc"
_OPEN_MOVES: LiteralString = _FROM_MOVES + " where m.finished_at is null order by m.domain"
_AWAY: LiteralString = (
    "select distinct m.domain from {schema}.command_bus_move m"
    " where m.domain = any(cast(%s as text[])) and m.is_leaving and m.phase = 'finished' order by 1"
)
_QUEUES: LiteralString = (
    "select n.sequence from {schema}.numbers_of(%s) n where n.sequence <> '' order by 1"
)
_LEAVE: LiteralString = "select {schema}.begin_leaving(%s, %s)"
_ARRIVE: LiteralString = "select {schema}.begin_arriving(%s, %s, %s, %s, cast(%s as text[]))"
_NOTE: LiteralString = "select {schema}.note_move(%s, %s, cast(%s as jsonb))"
_VERIFIED: LiteralString = "select {schema}.note_verified(%s, cast(%s as jsonb), %s)"
_ADOPT: LiteralString = (
    "select {schema}.adopt_moved_map(%s, %s, %s, cast(%s as text), cast(%s as jsonb))"
)
_ACROSS: LiteralString = "select {schema}.callbacks_across(%s, %s)"
_CLOSE: LiteralString = "select {schema}.close_leases(%s)"
_OPEN: LiteralString = "select {schema}.open_leases(%s)"
_RUNNING: LiteralString = "select {schema}.running_in_domain(%s)"
_MARK: LiteralString = "select {schema}.mark_frozen(%s)"
_TABLES: LiteralString = (
    "select cast(f.relation as text), f.parent from {schema}.frozen_tables(%s) f"
)
_FREEZE: LiteralString = "select {schema}.freeze_table(%s, cast(%s as regclass), %s)"
_ICE: LiteralString = "select cast(t as text) from {schema}.tables_with_ice(%s) t"
_THAW: LiteralString = "select {schema}.thaw_table(%s, cast(%s as regclass))"
_NUMBERS: LiteralString = "select n.sequence, n.last from {schema}.numbers_of(%s) n"
_GO_PAST: LiteralString = (
    "select {schema}.go_past_numbers(cast(%s as text[]), cast(%s as bigint[]))"
)


@dataclass(frozen=True, slots=True)
class Move:
    """A move, as one of its databases has it."""

    move_id: UUID
    domain: str
    is_leaving: bool
    from_shard: str
    to_shard: str
    phase: str
    is_frozen: bool
    counts: dict[str, int]

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.phase not in {"finished", "canceled"}


async def of_domain(gateway: Gateway, domain: str) -> list[Move]:
    """The moves of a domain, the newest first."""
    return await gateway.rows(_MOVES, (domain,), into=Move)


async def open_moves(gateway: Gateway) -> list[Move]:
    """The moves that go on."""
    return await gateway.rows(_OPEN_MOVES, into=Move)


async def moved_away(gateway: Gateway, domains: list[str]) -> list[str]:
    """Those of these domains that have left with their history."""
    return [domain for (domain,) in await gateway.rows(_AWAY, (domains,))]


async def queues_of(gateway: Gateway, domain: str) -> list[str]:
    """The queues of a domain."""
    return [queue for (queue,) in await gateway.rows(_QUEUES, (domain,))]


async def begin_leaving(gateway: Gateway, domain: str, to: str) -> None:
    """Begin a move where the domain is."""
    await gateway.value(_LEAVE, (domain, to))


async def begin_arriving(gateway: Gateway, move: Move, queues: list[str]) -> None:
    """Begin it where the domain comes to; refused if there is something of it already."""
    params = (move.move_id, move.domain, move.from_shard, move.to_shard, queues)
    await gateway.patient.value(_ARRIVE, params)


async def note(
    gateway: Gateway, move_id: UUID, phase: str, counts: dict[str, int] | None = None
) -> None:
    """Note how far it is."""
    text = None if counts is None else orjson.dumps(counts).decode()
    await gateway.patient.value(_NOTE, (move_id, phase, text))


async def note_verified(
    gateway: Gateway, move_id: UUID, counts: dict[str, int], frozen_at: datetime
) -> None:
    """Note that both have the same, if nobody has opened the domain since it was frozen."""
    params = (move_id, orjson.dumps(counts).decode(), frozen_at)
    await gateway.patient.value(_VERIFIED, params)


async def adopt_moved(gateway: Gateway, move_id: UUID, name: str, shards: ShardMap) -> bool:
    """Tell the shard that a domain leaves of the map, if the move is as it was verified."""
    domains = orjson.dumps(dict(shards.domains)).decode()
    params = (move_id, name, shards.version, shards.default, domains)
    return bool(await gateway.patient.value(_ADOPT, params))


async def callbacks_across(gateway: Gateway, domain: str, to: str) -> str | None:
    """Open batches whose command for the end would be on another shard; None: there are none."""
    found: str | None = await gateway.patient.value(_ACROSS, (domain, to))
    return found


async def close_leases(gateway: Gateway, domain: str) -> None:
    """Let nothing in, and nothing be leased."""
    await gateway.patient.value(_CLOSE, (domain,))


async def open_leases(gateway: Gateway, domain: str) -> None:
    """Let both happen again."""
    await gateway.patient.value(_OPEN, (domain,))


async def running(gateway: Gateway, domain: str) -> int:
    """How many commands run."""
    return int(await gateway.patient.value(_RUNNING, (domain,)))


async def mark_frozen(gateway: Gateway, move_id: UUID) -> datetime:
    """Say that only the move changes the domain; since when, by the clock of the database."""
    since: datetime = await gateway.patient.value(_MARK, (move_id,))
    return since


async def frozen_tables(gateway: Gateway, domain: str) -> list[tuple[str, str]]:
    """The tables that have rows of a domain, and how these are told from others."""
    return [(table, parent) for table, parent in await gateway.rows(_TABLES, (domain,))]


async def freeze(gateway: Gateway, domain: str, table: str, parent: str) -> None:
    """See to it in one table."""
    await gateway.patient.value(_FREEZE, (domain, table, parent))


async def frozen_still(gateway: Gateway, domain: str) -> list[str]:
    """The tables in which it was seen to."""
    return [table for (table,) in await gateway.rows(_ICE, (domain,))]


async def thaw(gateway: Gateway, domain: str, table: str) -> None:
    """Take that back in one table."""
    await gateway.patient.value(_THAW, (domain, table))


async def carry_numbers(source: Gateway, target: Gateway, domain: str) -> None:
    """Let new numbers come after those that the domain has."""
    numbers: dict[str, int] = dict(await source.rows(_NUMBERS, (domain,)))
    await target.value(_GO_PAST, (list(numbers), list(numbers.values())))

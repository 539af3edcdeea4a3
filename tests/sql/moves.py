"""Moves, called for in plain SQL: one database plays the shard that a domain leaves, or the one
that it comes to.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.sql.helpers import Session

OTHER = "refunds"
SENDERS = "command_bus_sender"


async def adopt(db: Session, version: int = 1, **elsewhere: str) -> None:
    """Say that this is shard one, and which domains are on another."""
    await db.value("select commandbus.adopt_map('one', %s, 'one', %s)", version, Jsonb(elsewhere))


async def leaving(db: Session, phase: str = "copying", *, is_frozen: bool = False) -> UUID:
    """A move of the domain to shard two."""
    if not await db.value("select exists (select from commandbus.command_bus_shard)"):
        await adopt(db)
    move: UUID = await db.value("select commandbus.begin_leaving(%s, 'two')", db.domain)
    await as_it_is(db, move, phase, is_frozen=is_frozen)
    return move


async def arriving(db: Session, phase: str = "copying", *, is_frozen: bool = False) -> UUID:
    """A move of the domain from shard two, which has brought nothing yet."""
    move = uuid4()
    await db.rows(
        "insert into commandbus.command_bus_move"
        " (move_id, domain, is_leaving, from_shard, to_shard) values (%s, %s, false, 'two', 'one')",
        move, db.domain,
    )  # fmt: skip
    await as_it_is(db, move, phase, is_frozen=is_frozen)
    return move


async def as_it_is(db: Session, move: UUID, phase: str, *, is_frozen: bool) -> None:
    """Let a move be that far."""
    await db.rows(
        "update commandbus.command_bus_move set phase = %s, is_frozen = %s, finished_at ="
        " case when %s in ('finished', 'canceled') then now() end where move_id = %s",
        phase, is_frozen, phase, move,
    )  # fmt: skip


async def record(db: Session, move: UUID) -> dict[str, Any]:
    """The record of a move."""
    (row,) = await db.rows("select * from commandbus.command_bus_move where move_id = %s", move)
    return row


async def senders(db: Session, *numbers: int, domain: str | None = None) -> None:
    """Rows of one table that refers to nothing, with ids that are in the order of the numbers."""
    for number in numbers:
        await db.rows(
            "insert into commandbus.command_bus_sender (domain, command_id, sent_by, digest)"
            " values (%s, %s, %s, %s)",
            domain or db.domain, UUID(int=number), f"s{number}", b"\x00\xff",
        )  # fmt: skip


async def numbers(db: Session) -> list[tuple[int, str]]:
    """These rows."""
    found = await db.rows(
        "select command_id, sent_by from commandbus.command_bus_sender where domain = %s"
        " order by 1",
        db.domain,
    )
    return [(row["command_id"].int, row["sent_by"]) for row in found]


def key(number: int | None) -> Jsonb | None:
    """Where a chunk of these rows begins, or ends."""
    return None if number is None else Jsonb({"command_id": str(UUID(int=number))})

"""Commands with ordering keys, and what must hold of their keys at any time."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.sql.helpers import FAILURE, Held, Session


async def send_keyed(db: Session, *keys: str | None, **more: Any) -> list[UUID]:
    """One command for each key, in one call."""
    commands = [
        {"command_id": str(uuid4()), "type": "Debit", "ordering_key": key} | more for key in keys
    ]
    await db.value("select commandbus.send_commands(%s, %s)", db.domain, Jsonb(commands))
    return [UUID(command["command_id"]) for command in commands]


async def receive_ids(db: Session, **options: Any) -> list[UUID]:
    """What a receive gives, by id, in the order of the messages."""
    return [held.command_id for held in await db.receive(**options)]


async def complete(db: Session, *held: Held) -> None:
    assert await db.settle("complete", *(each.item(data=None) for each in held)) == []


async def park(db: Session, *held: Held) -> None:
    items = (each.item(reason="PERMANENT", **FAILURE) for each in held)
    assert await db.settle("park", *items) == []


async def key_row(db: Session, key: str) -> dict[str, Any]:
    (row,) = await db.rows(
        "select head, blocked_by from commandbus.command_bus_key"
        " where domain = %s and ordering_key = %s",
        db.domain, key,
    )  # fmt: skip
    return row


async def waiting(db: Session, key: str) -> list[UUID]:
    """Those behind the head, in their order."""
    rows = await db.rows(
        "select command_id from commandbus.command_bus_waiting"
        " where domain = %s and gate = 'k:' || %s order by seq",
        db.domain, key,
    )  # fmt: skip
    return [row["command_id"] for row in rows]


async def set_policy(db: Session, on_park: str) -> None:
    await db.rows("select commandbus.set_key_policy(%s, %s, 'ana', 'test')", db.domain, on_park)


async def assert_nothing_left(db: Session) -> None:
    for table in ("key", "key_due", "waiting"):
        rows = await db.rows(f"select * from commandbus.command_bus_{table}")
        assert rows == [], (table, rows)


async def drain(db: Session) -> list[UUID]:
    """Receive and complete until nothing comes, and tell in which order."""
    order: list[UUID] = []
    while held := await db.receive():
        order += [each.command_id for each in held]
        await complete(db, *held)
    return order


async def every_key_event(db: Session) -> None:
    """Write each event about keys once."""
    table = f"pgmq.q_{db.domain}__commands"
    await db.rows(f"update {table} set vt = 'infinity' where vt <= clock_timestamp()")
    (head,) = await send_keyed(db, "events")
    await park(db, *await db.receive())
    assert await db.value("select commandbus.skip_key(%s, 'events', 'ana')", db.domain) == head
    await set_policy(db, "skip")

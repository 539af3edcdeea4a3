"""Edits of parked children of governed batches, called for in plain SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tests.sql.helpers import FAILURE, Held, Session
from tests.sql.tickets import submitted


async def parked(db: Session, user: str = "ada", *, size: int = 1) -> tuple[UUID, list[Held]]:
    """A governed batch whose children are all parked, in the order of their numbers."""
    ticket_id = await submitted(db, user, size=size)
    held = await db.receive(100)
    await db.settle("park", *(h.item(reason="PERMANENT", **FAILURE) for h in held))
    rows = await db.rows(
        "select command_id from commandbus.command_bus_command where batch_id = %s"
        " order by sequence_no",
        ticket_id,
    )
    by_id = {h.command_id: h for h in held}
    return ticket_id, [by_id[row["command_id"]] for row in rows]


async def edited(
    db: Session,
    *held: Held,
    data: Any = None,
    editor: str | None = "olga",
    bypass: bool = False,
    strict: bool = True,
) -> list[UUID]:
    """Retry these with another payload; returns those that were dealt with."""
    edits = {
        str(h.command_id): {
            "data": {"n": 9} if data is None else data,
            "previous_msg_id": h.msg_id,
            "changes": {"changed": [{"path": "data.n"}]},
        }
        for h in held
    }
    rows = await db.rows(
        "select commandbus.retry_parked(%s, %s, %s, true, %s, %s, %s) as id",
        db.domain, [h.command_id for h in held], editor, strict, Jsonb(edits), bypass,
    )  # fmt: skip
    return [row["id"] for row in rows]


async def digest_of(db: Session, held: Held) -> str:
    """Of the edit of a command that waits."""
    found: str = await db.value(
        "select encode(digest, 'hex') from commandbus.command_bus_edit where command_id = %s",
        held.command_id,
    )
    return found


async def decided(
    db: Session,
    held: Held,
    decision: str = "approve",
    *,
    user: str = "petra",
    digest: str | None = None,
    self_approval: bool = False,
) -> None:
    """Decide about the edit of a command."""
    await db.rows(
        "select commandbus.decide_edit(%s, %s, %s, %s, 'why', %s, %s)",
        db.domain, held.command_id, decision, user, digest, self_approval,
    )  # fmt: skip


async def outdated(db: Session) -> None:
    """Let everything that waits for a decision expire."""
    for table in ("command_bus_edit", "command_bus_content"):
        await db.rows(
            f"update commandbus.{table} set expires_at = clock_timestamp() - interval '1 second'"
        )


async def every_edit_event(db: Session) -> None:
    """Whatever the audit can say about edits and expiry."""
    _, held = await parked(db, size=5)
    await edited(db, *held)
    await decided(db, held[0], digest=await digest_of(db, held[0]))
    await decided(db, held[1], "reject")
    await db.rows("select commandbus.operator_retry(%s, %s)", db.domain, [held[2].command_id])
    await edited(db, held[3], bypass=True)
    await submitted(db, requires_approval=True)
    await outdated(db)
    await db.rows("select commandbus.expire_edit(%s, %s)", db.domain, held[4].command_id)
    for row in await db.rows("select * from commandbus.expired_decisions(10)"):
        await db.rows("select commandbus.expire_ticket(%s, %s)", db.domain, row["batch_id"])

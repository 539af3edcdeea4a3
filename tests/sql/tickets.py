"""Governed batches, called for in plain SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.sql.helpers import Session

DEFAULTS = {
    "global_pending_batches": 100, "global_api_requests": 1000, "user_pending_batches": 3,
    "user_cooldown": 0, "user_pending_children": 30,
}  # fmt: skip


async def begun(
    db: Session,
    user: str = "ada",
    *,
    size: int = 1,
    request_id: UUID | None = None,
    digest: bytes = b"body",
    **limits: int,
) -> dict[str, Any]:
    """What begin_submission says."""
    (row,) = await db.rows(
        "select * from commandbus.begin_submission(%s, 'ORDERS', %s, %s::uuid, %s, %s)",
        user, size, request_id, digest, Jsonb(DEFAULTS | limits),
    )  # fmt: skip
    return row


async def submitted(
    db: Session,
    user: str = "ada",
    *,
    size: int = 1,
    request_id: UUID | None = None,
    digest: bytes = b"body",
    requires_approval: bool = False,
) -> UUID:
    """A governed batch, whatever the limits say."""
    ticket_id = uuid4()
    commands = [
        {"command_id": str(uuid4()), "type": "Debit", "data": {"n": n}, "reply_to": ""}
        for n in range(size)
    ]
    await db.rows(
        "select * from commandbus.create_ticket("
        "%s, %s, %s, 'ORDERS', %s, 'why', %s::uuid, %s, %s, '{}', %s)",
        db.domain, ticket_id, Jsonb(commands), user, request_id, digest, requires_approval,
        Jsonb(DEFAULTS),
    )  # fmt: skip
    return ticket_id


async def ticket(db: Session, ticket_id: UUID) -> dict[str, Any]:
    """The row of batch_approval_tickets."""
    (row,) = await db.rows(
        "select * from commandbus.batch_approval_tickets where ticket_id = %s", ticket_id
    )
    return row

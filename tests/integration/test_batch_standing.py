"""What holds a batch open and what went wrong in it, on a real database."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg

from commandbus import BatchCommand, CommandBus
from commandbus.batches import BatchFacts
from tests.integration.looking import value
from tests.parking import SETTLE


async def test_errors_are_told_by_code_and_a_retry_keeps_its_reason(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    commands = [BatchCommand("Work", uuid4(), {"n": n}) for n in range(5)]
    batch_id = await bus.create_batch("shop", commands)
    batch = await bus.batches.require("shop", batch_id)
    assert await bus.batches.facts(batch) == BatchFacts()
    assert (await bus.batches.errors(batch)).codes == ()
    for code, count in (("DOWN", 3), ("LATE", 1)):
        params = {"domain": "shop", "count": count, "code": code, "message": "no answer"}
        await conn.execute(SETTLE, params)
    batch = await bus.batches.require("shop", batch_id)
    errors = await bus.batches.errors(batch)
    assert [(e.code, e.parked, e.failed) for e in errors.codes] == [("DOWN", 3, 0), ("LATE", 1, 0)]
    assert errors.is_complete
    # Looked at less than there is: it says so.
    few = "select sum(parked) from commandbus.batch_errors('shop', %s, p_scan => 2)"
    assert await value(conn, few, batch_id) == 2

    assert await bus.batches.retry("shop", batch_id, reason="it is back", operator="ann") == 4
    assert await bus.batches.retry("shop", batch_id, reason="again") == 0
    told = [e for e in await bus.get_audit_trail(batch_id) if e.event_type == "BATCH_RETRIED"]
    assert [(e.actor, e.details) for e in told] == [
        ("ann", {"children": 4, "reason": "it is back"})
    ]

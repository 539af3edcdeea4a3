"""Reads: troubleshooting, payloads, replies, listings."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.sql.helpers import DOMAIN, Session

LIST = "select * from commandbus.list_troubleshooting(%s, %s, %s, %s)"


async def test_troubleshooting_is_listed_longest_first_page_by_page(db: Session) -> None:
    parked = [(await db.put("IN_TROUBLESHOOTING_QUEUE")).command_id for _ in range(4)]
    await db.put("COMPLETED")
    rows = await db.rows(LIST, DOMAIN, None, 10, 0)
    assert [row["command_id"] for row in rows] == parked
    assert (rows[0]["reason"], rows[0]["last_error_code"], rows[0]["data"]) == (
        "PERMANENT", "BUSY", '{"n": 0}',
    )  # fmt: skip
    rows = await db.rows(LIST, DOMAIN, None, 2, 1)
    assert [row["command_id"] for row in rows] == parked[1:3]


async def test_troubleshooting_is_listed_by_type(db: Session) -> None:
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    assert len(await db.rows(LIST, DOMAIN, "Debit", 10, 0)) == 1
    assert await db.rows(LIST, DOMAIN, "Credit", 10, 0) == []


async def test_troubleshooting_of_an_unknown_domain_is_empty_and_of_a_bad_one_refused(
    db: Session,
) -> None:
    assert await db.rows(LIST, "orders", None, 10, 0) == []
    with pytest.raises(psycopg.Error) as info:
        await db.rows(LIST, "Orders", None, 10, 0)
    assert info.value.sqlstate == "CB005"


async def test_troubleshooting_lists_also_what_has_lost_its_payload(db: Session) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows("delete from pgmq.a_payments__commands")
    (row,) = await db.rows(LIST, DOMAIN, None, 10, 0)
    assert (row["command_id"], row["data"]) == (held.command_id, None)
    with pytest.raises(psycopg.Error, match="no longer archived") as info:
        await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [held.command_id])
    assert info.value.sqlstate == "CB006"
    assert "new id" in (info.value.diag.message_hint or "")
    assert await db.status(held.command_id) == "IN_TROUBLESHOOTING_QUEUE"


@pytest.mark.parametrize(
    ("status", "expected"),
    [("PENDING", True), ("IN_PROGRESS", True), ("IN_TROUBLESHOOTING_QUEUE", True),
     ("FAILED", True), ("CANCELED", True), ("COMPLETED", False)],
)  # fmt: skip
async def test_a_payload_is_found_until_its_message_is_deleted(
    db: Session, status: str, expected: bool
) -> None:
    held = await db.put(status)
    payload = await db.value("select commandbus.command_payload(%s, %s)", DOMAIN, held.command_id)
    assert payload == ('{"n": 0}' if expected else None)


async def test_a_payload_of_an_unknown_command_is_null(db: Session) -> None:
    read = "select commandbus.command_payload(%s, %s)"
    assert await db.value(read, "orders", uuid4()) is None
    await db.value("select commandbus.ensure_domain('payments')")
    assert await db.value(read, DOMAIN, uuid4()) is None


async def test_replies_are_leased_in_order_and_an_unknown_queue_is_empty(db: Session) -> None:
    read = "select * from commandbus.read_replies(%s, 60, 10)"
    assert await db.rows(read, "orders.replies") == []
    first = await db.put("COMPLETED")
    second = await db.put("FAILED")
    rows = await db.rows(read, "payments.replies")
    assert len(rows) == 2
    assert str(first.command_id) in rows[0]["body"]
    assert str(second.command_id) in rows[1]["body"]
    assert await db.rows(read, "payments.replies") == []


async def query(db: Session, **criteria: Any) -> list[Any]:
    names = ("domain", "command_type", "status", "batch_id", "correlation_id", "after", "before")
    values = [criteria.get(name) for name in names]
    rows = await db.rows(
        "select command_id from commandbus.query_commands("
        "%s, %s, %s, %s::uuid, %s::uuid, %s::timestamptz, %s::timestamptz, %s, %s)",
        *values, criteria.get("limit", 100), criteria.get("offset", 0),
    )  # fmt: skip
    return [row["command_id"] for row in rows]


async def test_commands_are_found_by_each_criterion_newest_first(db: Session) -> None:
    batch = await db.batch()
    correlation = uuid4()
    parked = (await db.put("IN_TROUBLESHOOTING_QUEUE", batch)).command_id
    done = (await db.put("COMPLETED")).command_id
    (last,) = await db.send(type="Credit", correlation_id=str(correlation))
    assert await query(db) == [last, done, parked]
    assert await query(db, domain=DOMAIN, status="COMPLETED") == [done]
    assert await query(db, status="IN_TROUBLESHOOTING_QUEUE") == [parked]
    assert await query(db, command_type="Credit") == [last]
    assert await query(db, batch_id=batch) == [parked]
    assert await query(db, correlation_id=correlation) == [last]
    assert await query(db, domain="orders") == []
    assert await query(db, limit=1, offset=1) == [done]
    created = (await db.command(done))["created_at"]
    assert await query(db, after=created) == [last, done]
    assert await query(db, before=created) == [parked]


@pytest.mark.parametrize(
    "criterion", ["domain", "command_type", "batch_id", "correlation_id", "after", "before"]
)
async def test_parked_commands_are_found_by_the_same_criteria(db: Session, criterion: str) -> None:
    batch = await db.batch()
    held = await db.put("IN_TROUBLESHOOTING_QUEUE", batch)
    row = await db.command(held.command_id)
    matching = {
        "domain": DOMAIN, "command_type": "Debit", "batch_id": batch,
        "correlation_id": row["correlation_id"], "after": row["created_at"], "before": "infinity",
    }  # fmt: skip
    other = {
        "domain": "orders", "command_type": "Credit", "batch_id": uuid4(),
        "correlation_id": uuid4(), "after": "infinity", "before": row["created_at"],
    }  # fmt: skip
    status = "IN_TROUBLESHOOTING_QUEUE"
    assert await query(db, status=status, **{criterion: matching[criterion]}) == [held.command_id]
    assert await query(db, status=status, **{criterion: other[criterion]}) == []

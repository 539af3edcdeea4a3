"""request_cancel: the locks that it takes, and races with the outcomes of the worker."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

REQUEST = "select commandbus.request_cancel(%s, %s, 'why', 'ann') as id"
AGAIN: dict[str, dict[str, Any]] = {
    "retry": {"delay_seconds": 0, **FAILURE},
    "snooze": {"delay_seconds": 0},
    "release": {},
}


async def test_a_request_marks_what_a_worker_has_and_returns_it(db: Session) -> None:
    held, (waiting,) = await db.put("IN_PROGRESS"), await db.send()
    found = await db.rows(REQUEST, DOMAIN, [held.command_id, waiting])
    assert [row["id"] for row in found] == [held.command_id]
    row = await db.command(held.command_id)
    assert (row["cancel_requested_by"], row["cancel_reason"]) == ("ann", "why")
    assert row["cancel_requested_at"] is not None
    assert await db.status(waiting) == "CANCELED"
    assert (await db.command(waiting))["cancel_requested_at"] is None


async def test_a_request_that_is_not_strict_leaves_out_what_it_cannot_mark(db: Session) -> None:
    held, done = await db.put("IN_PROGRESS"), await db.put("COMPLETED")
    ids = [held.command_id, done.command_id, uuid4()]
    with pytest.raises(psycopg.Error, match="and only a command that is PENDING or"):
        await db.rows(REQUEST, DOMAIN, ids[:2])
    found = await db.rows(
        "select commandbus.request_cancel(%s, %s, 'why', null, false) as id", DOMAIN, ids
    )
    assert [row["id"] for row in found] == [held.command_id]
    assert await db.status(done.command_id) == "COMPLETED"


async def test_a_request_wakes_the_workers_of_its_domain_once(db: Session, session: Open) -> None:
    held = await db.put("IN_PROGRESS")
    listener = await session()
    await listener.rows(f'listen "commandbus.{DOMAIN}.cancels"')
    await listener.conn.commit()
    for _ in range(2):
        await db.rows(REQUEST, DOMAIN, [held.command_id])
    heard = [note async for note in listener.conn.notifies(timeout=1.0)]
    assert [note.payload for note in heard] == [""]


@pytest.mark.parametrize("verb", AGAIN)
async def test_a_request_that_waits_for_the_end_of_a_lease_cancels_what_it_left(
    db: Session, session: Open, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    worker, operator = await session(), await session()
    await worker.settle(verb, held.item(**AGAIN[verb]))  # not committed
    asking = asyncio.create_task(operator.rows(REQUEST, DOMAIN, [held.command_id]))
    await db.until_blocked(operator)
    await worker.conn.commit()
    assert await asking == []
    await operator.conn.commit()
    assert await db.status(held.command_id) == "CANCELED"
    assert len(await db.replies(held.command_id)) == 1


@pytest.mark.parametrize("verb", AGAIN)
async def test_an_outcome_that_waits_for_a_request_ends_the_command(
    db: Session, session: Open, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    worker, operator = await session(), await session()
    await operator.rows(REQUEST, DOMAIN, [held.command_id])  # not committed
    ending = asyncio.create_task(worker.settle(verb, held.item(**AGAIN[verb])))
    await db.until_blocked(worker)
    await operator.conn.commit()
    assert await ending == []
    await worker.conn.commit()
    assert await db.status(held.command_id) == "CANCELED"
    assert (await db.events(held.command_id))[2:] == ["CANCEL_REQUESTED", "CANCELED"]
    assert (await db.queued(), len(await db.replies(held.command_id))) == ([], 1)


async def test_of_a_completion_and_a_request_the_completion_wins(
    db: Session, session: Open
) -> None:
    held = await db.put("IN_PROGRESS")
    worker, operator = await session(), await session()
    await worker.settle("complete", held.item(data=1))  # not committed
    asking = asyncio.create_task(operator.rows(REQUEST, DOMAIN, [held.command_id]))
    await db.until_blocked(operator)
    await worker.conn.commit()
    with pytest.raises(psycopg.Error, match="it is COMPLETED"):
        await asking
    await operator.conn.rollback()

    other = await db.put("IN_PROGRESS")
    await db.rows(REQUEST, DOMAIN, [other.command_id])
    await db.settle("complete", other.item(data=1))
    assert await db.status(other.command_id) == "COMPLETED"


async def test_a_group_with_one_that_is_marked_and_one_that_is_lost_tells_them_apart(
    db: Session,
) -> None:
    await db.send(*(uuid4() for _ in range(3)))
    plain, marked, lost = await db.receive()
    await db.lapse(lost)
    await db.receive(worker="w2")
    await db.rows(REQUEST, DOMAIN, [marked.command_id])
    document = {"retry": [h.item(delay_seconds=0, **FAILURE) for h in (plain, marked, lost)]}
    stale = await db.rows(
        "select commandbus.settle_commands(%s, %s) as id", DOMAIN, Jsonb(document)
    )
    assert [row["id"] for row in stale] == [lost.command_id]
    assert [await db.status(h.command_id) for h in (plain, marked, lost)] == [
        "PENDING", "CANCELED", "IN_PROGRESS",
    ]  # fmt: skip


async def test_two_of_one_batch_are_canceled_and_the_batch_closes(db: Session) -> None:
    batch = await db.batch()
    first, second = await db.put("IN_PROGRESS", batch), await db.put("IN_PROGRESS", batch)
    count = "select commandbus.request_batch_cancel(%s, %s, 'why')"
    assert await db.value(count, DOMAIN, batch) == 2
    assert await db.value(count, DOMAIN, batch) == 0
    await db.settle("release", first.item(), second.item())
    found = await db.batch_row(batch)
    assert (found["status"], found["canceled_count"]) == ("COMPLETED_WITH_FAILURES", 2)


async def test_a_request_locks_the_message_before_the_command(db: Session, session: Open) -> None:
    held = await db.put("IN_PROGRESS")
    await db.lapse(held)
    reader, other = await session(), await session()
    await reader.rows(f"select msg_id from pgmq.read('{DOMAIN}__commands', 60, 1)")
    act = asyncio.create_task(other.rows(REQUEST, DOMAIN, [held.command_id]))
    await db.until_blocked(other)
    await reader.rows(
        "select 1 from commandbus.command_bus_command where command_id = %s for update nowait",
        held.command_id,
    )
    await reader.conn.rollback()
    await act


async def test_progress_that_nobody_sees_any_more_is_swept(db: Session) -> None:
    running, ended = await db.put("IN_PROGRESS"), await db.put("IN_PROGRESS")
    items = [h.item(fraction=0.5) for h in (running, ended)]
    await db.rows("select commandbus.record_progress(%s, %s)", DOMAIN, Jsonb(items))
    await db.settle("complete", ended.item(data=1))
    assert await db.value("select commandbus.sweep_progress()") == 0
    await db.rows("update commandbus.command_bus_progress set at = at - interval '1 hour'")
    assert await db.value("select commandbus.sweep_progress()") == 1
    assert await db.value("select commandbus.sweep_progress()") == 0
    (left,) = await db.rows("select command_id from commandbus.command_bus_progress")
    assert left["command_id"] == running.command_id


async def test_progress_outside_of_its_range_is_not_kept_and_its_text_is_cut(db: Session) -> None:
    held, other = await db.put("IN_PROGRESS"), await db.put("IN_PROGRESS")
    items = [held.item(fraction=1.5), other.item(fraction=1, message="x" * 900)]
    await db.rows("select commandbus.record_progress(%s, %s)", DOMAIN, Jsonb(items))
    (row,) = await db.rows("select * from commandbus.command_bus_progress")
    assert (row["command_id"], len(row["message"])) == (other.command_id, 500)


async def test_progress_and_requests_are_of_one_domain_where_two_have_the_same_id(
    db: Session,
) -> None:
    command_id = uuid4()
    held = {}
    for domain in ("orders", DOMAIN):
        db.domain = domain
        await db.send(command_id)
        (held[domain],) = await db.receive()
    item = Jsonb([held[DOMAIN].item(fraction=0.5)])
    await db.rows("select commandbus.record_progress(%s, %s)", DOMAIN, item)
    await db.rows(REQUEST, DOMAIN, [command_id])
    for domain, expected in (("orders", []), (DOMAIN, [command_id])):
        found = await db.rows(
            "select command_id from commandbus.progress_of(%s, %s)", domain, [command_id]
        )
        assert [row["command_id"] for row in found] == expected
        asked = await db.rows(
            "select commandbus.cancel_requests(%s, %s) as id",
            domain, Jsonb([held[domain].item()]),
        )  # fmt: skip
        assert [row["id"] for row in asked] == expected


async def test_a_lost_lease_learns_of_no_request(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.lapse(held)
    (other,) = await db.receive(worker="w2")
    await db.rows(REQUEST, DOMAIN, [held.command_id])
    query = "select commandbus.cancel_requests(%s, %s) as id"
    assert await db.rows(query, DOMAIN, Jsonb([held.item()])) == []
    assert len(await db.rows(query, DOMAIN, Jsonb([other.item()]))) == 1
    kept = await db.rows(
        "select * from commandbus.keep_leases(%s, %s, 60)", DOMAIN, Jsonb([held.item()])
    )
    assert [(row["command_id"], row["is_lost"]) for row in kept] == [(held.command_id, True)]


async def test_a_request_of_what_was_parked_meanwhile_is_refused_though_it_is_marked(
    db: Session,
) -> None:
    held = await db.put("IN_PROGRESS")
    await db.rows(REQUEST, DOMAIN, [held.command_id])
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    told = await db.rows("select commandbus.cancel_requests(%s, %s)", DOMAIN, Jsonb([held.item()]))
    assert told == []
    with pytest.raises(psycopg.Error, match="IN_TROUBLESHOOTING_QUEUE"):
        await db.rows(REQUEST, DOMAIN, [held.command_id])


async def test_a_request_is_not_granted_by_what_a_twin_elsewhere_has(db: Session) -> None:
    done = await db.put("COMPLETED")
    db.domain = "orders"
    await db.send(done.command_id)
    await db.receive()
    await db.rows(REQUEST, "orders", [done.command_id])
    with pytest.raises(psycopg.Error, match="it is COMPLETED"):
        await db.rows(REQUEST, DOMAIN, [done.command_id])


async def test_a_request_for_a_batch_counts_what_workers_have_and_leaves_the_others(
    db: Session,
) -> None:
    batch_id = await db.batch()
    held, waiting = await db.send(uuid4(), uuid4(), batch_id=batch_id)
    await db.receive(1)
    request = "select commandbus.request_batch_cancel(%s, %s, 'why')"
    assert [await db.value(request, DOMAIN, batch_id) for _ in range(2)] == [1, 0]
    assert await db.status(waiting) == "PENDING"
    assert (await db.command(held))["cancel_reason"] == "why"

"""What looks like a fault and is none, and what a window of time leaves out."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import faults
from tests.sql.faults import SURROUNDINGS, healthy
from tests.sql.helpers import DOMAIN, Session


async def found(db: Session, query: str = "doctor()") -> list[str]:
    rows = await db.rows(f"select code from commandbus.{query}")
    return sorted(row["code"] for row in rows if row["code"] not in SURROUNDINGS)


async def wrong_counter_of_an_ended_batch(db: Session, made: dict[str, Any]) -> None:
    await faults.wrong_counter(db, {"BATCH": made["ENDED_BATCH"]})


@pytest.mark.parametrize(
    "inject",
    [
        faults.unknown_message, faults.deleted_message, faults.lease_without_a_worker,
        faults.unlisted, faults.purged_archive, faults.second_end, faults.state_changed_by_hand,
        faults.copied_reply, faults.removed_reply, wrong_counter_of_an_ended_batch,
    ],
    ids=lambda inject: inject.__name__,
)  # fmt: skip
async def test_what_was_not_touched_since_is_left_out(db: Session, inject: Any) -> None:
    await inject(db, await healthy(db))
    assert await found(db, "doctor(null, now() - interval '1 day')") != []
    assert await found(db, "doctor(null, now() + interval '1 day')") == []


async def test_an_open_batch_is_counted_whenever_it_was_touched(db: Session) -> None:
    await faults.wrong_counter(db, await healthy(db))
    assert await found(db, "doctor(null, now() + interval '1 day')") == ["BATCH_COUNTERS"]


async def test_a_domain_without_a_queue_that_has_ended_everything_is_no_fault(db: Session) -> None:
    await healthy(db)
    other = Session(db.conn, "shipping")
    await other.put("COMPLETED")
    await db.rows("select pgmq.drop_queue('shipping__commands')")
    assert await found(db) == []


@pytest.mark.parametrize(
    ("domain", "age", "expected"),
    [
        (DOMAIN, "0", []),
        ("orders", "0", ["NO_WORKER"]),
        (DOMAIN, "2 minutes", ["NO_WORKER", "WORKER_SILENT"]),
    ],
)
async def test_work_lies_about_unless_a_worker_of_the_domain_is_alive(
    db: Session, domain: str, age: str, expected: list[str]
) -> None:
    await faults.nobody_works(db, await healthy(db))
    await db.rows("select commandbus.worker_heartbeat('w1', %s, false, 1, 0)", domain)
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - %s::interval", age
    )
    assert await found(db) == expected


async def test_an_idle_worker_that_was_not_heard_of_lately_need_not_listen(db: Session) -> None:
    await faults.idle_worker_without_a_listener(db, {})
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '40 seconds'"
    )
    assert await found(db) == []


@pytest.mark.parametrize("change", ["dispatch_status = 'awaiting_approval'", "status = 'CANCELED'"])
async def test_what_is_old_and_not_about_to_be_sent_is_not_stuck(db: Session, change: str) -> None:
    await faults.stuck_dispatch(db, {})
    assert await found(db, "check_work()") == ["DISPATCH_STUCK"]
    await db.rows(f"update commandbus.command_bus_command set {change}")
    assert await found(db, "check_work()") == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("updated_at = now()", []),
        ("status = 'sealed'", []),
        ("status = 'sealed', rows_committed = 2, rows_dispatched = 1", ["LOAD_INTERRUPTED"]),
        ("status = 'failed'", ["LOAD_INTERRUPTED"]),
    ],
)
async def test_a_load_is_interrupted_if_something_is_left_and_nothing_happens(
    db: Session, change: str, expected: list[str]
) -> None:
    await faults.interrupted_load(db, {})
    await db.rows(f"update commandbus.command_bus_load set {change}")
    assert await found(db, "check_work()") == expected


async def test_a_batch_that_is_being_removed_just_now_is_no_fault(db: Session) -> None:
    made = await healthy(db)
    await faults.interrupted_prune(db, made)
    await db.rows("update commandbus.command_bus_batch set pruning_since = now()")
    assert await found(db) == []


async def test_a_batch_that_is_half_removed_is_not_counted(db: Session) -> None:
    await db.send(uuid4(), uuid4(), batch_id=await db.batch())
    await db.settle("complete", *(h.item(data=None) for h in await db.receive()))
    for _ in range(2):  # marks it, and removes the first
        await db.rows(f"select commandbus.prune_batches('{DOMAIN}', now() + interval '1 day', 1)")
    assert len(await db.rows("select 1 from commandbus.command_bus_command")) == 1
    assert await found(db, "check_batches()") == []


async def test_an_ended_command_whose_trail_was_removed_is_no_fault(db: Session) -> None:
    held = await db.put("COMPLETED")
    await db.rows(f"select commandbus.prune_audit('{DOMAIN}', now() + interval '1 day', 100)")
    assert await db.events(held.command_id) == []
    assert await found(db, "check_audit()") == []
    await db.rows("update commandbus.command_bus_command set updated_at = now() + interval '2 day'")
    assert await found(db, "check_audit()") == ["AUDIT_MISMATCH"], "retention did not take this one"


async def test_what_is_parked_may_have_its_payload_in_the_table_alone(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows(f"delete from pgmq.a_{DOMAIN}__commands")
    assert await found(db) == []


@pytest.mark.parametrize(
    ("chore", "expected"),
    [("recover dispatch of payments", []), ("recover dispatch of orders", ["CHORE_LATE"])],
)
async def test_a_chore_is_late_if_it_was_not_done_in_this_domain(
    db: Session, chore: str, expected: list[str]
) -> None:
    await faults.late_chore(db, {})
    await db.rows("select commandbus.claim_chore(%s, interval '0')", chore)
    assert await found(db) == expected


async def test_of_a_silent_worker_no_chore_is_expected(db: Session) -> None:
    await faults.late_chore(db, {})
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '2 minutes'"
    )
    assert await found(db) == ["WORKER_SILENT"]


@pytest.mark.parametrize(
    "change", ["vt = now() + interval '1 hour'", "message = message - 'outcome'", "read_ct = 1"]
)
async def test_a_reply_is_missed_only_where_older_ones_lie_unread(db: Session, change: str) -> None:
    await faults.removed_reply(db, await healthy(db))
    assert await found(db) == ["REPLY_MISSING"]
    await db.rows(f"update pgmq.q_payments__replies set {change}")
    assert await found(db, "check_replies()") == []


async def test_a_command_that_asked_for_no_reply_has_none_to_miss(db: Session) -> None:
    await db.put("COMPLETED")
    await db.rows("update pgmq.q_payments__replies set enqueued_at = now() - interval '5 minutes'")
    await db.send(reply_to="")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    assert await found(db) == []


async def test_a_reply_that_went_before_the_oldest_unread_one_is_not_missed(db: Session) -> None:
    made = await healthy(db)
    await db.rows(
        "delete from pgmq.q_payments__replies where message ->> 'command_id' = %s",
        str(made["LONE"].command_id),
    )
    assert await found(db) == []


async def test_other_messages_in_a_queue_of_replies_are_none(db: Session) -> None:
    held = await db.put("COMPLETED")
    for _ in range(2):
        body = {"command_id": str(held.command_id), "domain": DOMAIN, "n": str(uuid4())}
        await db.rows("select pgmq.send('payments__replies', %s::jsonb)", Jsonb(body))
    assert await found(db) == []

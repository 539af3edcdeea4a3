"""Repairs while others are at work: each looks again when it holds the rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sql import faults
from tests.sql.clones import clone
from tests.sql.conftest import Open
from tests.sql.faults import healthy
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_lock_order import COMMANDS, GROUPS, calls, locks_in_order

PARKED = "IN_TROUBLESHOOTING_QUEUE"


async def three_lost(db: Session) -> list[Any]:
    held = [await db.put("PENDING") for _ in range(3)]
    await db.rows(
        "select pgmq.archive('payments__commands', %s::bigint[])", [h.msg_id for h in held]
    )
    return [h.command_id for h in held]


async def three_unlisted(db: Session) -> list[Any]:
    ids = [(await db.put(PARKED)).command_id for _ in range(3)]
    await db.rows("select commandbus.leave_troubleshooting('payments', %s)", ids)
    return ids


async def test_repairs_of_messages_lock_their_commands_in_order(db: Session, session: Open) -> None:
    ids = await three_lost(db)
    act = calls("repair_lost_messages(%s)")
    await locks_in_order(db, session, COMMANDS, ids, act, is_late=True)


async def test_repairs_of_the_list_lock_their_commands_in_order(db: Session, session: Open) -> None:
    ids = await three_unlisted(db)
    await locks_in_order(db, session, COMMANDS, ids, calls("repair_troubleshooting(%s)"))


async def test_repairs_of_groups_lock_them_in_order(db: Session, session: Open) -> None:
    for n in range(3):
        held = await db.put("IN_PROGRESS")
        await db.settle("park", held.item(reason="PERMANENT", **FAILURE | {"error_code": f"E{n}"}))
    await faults.uncounted(db, {})
    rows = await db.rows("select fingerprint from commandbus.command_bus_failure_group")
    keys = [row["fingerprint"] for row in rows]
    await locks_in_order(db, session, GROUPS, keys, calls("repair_groups(%s)"))


@pytest.mark.parametrize(
    ("broken", "repair"),
    [(three_lost, "repair_lost_messages"), (three_unlisted, "repair_troubleshooting")],
)
async def test_of_two_doctors_at_once_one_repairs(
    db: Session, session: Open, broken: Any, repair: str
) -> None:
    await broken(db)
    first, second = await session(), await session()
    query = f"select commandbus.{repair}('payments')"
    assert len(await first.rows(query)) == 3
    task = asyncio.create_task(second.rows(query))
    await db.until_blocked(second)
    await first.conn.commit()
    assert await task == []
    await second.conn.commit()
    assert len(await db.queued()) == (3 if broken is three_lost else 0)


async def test_what_a_worker_ends_meanwhile_gets_no_new_message(db: Session, session: Open) -> None:
    made = await healthy(db)
    await faults.archived_message_of_a_leased_one(db, made)
    worker, doctor = await session(), await session()
    assert await worker.settle("complete", made["IN_PROGRESS"].item(data=None)) == []
    task = asyncio.create_task(doctor.rows("select commandbus.repair_lost_messages('payments')"))
    await db.until_blocked(doctor)
    await worker.conn.commit()
    assert await task == []


@pytest.mark.parametrize("verb", ["operator_retry(%s, %s)", "operator_cancel(%s, %s, 'why')"])
async def test_what_an_operator_decides_meanwhile_is_not_listed_again(
    db: Session, session: Open, verb: str
) -> None:
    parked = await db.put(PARKED)
    await faults.unlisted(db, {"PARKED": parked})
    operator, doctor = await session(), await session()
    await operator.rows(f"select commandbus.{verb}", DOMAIN, [parked.command_id])
    task = asyncio.create_task(doctor.rows("select commandbus.repair_troubleshooting('payments')"))
    await db.until_blocked(doctor)
    await operator.conn.commit()
    assert await task == []
    await doctor.conn.commit()
    assert await db.rows("select 1 from commandbus.command_bus_troubleshooting") == []


async def test_stray_messages_are_archived_up_to_the_number_asked_for(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    for _ in range(3):
        await faults.unknown_message(db, {})
    repair = "select commandbus.repair_messages('payments', null, 2)"
    assert [len(await db.rows(repair)) for _ in range(3)] == [2, 1, 0]


async def test_workers_that_are_just_heard_of_are_not_struck_off_nor_waited_for(
    db: Session, session: Open
) -> None:
    for worker in ("w1", "w2", "w3"):
        await db.rows("select commandbus.worker_heartbeat(%s, %s, true, 1, 0)", worker, DOMAIN)
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '1 hour'"
        " where worker_id <> 'w3'"
    )
    alive = await session()
    await alive.rows("select commandbus.worker_heartbeat('w1', %s, true, 1, 0)", DOMAIN)
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    rows = await db.rows("select commandbus.repair_workers(%s) as worker", DOMAIN)
    assert [row["worker"] for row in rows] == ["w2"]


async def test_the_reason_of_a_listing_is_that_of_the_last_parking(db: Session) -> None:
    parked = await db.put(PARKED)
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, details_json)"
        " values ('orders', %s, 'MOVED_TO_TROUBLESHOOTING_QUEUE', '{\"reason\": \"EXHAUSTED\"}')",
        parked.command_id,
    )
    await faults.unlisted(db, {"PARKED": parked})
    await db.rows("select commandbus.repair_troubleshooting('payments')")
    reason = await db.value("select reason from commandbus.command_bus_troubleshooting")
    assert reason == "PERMANENT"


async def test_the_own_message_of_an_ended_command_is_archived_too(db: Session) -> None:
    held = await db.put("COMPLETED")
    await db.rows(
        "insert into pgmq.q_payments__commands (msg_id, vt, message) overriding system value"
        " values (%s, now(), jsonb_build_object('command_id', %s::text))",
        held.msg_id, held.command_id,
    )  # fmt: skip
    rows = await db.rows("select commandbus.repair_messages('payments') as id")
    assert [row["id"] for row in rows] == [str(held.command_id)]


async def lost_but_kept(db: Session) -> None:
    """The message is gone from queue and archive; the payload table has it, in two domains."""
    held = await db.put("PENDING")
    for domain in ("orders", DOMAIN):
        await db.rows(
            "insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)"
            " select %s, %s, message from pgmq.q_payments__commands",
            domain, held.command_id,
        )  # fmt: skip
    await db.rows("delete from pgmq.q_payments__commands")


async def test_a_kept_payload_is_sent_once_though_two_doctors_find_it_lost(
    db: Session, session: Open
) -> None:
    await lost_but_kept(db)
    first, second = await session(), await session()
    query = "select commandbus.repair_lost_messages('payments')"
    assert len(await first.rows(query)) == 1
    task = asyncio.create_task(second.rows(query))
    await db.until_blocked(second)
    await first.conn.commit()
    assert await task == []
    await second.conn.commit()
    assert len(await db.queued()) == 1


async def test_a_group_is_counted_after_whoever_parks_into_it(db: Session, session: Open) -> None:
    await db.put(PARKED)
    held = await db.put("IN_PROGRESS")
    await faults.uncounted(db, {})
    worker, doctor = await session(), await session()
    await worker.settle("park", held.item(reason="PERMANENT", **FAILURE))
    task = asyncio.create_task(doctor.rows("select commandbus.repair_groups('payments')"))
    await db.until_blocked(doctor)
    await worker.conn.commit()
    await task
    await doctor.conn.commit()
    (group,) = await db.rows("select * from commandbus.command_bus_failure_group")
    assert (group["parked_count"], group["total_seen"]) == (2, 2)


async def test_a_batch_that_retention_marks_meanwhile_is_not_counted_again(
    db: Session, session: Open
) -> None:
    made = await healthy(db)
    await faults.wrong_counter(db, made)
    retention, doctor = await session(), await session()
    await retention.rows(
        "update commandbus.command_bus_batch set pruning_since = now() where batch_id = %s",
        made["BATCH"],
    )
    task = asyncio.create_task(doctor.rows("select commandbus.repair_batches('payments')"))
    await db.until_blocked(doctor)
    await retention.conn.commit()
    assert await task == []


async def test_what_is_listed_and_ended_goes_though_its_twin_is_parked(db: Session) -> None:
    await db.put(PARKED)
    await clone(db, "orders")
    await db.rows(
        "update commandbus.command_bus_command set status = 'CANCELED' where domain = %s", DOMAIN
    )
    assert len(await db.rows("select commandbus.repair_troubleshooting(%s)", DOMAIN)) == 1
    rows = await db.rows("select domain from commandbus.command_bus_troubleshooting")
    assert rows == [{"domain": "orders"}]

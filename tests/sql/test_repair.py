"""What the doctor may repair, it repairs: under locks, with an event, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

from psycopg.types.json import Jsonb

from commandbus import CommandBus
from commandbus.upkeep import Severity
from commandbus.upkeep.findings import FINDINGS
from tests.sql.faults import (
    INJECTED,
    archived_message,
    archived_message_of_a_leased_one,
    codes,
    dropped_queue,
    healthy,
    wrong_counter,
)
from tests.sql.helpers import Session


async def test_what_the_doctor_says_it_can_repair_it_repairs(db: Session, bus: CommandBus) -> None:
    made = await healthy(db)
    for inject, code in INJECTED.items():
        if FINDINGS[code].repair is None or inject.__name__ in ONCE:
            continue
        await inject(db, made)

        found = await bus.upkeep.doctor()
        repaired = await bus.upkeep.doctor(fix=True, operator="ada")

        assert codes(found) == {code}, inject.__name__
        assert found.is_healthy == (FINDINGS[code].severity is not Severity.ERROR)
        assert codes(repaired) == set(), inject.__name__
        (repair,) = repaired.repairs
        assert repair.function == FINDINGS[code].repair
        (row,) = await db.rows(
            "select actor, details_json ->> 'code' as code from commandbus.command_bus_audit"
            " where event_type = 'DOCTOR_REPAIR' order by audit_id desc limit 1"
        )
        told = "BATCH_COUNTERS" if code == "BATCH_STATE" else code
        assert row == {"actor": "ada", "code": told}


#: Change what the next would need; the tests below have them.
ONCE = {"dropped_queue", "archived_message_of_a_leased_one"}


async def test_a_queue_that_was_dropped_is_made_again_and_what_it_held_is_named(
    db: Session, bus: CommandBus
) -> None:
    await dropped_queue(db, {})
    (held,) = await db.rows("select * from commandbus.command_bus_command")

    repaired = await bus.upkeep.doctor(fix=True)

    assert [repair.function for repair in repaired.repairs] == ["repair_queues"]
    assert codes(repaired) == {"PAYLOAD_LOST"}
    (finding,) = [f for f in repaired.findings if f.code == "PAYLOAD_LOST"]
    assert finding.examples == (str(held["command_id"]),)


async def test_a_lost_message_is_sent_again_and_its_command_runs(
    db: Session, bus: CommandBus
) -> None:
    made = await healthy(db)
    await archived_message(db, made)
    pending = made["PENDING"].command_id

    await bus.upkeep.doctor(fix=True)

    (held,) = [h for h in await db.receive() if h.command_id == pending]
    assert held.row["data"] == '{"n": 0}'
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.status(pending) == "COMPLETED"


async def test_the_new_message_of_a_leased_command_waits_for_its_worker(
    db: Session, bus: CommandBus
) -> None:
    made = await healthy(db)
    await archived_message_of_a_leased_one(db, made)
    held = made["IN_PROGRESS"]

    await bus.upkeep.doctor(fix=True)

    assert held.command_id not in {h.command_id for h in await db.receive()}
    assert await db.settle("complete", held.item(data=None)) == []
    assert codes(await bus.upkeep.doctor()) == set()


async def test_a_batch_that_should_have_ended_is_closed_and_calls_back(
    db: Session, bus: CommandBus
) -> None:
    batch = uuid4()
    (last,) = ids = [uuid4()]
    await db.rows(
        "select commandbus.create_batch('payments', %s, %s, null, null, null, %s)",
        batch, Jsonb([{"command_id": str(i), "type": "Debit"} for i in ids]),
        Jsonb({"domain": "payments", "type": "Report", "data": {}}),
    )  # fmt: skip
    (held,) = await db.receive()
    await db.rows(
        "update commandbus.command_bus_batch set total_count = 2 where batch_id = %s", batch
    )
    await db.settle("complete", held.item(data=None))
    assert (await db.batch_row(batch))["completed_at"] is None

    await bus.upkeep.doctor(fix=True)

    row = await db.batch_row(batch)
    assert (row["total_count"], row["status"]) == (1, "COMPLETED")
    assert len(await db.receive()) == 1, "the command that the end of the batch asked for"
    assert await db.status(last) == "COMPLETED"


async def test_a_recount_waits_for_whoever_moves_the_counters(
    db: Session, session: Callable[[], Awaitable[Session]]
) -> None:
    batch = await db.batch()
    first = await db.put("IN_PROGRESS", batch)
    await db.put("PENDING", batch)
    await wrong_counter(db, {"BATCH": batch})
    mover = await session()
    await mover.settle("complete", first.item(data=None))
    repairer = await session()

    task = asyncio.create_task(
        repairer.rows("select * from commandbus.repair_batches('payments', 'ada')")
    )
    await db.until_blocked(repairer)
    await mover.conn.commit()
    await task
    await repairer.conn.commit()

    row = await db.batch_row(batch)
    assert (row["total_count"], row["completed_count"]) == (2, 1)


async def test_what_was_repaired_meanwhile_is_left_alone(db: Session) -> None:
    await healthy(db)
    for verb in ("messages", "lost_messages", "troubleshooting", "batches", "workers", "queues"):
        assert await db.rows(f"select * from commandbus.repair_{verb}('payments', 'ada')") == []


async def test_an_ended_batch_is_counted_again_and_not_closed_again(db: Session) -> None:
    made = await healthy(db)
    await wrong_counter(db, {"BATCH": made["ENDED_BATCH"]})
    before = await db.batch_row(made["ENDED_BATCH"])
    rows = await db.rows("select commandbus.repair_batches('payments')")
    assert len(rows) == 1
    after = await db.batch_row(made["ENDED_BATCH"])
    assert after["completed_count"] == 1
    for column in ("status", "completed_at", "close_count"):
        assert after[column] == before[column]


async def test_a_batch_that_retention_is_removing_is_not_counted_again(db: Session) -> None:
    made = await healthy(db)
    await wrong_counter(db, made)
    await db.rows("update commandbus.command_bus_batch set pruning_since = now()")
    assert await db.rows("select commandbus.repair_batches('payments')") == []

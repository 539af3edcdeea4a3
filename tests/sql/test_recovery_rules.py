"""What recovery takes up, and what it leaves to others."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_cancel_of_stored import stored_batch
from tests.sql.test_twins_apart import OTHER, hold_all_rows, of_the_other
from tests.sql.test_twins_apart import stored as stored_twin

ALL_STATES = "array['pending_queue', 'pending_retry', 'queued']"


async def recover(db: Session, grace: str = "2 minutes") -> dict[str, Any]:
    (row,) = await db.rows(
        "select * from commandbus.recover_dispatch(%s, %s::interval)", DOMAIN, grace
    )
    return row


async def change_dispatch(db: Session, change: str) -> None:
    await db.rows(f"update commandbus.command_bus_dispatch set {change}")


async def dispatches(db: Session) -> int:
    return int(await db.value("select count(*) from commandbus.command_bus_dispatch"))


@pytest.mark.parametrize("pattern", ["two_phase", "optimistic"])
async def test_the_twin_in_another_domain_is_not_recovered_with_it(
    db: Session, pattern: str
) -> None:
    command_id = uuid4()
    for domain in (OTHER, DOMAIN):
        db.domain = domain
        await stored_twin(pattern)(db, command_id)
    before = await of_the_other(db)
    row = await recover(db, "0")
    assert (row["queued"], row["failed"], row["next_after"]) == (1, 0, None)
    assert await of_the_other(db) == before


async def test_recovery_of_a_domain_takes_no_lock_in_another(db: Session, session: Open) -> None:
    db.domain = OTHER
    await stored_twin("two_phase")(db, uuid4())
    await change_dispatch(db, "dispatch_rate = 1")
    recoverer = await session()
    await recover(recoverer, "0")
    await db.rows("set lock_timeout = '2s'")
    await hold_all_rows(db)


async def test_what_is_done_elsewhere_is_not_forgotten_by_ours(db: Session, session: Open) -> None:
    command_id = uuid4()
    db.domain = OTHER
    await stored_twin("two_phase")(db, command_id)
    await db.rows(f"select commandbus.queue_stored(%s, %s, {ALL_STATES})", OTHER, [command_id])
    db.domain = DOMAIN
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")
    await recover(db, "0")
    assert await dispatches(db) == 1


async def test_a_living_process_keeps_the_record_of_its_batch(db: Session) -> None:
    _, ids = await stored_batch(db)
    await db.rows(f"select commandbus.queue_stored(%s, %s, {ALL_STATES})", DOMAIN, ids)
    await recover(db)
    assert await dispatches(db) == 1
    await recover(db, "0")
    assert await dispatches(db) == 0


async def test_what_failed_at_a_rate_is_left_to_its_process_while_that_lives(db: Session) -> None:
    _, ids = await stored_batch(db)
    await change_dispatch(db, "dispatch_rate = 1000")
    await db.value("select commandbus.mark_dispatch_failed(%s, %s, 'no answer')", DOMAIN, ids)
    await change_dispatch(db, "heartbeat_at = now() - interval '1 minute'")
    assert (await recover(db))["queued"] == 0
    await change_dispatch(db, "ended_at = now()")
    assert (await recover(db))["queued"] == 2


async def test_a_rate_is_spent_by_one_recoverer_at_a_time(db: Session, session: Open) -> None:
    await stored_batch(db, number=6)
    await change_dispatch(
        db, "heartbeat_at = now() - interval '180 seconds', dispatch_rate = 1.0 / 60"
    )
    await db.rows(
        "update commandbus.command_bus_command set updated_at = now() - interval '1 hour'"
    )
    first = await session()
    assert (await recover(first))["queued"] == 3
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    assert (await recover(db))["queued"] == 0
    await first.conn.commit()
    assert (await recover(db))["queued"] == 0


async def test_a_living_process_that_marks_before_it_sends_is_left_alone(db: Session) -> None:
    await stored_batch(db, "optimistic")
    before = await db.everything()
    assert (await recover(db))["queued"] == 0
    assert await db.everything() == before


async def test_what_was_left_in_a_queue_elsewhere_is_not_sent_again(db: Session) -> None:
    await stored_batch(db, "optimistic")
    await change_dispatch(db, "queue = 'far away', ended_at = now()")
    before = await db.everything()
    assert (await recover(db, "0"))["queued"] == 0
    assert await db.everything() == before


async def test_recovery_steps_over_what_somebody_holds(db: Session, session: Open) -> None:
    _, (first, _) = await stored_batch(db, "optimistic")
    blocker = await session()
    await blocker.rows(
        "select 1 from commandbus.command_bus_command where command_id = %s for update", first
    )
    await db.rows("set lock_timeout = '2s'")
    assert (await recover(db, "0"))["queued"] == 1


async def store_for(db: Session, queue: str | None) -> tuple[UUID, UUID]:
    """A batch of one, created optimistically, for our queue or for one elsewhere."""
    batch_id, command_id = uuid4(), uuid4()
    await db.value(
        "select commandbus.create_stored_batch(%s, %s, %s, null, null, null, null, false,"
        " 'optimistic', null, %s)",
        DOMAIN, batch_id, Jsonb([{"command_id": str(command_id), "type": "Debit"}]), queue,
    )  # fmt: skip
    return batch_id, command_id


async def test_a_batch_is_forgotten_when_nothing_of_it_is_left_to_send(db: Session) -> None:
    forget = "select commandbus.forget_dispatched(array[%s]::uuid[])"
    ours, ours_id = await store_for(db, None)
    theirs, _ = await store_for(db, "far away")
    await db.rows(forget, ours)
    await db.rows(forget, theirs)
    rows = await db.rows("select batch_id from commandbus.command_bus_dispatch")
    assert [row["batch_id"] for row in rows] == [ours]
    await db.rows(
        "update commandbus.command_bus_command set status = 'CANCELED' where command_id = %s",
        ours_id,
    )
    await db.rows(forget, ours)
    assert await dispatches(db) == 0


async def test_workers_that_were_heard_of_lately_stay(db: Session) -> None:
    for worker, age in (("fresh", "1 minute"), ("gone", "2 hours")):
        await db.rows("select commandbus.worker_heartbeat(%s, %s, false, 1, 0)", worker, DOMAIN)
        await db.rows(
            "update commandbus.command_bus_worker set heartbeat_at = now() - %s::interval"
            " where worker_id = %s",
            age, worker,
        )  # fmt: skip
    assert await db.value("select commandbus.prune_workers()") == 1
    rows = await db.rows("select worker_id from commandbus.command_bus_worker")
    assert [row["worker_id"] for row in rows] == ["fresh"]


async def test_a_dispatch_that_is_finished_twice_is_measured_once(db: Session) -> None:
    batch_id, _ = await stored_batch(db)
    metric = {
        "pattern": "two_phase", "batch_size": 2, "db_insert_ms": 1, "queue_send_ms": 1,
        "status_update_ms": 1, "total_ms": 3, "retry_needed": False,
    }  # fmt: skip
    for _ in range(2):
        await db.value("select commandbus.finish_dispatch(%s, %s)", batch_id, Jsonb(metric))
    assert await db.value("select count(*) from commandbus.command_bus_creation_metric") == 1


async def test_what_was_touched_within_the_grace_is_left_alone(db: Session) -> None:
    await stored_batch(db)
    await change_dispatch(db, "heartbeat_at = now() - interval '1 hour'")
    assert (await recover(db))["queued"] == 0
    await db.rows(
        "update commandbus.command_bus_command set updated_at = now() - interval '1 hour'"
    )
    assert (await recover(db))["queued"] == 2

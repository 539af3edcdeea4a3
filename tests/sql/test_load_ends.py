"""Loads that somebody ends, in plain SQL: sealed or canceled, once, whoever is at work."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_loads import begun, chunk, refused
from tests.sql.test_lock_order import COMMANDS, locks_in_order

SEAL = "select commandbus.seal_load(%s, %s, null, 'ada')"
CANCEL = "select commandbus.cancel_batch(%s, %s, 'withdrawn', 'ada')"
BOTH = pytest.mark.parametrize("start", ["sealed", "as_it_loads"])


async def load_status(db: Session, batch_id: UUID) -> str:
    query = "select status from commandbus.command_bus_load where batch_id = %s"
    return str(await db.value(query, batch_id))


async def counts(db: Session, batch_id: UUID) -> tuple[str, int, int]:
    row = await db.batch_row(batch_id)
    return row["status"], row["total_count"], row["canceled_count"]


async def test_a_seal_takes_what_is_there_for_the_whole(db: Session) -> None:
    batch_id = await begun(db, "as_it_loads")
    await chunk(db, batch_id, [uuid4(), uuid4()])
    await db.value("select commandbus.fail_load(%s, %s, 'line 3: not JSON')", DOMAIN, batch_id)
    await db.value(SEAL, DOMAIN, batch_id)
    assert await load_status(db, batch_id) == "sealed"
    assert await counts(db, batch_id) == ("PENDING", 2, 0)
    details = {"rows": 2, "last_error": "line 3: not JSON"}
    assert await db.details(batch_id, "BATCH_SEALED") == details
    for held in await db.receive(2):
        await db.settle("complete", held.item())
    assert await counts(db, batch_id) == ("COMPLETED", 2, 0)


async def test_an_empty_load_ends_when_it_is_sealed(db: Session) -> None:
    batch_id = await begun(db)
    await db.value(SEAL, DOMAIN, batch_id)
    assert await counts(db, batch_id) == ("COMPLETED", 0, 0)
    assert (await db.batch_row(batch_id))["completed_at"] is not None


async def test_a_second_seal_changes_nothing(db: Session) -> None:
    batch_id = await begun(db)
    await db.value(SEAL, DOMAIN, batch_id)
    before = await db.everything()
    await db.value(SEAL, DOMAIN, batch_id)
    assert await db.everything() == before


async def test_a_seal_of_the_source_itself_is_no_event(db: Session) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4()])
    await db.value("select commandbus.seal_load(%s, %s, 1)", DOMAIN, batch_id)
    assert "BATCH_SEALED" not in await db.events(batch_id)


@BOTH
async def test_a_canceled_load_ends_with_all_that_was_pending(db: Session, start: str) -> None:
    batch_id, ids = await begun(db, start), [uuid4(), uuid4(), uuid4()]
    await chunk(db, batch_id, ids)
    assert await db.value(CANCEL, DOMAIN, batch_id) == 3
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 3, 3)
    assert await load_status(db, batch_id) == "canceled"
    assert await db.details(batch_id, "BATCH_CANCELED") == {"rows": 3, "reason": "withdrawn"}
    assert await db.value(CANCEL, DOMAIN, batch_id) == 0


async def test_nothing_can_be_done_with_a_load_that_was_canceled(db: Session) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4()])
    await db.value(CANCEL, DOMAIN, batch_id)
    before = await db.everything()
    more = Jsonb([{"command_id": str(uuid4()), "type": "Debit"}])
    query = "load_chunk(%s, %s, 2, 2, %s, 'more')"
    assert await refused(db, query, DOMAIN, batch_id, more) == "CB003"
    query = "begin_load(%s, %s, 'rows.csv', '{}', 'sealed')"
    assert await refused(db, query, DOMAIN, batch_id) == "CB003"
    assert await refused(db, "seal_load(%s, %s)", DOMAIN, batch_id) == "CB003"
    assert await refused(db, "seal_load(%s, %s, 1)", DOMAIN, batch_id) == "CB003"
    assert await refused(db, "dispatch_load(%s, %s, 9)", DOMAIN, batch_id) == "CB003"
    await db.value("select commandbus.fail_load(%s, %s, 'x')", DOMAIN, batch_id)
    assert await db.everything() == before


async def test_a_canceled_load_without_commands_has_not_completed_well(db: Session) -> None:
    empty = await begun(db)
    assert await db.value(CANCEL, DOMAIN, empty) == 0
    assert await counts(db, empty) == ("COMPLETED_WITH_FAILURES", 0, 0)
    done = await begun(db, "as_it_loads")
    await chunk(db, done, [uuid4()])
    (held,) = await db.receive()
    await db.settle("complete", held.item())
    await db.value(CANCEL, DOMAIN, done)
    assert await counts(db, done) == ("COMPLETED_WITH_FAILURES", 1, 0)


async def test_a_canceled_load_waits_for_what_a_worker_has(db: Session) -> None:
    batch_id = await begun(db, "as_it_loads")
    await chunk(db, batch_id, [uuid4(), uuid4()])
    (held,) = await db.receive(1)
    assert await db.value(CANCEL, DOMAIN, batch_id) == 1
    assert (await db.batch_row(batch_id))["completed_at"] is None
    await db.settle("complete", held.item())
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 2, 1)


async def test_a_large_load_is_canceled_in_steps_and_closes_with_the_last(db: Session) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4() for _ in range(3)])
    step = "select commandbus.cancel_batch(%s, %s, 'withdrawn', 'ada', 2)"
    assert await db.value(step, DOMAIN, batch_id) == 2
    assert await load_status(db, batch_id) == "canceled"
    assert (await db.batch_row(batch_id))["completed_at"] is None
    assert await db.value(step, DOMAIN, batch_id) == 1
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 3, 3)


async def test_a_cancel_of_a_sealed_load_leaves_it_sealed(db: Session) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4()])
    await db.value(SEAL, DOMAIN, batch_id)
    assert await db.value(CANCEL, DOMAIN, batch_id) == 1
    assert await load_status(db, batch_id) == "sealed"
    assert "BATCH_CANCELED" not in await db.events(batch_id)


@pytest.mark.parametrize("end", [SEAL, CANCEL])
async def test_a_chunk_that_waits_for_the_end_of_its_load_is_refused(
    db: Session, session: Open, end: str
) -> None:
    batch_id = await begun(db)
    ending, loading = await session(), await session()
    await ending.rows(end, DOMAIN, batch_id)
    more = Jsonb([{"command_id": str(uuid4()), "type": "Debit"}])
    query = "load_chunk(%s, %s, 1, 1, %s, 'more')"
    task = asyncio.create_task(refused(loading, query, DOMAIN, batch_id, more))
    await db.until_blocked(loading)
    await ending.conn.commit()
    assert await task == "CB003"
    await loading.conn.rollback()
    assert (await counts(db, batch_id))[1] == 0


async def test_a_cancel_that_waits_for_a_chunk_cancels_that_too(db: Session, session: Open) -> None:
    batch_id = await begun(db)
    ending, loading = await session(), await session()
    await chunk(loading, batch_id, [uuid4()])
    task = asyncio.create_task(ending.value(CANCEL, DOMAIN, batch_id))
    await db.until_blocked(ending)
    await loading.conn.commit()
    assert await task == 1
    await ending.conn.commit()
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 1, 1)


async def test_of_a_seal_and_a_cancel_the_first_counts(db: Session, session: Open) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4()])
    one, other = await session(), await session()
    await one.rows(CANCEL, DOMAIN, batch_id)
    task = asyncio.create_task(refused(other, "seal_load(%s, %s)", DOMAIN, batch_id))
    await db.until_blocked(other)
    await one.conn.commit()
    assert await task == "CB003"
    await other.conn.rollback()
    assert await load_status(db, batch_id) == "canceled"


async def test_a_cancel_of_a_load_locks_its_commands_in_order(db: Session, session: Open) -> None:
    batch_id, ids = await begun(db), [uuid4(), uuid4(), uuid4()]
    await chunk(db, batch_id, ids)
    await locks_in_order(db, session, COMMANDS, ids, lambda s: s.rows(CANCEL, DOMAIN, batch_id))
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 3, 3)


async def test_a_load_is_ended_in_its_own_domain(db: Session) -> None:
    batch_id = await begun(db)
    assert await refused(db, "seal_load('other', %s)", batch_id) == "CB004"
    assert await refused(db, "cancel_batch('other', %s, 'x')", batch_id) == "CB004"
    query = "select commandbus.cancel_load('other', %s, 'x', null)"
    assert await db.value(query, batch_id) is False
    assert await load_status(db, batch_id) == "loading"


# -- figures and the doctor


async def test_only_a_batch_that_is_queued_to_its_last_command_is_a_success(db: Session) -> None:
    query = "select total_batches, successful_batches from commandbus.v_batch_success_rate"
    failed = await begun(db)
    await db.value("select commandbus.fail_load(%s, %s, 'x')", DOMAIN, failed)
    assert await db.rows(query) == []  # it has nothing to queue, and counts neither way
    await db.value(SEAL, DOMAIN, failed)
    assert await db.rows(query) == []
    growing = await begun(db, "as_it_loads")
    await chunk(db, growing, [uuid4()])
    assert await db.rows(query) == [{"total_batches": 1, "successful_batches": 0}]
    await db.value(SEAL, DOMAIN, growing)
    assert await db.rows(query) == [{"total_batches": 1, "successful_batches": 1}]
    canceled = await begun(db, "as_it_loads")
    await chunk(db, canceled, [uuid4()])
    await db.value(CANCEL, DOMAIN, canceled)
    assert await db.rows(query) == [{"total_batches": 2, "successful_batches": 1}]


async def test_the_doctor_leaves_a_load_alone_that_somebody_ended(db: Session) -> None:
    ends = {"loading": None, "sealed": SEAL, "canceled": CANCEL}
    ids = {name: await begun(db) for name in ends}
    for name, end in ends.items():
        if end is not None:
            await db.value(end, DOMAIN, ids[name])
    await db.rows(
        "update commandbus.command_bus_load set updated_at = now() - interval '6 minutes'"
    )
    query = "select subject from commandbus.check_work() where code = 'LOAD_INTERRUPTED'"
    assert await db.rows(query) == [{"subject": str(ids["loading"])}]
    assert await db.rows("select * from commandbus.check_batches()") == []


async def test_a_repair_leaves_an_empty_load_ended(db: Session) -> None:
    batch_id = await begun(db)
    await db.value(CANCEL, DOMAIN, batch_id)
    await db.rows("update commandbus.command_bus_batch set total_count = 1, completed_count = 1")
    await db.rows("select * from commandbus.repair_batches(%s)", DOMAIN)
    assert await counts(db, batch_id) == ("COMPLETED_WITH_FAILURES", 0, 0)
    assert (await db.batch_row(batch_id))["completed_at"] is not None

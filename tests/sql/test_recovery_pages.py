"""Recovery reads page by page what waits to be queued, whatever the statistics say of it."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_plans import read

ROWS = 20_000
BATCH = 2_500

#: Stored batches as processes that ended leave them behind; written directly, because it is faster.
_STORE = """
with batch as (
    insert into commandbus.command_bus_batch (batch_id, domain, total_count)
    select gen_random_uuid(), %(domain)s, %(size)s from generate_series(1, %(batches)s)
    returning batch_id
), numbered as (
    select b.batch_id, n, gen_random_uuid() as command_id,
           now() - interval '1 hour' + row_number() over (partition by n) * interval '1 s' as moment
      from batch b cross join generate_series(1, %(size)s) n
), dispatch as (
    insert into commandbus.command_bus_dispatch (
        batch_id, domain, pattern, heartbeat_at, ended_at, queue)
    select b.batch_id, %(domain)s, %(pattern)s, now() - interval '1 hour', %(ended_at)s, %(queue)s
      from batch b
), command as (
    insert into commandbus.command_bus_command (
        domain, queue_name, command_id, command_type, status, max_attempts, reply_queue,
        correlation_id, batch_id, sequence_no, dispatch_status, created_at, updated_at)
    select %(domain)s, %(domain)s || '.commands', command_id, 'Debit', 'PENDING', 3, '',
           gen_random_uuid(), batch_id, n, %(status)s, moment, moment
      from numbered
)
insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)
select %(domain)s, command_id, jsonb_build_object('command_id', command_id) from numbered
"""


async def store(
    db: Session, rows: int, status: str = "pending_queue", pattern: str = "two_phase", **how: Any
) -> None:
    values = {"domain": DOMAIN, "size": min(rows, BATCH), "batches": -(-rows // BATCH)}
    values |= {"status": status, "pattern": pattern, "ended_at": None, "queue": None} | how
    await db.conn.execute(_STORE.encode(), values)


async def spoil(db: Session) -> None:
    """Statistics of a table in which nothing waits, that stay so."""
    await db.rows("select commandbus.ensure_domain(%s)", DOMAIN)
    for table in ("command", "dispatch", "batch", "payload_archive", "unconfirmed"):
        await db.rows(f"alter table commandbus.command_bus_{table} set (autovacuum_enabled = off)")
    await db.put("COMPLETED")
    for table in ("command", "dispatch", "batch", "payload_archive", "unconfirmed"):
        await db.rows(f"vacuum analyze commandbus.command_bus_{table}")


async def waiting(db: Session) -> int:
    return int(
        await db.value(
            "select count(*) from commandbus.command_bus_command"
            " where status = 'PENDING' and msg_id is null"
        )
    )


async def work_of(db: Session) -> int:
    return sum([sum(await read(db, table)) for table in ("command", "payload_archive")])


async def pages(db: Session, grace: str = "1 minute") -> list[dict[str, Any]]:
    """A whole round, page by page."""
    found: list[dict[str, Any]] = []
    is_all = False
    while not is_all:
        is_all = await db.value(
            "select o_is_all from commandbus.expose_unqueued(%s, %s::interval, '1 hour', 1000)",
            DOMAIN, grace,
        )  # fmt: skip
    while not found or found[-1]["next_after"] is not None:
        found += await db.rows(
            "select * from commandbus.recover_dispatch(%s, %s::interval, p_after => %s)",
            DOMAIN, grace, Jsonb(found[-1]["next_after"]) if found else None,
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("pattern", "status", "count"),
    [("two_phase", "pending_queue", ROWS), ("optimistic", "queued", 5_000)],
)
async def test_a_round_reads_page_by_page_although_the_statistics_say_that_nothing_waits(
    db: Session, pattern: str, status: str, count: int
) -> None:
    await spoil(db)
    await store(db, count, status, pattern)
    await db.rows("set statement_timeout = '20s'")
    before = await work_of(db)
    found = await pages(db)
    assert sum(page["queued"] for page in found) == count
    assert max(page["queued"] for page in found) == 1_000
    assert await waiting(db) == 0
    # For each page what has the age of its ends, and a few looks for each command. Without pages it
    # would be all that waits for each command of it: 400 millions.
    assert await work_of(db) - before < count // 1_000 * 3 * BATCH + 20 * count
    assert await db.value("select count(*) from commandbus.command_bus_dispatch") == 0


async def test_few_that_wait_are_found_among_many_although_the_statistics_say_that_all_wait(
    db: Session,
) -> None:
    await store(db, 5_000)
    await spoil(db)
    await db.rows(
        "update commandbus.command_bus_command set status = 'COMPLETED', msg_id = 1,"
        " dispatch_status = 'queued' where status = 'PENDING'"
    )
    await db.rows("delete from commandbus.command_bus_dispatch")
    await store(db, 10)
    await db.rows("vacuum commandbus.command_bus_command")
    before = await work_of(db)
    assert [page["queued"] for page in await pages(db)] == [10]
    assert await work_of(db) - before < 500


async def test_what_is_not_due_is_read_once_and_does_not_hide_what_is(db: Session) -> None:
    await spoil(db)
    await store(db, 5_000)
    await db.rows("update commandbus.command_bus_dispatch set heartbeat_at = now()")
    await store(db, 500)
    before = await work_of(db)
    assert sum(page["queued"] for page in await pages(db)) == 500
    assert await work_of(db) - before < 10 * 3 * BATCH
    assert await waiting(db) == 5_000


async def test_a_round_that_is_cut_short_keeps_its_pages_and_the_next_one_does_the_rest(
    db: Session,
) -> None:
    await spoil(db)
    await store(db, 2_500)
    recover = "select * from commandbus.recover_dispatch(%s, '1 minute')"
    assert [(await db.rows(recover, DOMAIN))[0]["queued"] for _ in range(4)] == [
        1_000, 1_000, 500, 0,
    ]  # fmt: skip


async def test_the_figures_of_dispatch_say_how_much_waits_and_for_how_long(db: Session) -> None:
    await spoil(db)
    await store(db, 30, "pending_retry")
    await store(db, 40)
    await db.rows(
        "insert into commandbus.command_bus_unconfirmed (domain, command_id, handed_at)"
        " select d, gen_random_uuid(), now() - interval '90 s'"
        " from unnest(array[%s, 'other']) d, generate_series(1, 3)",
        DOMAIN,
    )
    (row,) = await db.rows("select * from commandbus.dispatch_figures(%s)", DOMAIN)
    assert 3_590 <= row["lag_seconds"] < 7_200
    assert 90 <= row["unconfirmed_seconds"] < 3_600
    assert (row["pending_retry"], row["unconfirmed"]) == (30, 3)
    (row,) = await db.rows("select * from commandbus.dispatch_figures('nobody')")
    assert set(row.values()) == {0}


async def test_the_figures_of_dispatch_read_no_more_than_their_limit(db: Session) -> None:
    await spoil(db)
    await store(db, 12_000, "pending_retry")
    before = await work_of(db)
    (row,) = await db.rows("select * from commandbus.dispatch_figures(%s)", DOMAIN)
    assert row["pending_retry"] == 10_000
    assert await work_of(db) - before <= 10_000


async def test_what_was_lost_elsewhere_is_found_page_by_page_whatever_the_statistics_say(
    db: Session,
) -> None:
    await spoil(db)
    await store(db, 5_000, "queued", queue="far away")
    await db.rows(
        "insert into commandbus.command_bus_unconfirmed (domain, command_id, handed_at)"
        " select domain, command_id, created_at - interval '1 day'"
        " from commandbus.command_bus_command where msg_id is null"
    )
    before = await work_of(db) + sum(await read(db, "unconfirmed"))
    found = await pages(db)
    assert sum(page["queued"] for page in found) == 5_000
    assert await db.value("select count(*) from commandbus.command_bus_unconfirmed") == 0
    after = await work_of(db) + sum(await read(db, "unconfirmed"))
    # For each item of a page all that is unconfirmed would be 25 millions.
    assert after - before < 5 * 3 * BATCH + 20 * 5_000


async def test_a_page_follows_the_order_of_a_batch_also_within_one_age(db: Session) -> None:
    await store(db, 2_500)
    await pages(db)
    numbers = await db.rows(
        "select c.sequence_no as n from commandbus.command_bus_command c order by c.msg_id"
    )
    assert [row["n"] for row in numbers] == list(range(1, 2_501))


@pytest.mark.parametrize(
    "step",
    [
        "count(*) from commandbus.adopt_messages('payments', %s)",
        "count(*) from commandbus.stored_messages('payments', %s)",
        "commandbus.mark_dispatched('payments', %s)",
        "commandbus.mark_dispatch_failed('payments', %s, 'no answer', 9)",
        "commandbus.queue_stored('payments', %s, array['pending_queue'])",
    ],
)
async def test_a_group_on_its_way_reads_its_own_commands_whatever_the_statistics_say(
    db: Session, step: str
) -> None:
    await spoil(db)
    await store(db, 5_000)
    rows = await db.rows(
        "select command_id from commandbus.command_bus_command where msg_id is null limit 200"
    )
    ids = [row["command_id"] for row in rows]
    is_document = "adopt" in step
    before = await work_of(db)
    group = Jsonb([{"command_id": str(i)} for i in ids]) if is_document else ids
    await db.rows(f"select {step}", group)
    assert await work_of(db) - before <= 8 * 200


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_decision_reads_the_commands_of_its_batch_whatever_the_statistics_say(
    db: Session, decision: str
) -> None:
    await spoil(db)
    await store(db, 20_000, "awaiting_approval")
    await db.rows(
        "update commandbus.command_bus_batch"
        " set batch_type = 'ORDERS', requires_approval = true, created_by = 'ada'"
    )
    batch_id = await db.value("select batch_id from commandbus.command_bus_batch limit 1")
    await db.rows(
        "update commandbus.command_bus_payload_archive set payload_json = payload_json"
        " || jsonb_build_object('type', 'Debit', 'domain', %s::text, 'data', '{}'::jsonb)",
        DOMAIN,
    )
    await db.rows(
        "select commandbus.keep_content(%s, 'ORDERS', %s, (select jsonb_agg(jsonb_build_object("
        "'type', p.payload_json -> 'type', 'data', p.payload_json -> 'data')"
        " order by c.sequence_no) from commandbus.command_bus_command c"
        " join commandbus.command_bus_payload_archive p"
        " on p.command_id = c.command_id where c.batch_id = %s), null, null)",
        batch_id, DOMAIN, batch_id,
    )  # fmt: skip
    before = await work_of(db)
    await db.rows(
        "select commandbus.decide_ticket(%s, %s, %s, 'petra', 'x')", DOMAIN, batch_id, decision
    )
    assert await work_of(db) - before <= 9 * BATCH

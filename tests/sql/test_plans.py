"""The hot functions find their rows by index, also on a table that has grown."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.parking import park
from tests.sql.helpers import FAILURE, Held, Session
from tests.sql.tickets import begun, submitted

ROWS = 20_000


async def read(db: Session, table: str = "command") -> tuple[int, int]:
    """How many rows of a table were read so far: by scans, and by an index."""
    await db.value("select pg_stat_force_next_flush()")
    (row,) = await db.rows(
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relid = %s::regclass",
        f"commandbus.command_bus_{table}",
    )
    return row["seq_tup_read"], row["idx_tup_fetch"]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_hot_functions_read_only_what_they_are_asked_for_of_many_commands(
    db: Session, analyzed: bool
) -> None:
    await db.rows("alter table commandbus.command_bus_command set (autovacuum_enabled = false)")
    # The plans are made, and cached, while the table is empty: as in a worker that starts first.
    first = await db.put("COMPLETED")
    await db.value(
        "select commandbus.send_commands('payments', (select jsonb_agg(jsonb_build_object("
        f"'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, {ROWS})))"
    )
    if analyzed:
        await db.rows("analyze commandbus.command_bus_command")
    scanned, fetched = await read(db)
    held: list[Held] = await db.receive(50)
    assert len(held) == 50
    await db.settle("complete", *(h.item(data=None) for h in held[:10]))
    await db.settle("retry", *(h.item(delay_seconds=60, **FAILURE) for h in held[10:20]))
    await db.settle("park", *(h.item(reason="PERMANENT", **FAILURE) for h in held[20:30]))
    await db.settle("fail", *(h.item(**FAILURE) for h in held[30:40]))
    await db.settle("release", *(h.item() for h in held[40:]))
    await db.offer(first.command_id, held[0].command_id)
    await db.send()
    now_scanned, now_fetched = await read(db)
    assert now_scanned == scanned
    # A handful of probes for each of a hundred touches; one walk along an index would be 20,000.
    assert 0 < now_fetched - fetched < 2_000
    # The measure itself: a scan would have been seen.
    await db.rows("select 1 from commandbus.command_bus_command where status = 'FAILED'")
    assert (await read(db))[0] > scanned


@pytest.mark.parametrize("analyzed", [1, 30])
async def test_a_table_that_was_analyzed_while_it_was_small_is_not_walked_through(
    db: Session, analyzed: int
) -> None:
    await db.rows("alter table commandbus.command_bus_command set (autovacuum_enabled = false)")
    await db.send(*(uuid4() for _ in range(analyzed)))
    await db.rows("vacuum analyze commandbus.command_bus_command")
    await db.value(
        "select commandbus.send_commands('payments', (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, 3000)))"
    )
    # More commands than the table has pages: a walk seems to be cheaper than so many looks.
    _, before = await read(db)
    held = [h for _ in range(8) for h in await db.receive(250)]
    assert len(held) == 2_000
    _, received = await read(db)
    assert received - before < 3 * len(held)
    outcomes: dict[str, dict[str, Any]] = {
        "complete": {"data": None}, "retry": {"delay_seconds": 60, **FAILURE},
        "park": {"reason": "PERMANENT", **FAILURE}, "fail": FAILURE, "release": {},
        "snooze": {"delay_seconds": 60}, "discard": {"reason": "void"},
    }  # fmt: skip
    for number, (kind, values) in enumerate(outcomes.items()):
        group = held[number * 280 : number * 280 + 280]
        await db.settle(kind, *(h.item(**values) for h in group))
    _, settled = await read(db)
    assert settled - received < 5 * len(held)


@pytest.mark.parametrize("analyzed", [1, 30])
async def test_decisions_read_only_what_they_are_about_of_a_list_that_has_just_grown(
    db: Session, analyzed: int
) -> None:
    await park(db.conn, analyzed, domain="payments")
    await db.rows("vacuum analyze commandbus.command_bus_troubleshooting")
    await db.rows("vacuum analyze commandbus.command_bus_command")
    await park(db.conn, 3_000, domain="payments")
    rows = await db.rows("select command_id from commandbus.command_bus_troubleshooting limit 1200")
    ids = [row["command_id"] for row in rows]
    bulk = await db.value(
        "select commandbus.start_bulk(gen_random_uuid(), 'payments', 'retry', '{}', '{}',"
        " p_everything => true)"
    )
    decisions: list[tuple[str, list[Any]]] = [
        ("select commandbus.operator_retry('payments', %s)", [ids[:400]]),
        ("select commandbus.operator_cancel('payments', %s, 'no use')", [ids[400:800]]),
        ("select commandbus.operator_complete('payments', %s)", [ids[800:]]),
        ("select commandbus.run_bulk_chunk(%s, 400)", [bulk]),
    ]
    for query, values in decisions:
        _, before = await read(db, "troubleshooting")
        await db.rows(query, *values)
        _, after = await read(db, "troubleshooting")
        # If each item read what is listed of its domain, it would be tens of thousands.
        assert after - before <= 2 * 400, query


async def test_a_submission_reads_what_is_pending_and_not_what_has_ended(db: Session) -> None:
    await submitted(db)  # the plans are made while the table is as good as empty
    assert (await begun(db))["verdict"] == "go"
    await db.rows(
        "insert into commandbus.command_bus_batch (batch_id, domain, batch_type, created_by,"
        " total_count, completed_count, completed_at, request_id, request_digest)"
        " select gen_random_uuid(), 'payments', 'ORDERS', 'ada', 1, 1, now(), gen_random_uuid(), ''"
        f" from generate_series(1, {ROWS})"
    )
    scanned, fetched = await read(db, "batch")
    await submitted(db)
    assert (await begun(db))["verdict"] == "go"
    now_scanned, now_fetched = await read(db, "batch")
    assert now_scanned == scanned
    assert now_fetched - fetched < 100

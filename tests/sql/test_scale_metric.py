"""scale_metric: what an autoscaler asks for, cheap however much is delayed."""

from __future__ import annotations

import pytest

from tests.sql.helpers import DOMAIN, Session

METRIC = "select commandbus.scale_metric(%s)"
TABLE = f"pgmq.q_{DOMAIN}__commands"


async def beat(db: Session, worker: str, in_flight: int) -> None:
    query = "select commandbus.worker_heartbeat(%s, %s, false, 10, %s)"
    await db.rows(query, worker, DOMAIN, in_flight)


async def test_it_counts_what_is_due_and_what_workers_have(db: Session) -> None:
    assert await db.value(METRIC, DOMAIN) == 0
    for priority in (0, 0, 1, -2):
        await db.send(priority=priority)
    assert await db.value(METRIC, DOMAIN) == 4

    await db.receive(3)
    assert await db.value(METRIC, DOMAIN) == 1
    await beat(db, "one", 2)
    await beat(db, "two", 1)
    assert await db.value(METRIC, DOMAIN) == 4

    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '2 minutes'"
        " where worker_id = 'one'"
    )
    assert await db.value(METRIC, DOMAIN) == 2
    await db.rows("select commandbus.pause_domain(%s, 'a test')", DOMAIN)
    assert await db.value(METRIC, DOMAIN) == 1


async def test_a_domain_that_has_no_queue_has_no_work(db: Session) -> None:
    assert await db.value(METRIC, "nobody") == 0


@pytest.mark.parametrize("analyzed", [False, True])
async def test_it_reads_nothing_of_what_is_delayed(db: Session, analyzed: bool) -> None:
    await db.send()
    await db.rows(
        f"insert into {TABLE} (vt, message, headers)"
        " select now() + interval '1 hour', '{}',"
        "        case when n % 2 = 0 then jsonb_build_object('priority', 1) end"
        "   from generate_series(1, 50000) n"
    )
    if analyzed:
        await db.rows(f"analyze {TABLE}")

    (before,) = await db.rows(
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relid = %s::regclass",
        TABLE,
    )
    assert await db.value(METRIC, DOMAIN) == 1
    await db.value("select pg_stat_force_next_flush()")
    (after,) = await db.rows(
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relid = %s::regclass",
        TABLE,
    )

    assert after["seq_tup_read"] == before["seq_tup_read"]
    assert after["idx_tup_fetch"] - before["idx_tup_fetch"] < 10


async def test_it_counts_no_further_than_it_is_told_to(db: Session) -> None:
    await db.send()
    await db.rows(
        f"insert into {TABLE} (vt, message) select now(), '{{}}' from generate_series(1, 500)"
    )

    assert await db.value("select commandbus.scale_metric(%s, 100)", DOMAIN) == 100

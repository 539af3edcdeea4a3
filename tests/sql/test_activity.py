"""What goes on, as SQL tells it: bounded however much there is, and right where it counts."""

from __future__ import annotations

import pytest

from tests.sql.helpers import DOMAIN, Session

TABLE = f"pgmq.q_{DOMAIN}__commands"
COLUMNS = "a.ready, a.delayed, a.is_estimate, a.workers, a.concurrency, a.in_flight, a.is_paused"
LOOK = f"select {COLUMNS} from commandbus.domain_activity(%s, %s) a"


async def told(db: Session, query: str, *params: object) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await db.rows(query, *params)]


async def reads(db: Session) -> tuple[int, int]:
    """Rows read one by one, and by an index."""
    (row,) = await db.rows(
        "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relid = %s::regclass",
        TABLE,
    )
    return int(row["seq_tup_read"]), int(row["idx_tup_fetch"])


async def beat(db: Session, worker: str, in_flight: int) -> None:
    query = "select commandbus.worker_heartbeat(%s, %s, false, 10, %s, 1)"
    await db.rows(query, worker, DOMAIN, in_flight)


async def age(db: Session, worker: str) -> None:
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '2 minutes'"
        " where worker_id = %s",
        worker,
    )


async def test_a_look_tells_what_is_ready_later_and_busy(db: Session) -> None:
    for _ in range(4):
        await db.send()
    await db.receive(1)
    await beat(db, "one", 3)
    await beat(db, "silent", 5)
    await age(db, "silent")

    assert await told(db, LOOK, DOMAIN, 100) == [(3, 1, False, 1, 10, 3, False)]
    await db.rows("select commandbus.pause_domain(%s, 'a test')", DOMAIN)
    assert (await told(db, LOOK, None, 100))[0][-1] is True
    assert await told(db, LOOK, "nobody", 100) == []


async def test_the_oldest_is_the_oldest_of_those_that_are_ready(db: Session) -> None:
    for _ in range(2):
        await db.send()
    await db.receive(1)
    await db.rows(
        f"update {TABLE} set enqueued_at = now() - case when vt > now() then interval '1 hour'"
        " else interval '1 minute' end"
    )
    query = "select a.oldest_seconds from commandbus.domain_activity(%s) a"
    assert 59 < float(await db.value(query, DOMAIN)) < 90


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_look_reads_no_more_than_it_was_told_to(db: Session, analyzed: bool) -> None:
    await db.send()
    await db.rows(
        f"insert into {TABLE} (vt, message)"
        " select now() + case when n % 2 = 0 then interval '1 hour' else interval '0' end, '{}'"
        "   from generate_series(1, 50000) n"
    )
    if analyzed:
        await db.rows(f"analyze {TABLE}")
    before = await reads(db)
    (look,) = await db.rows(LOOK, DOMAIN, 100)
    await db.value("select pg_stat_force_next_flush()")
    after = await reads(db)

    assert after[0] == before[0]
    assert after[1] - before[1] < 150
    ready, delayed = int(look["ready"]), int(look["delayed"])
    assert look["is_estimate"]
    assert ready + delayed >= 100
    assert abs(ready - delayed) <= (ready + delayed) / 10


async def test_workers_are_listed_the_most_silent_first_and_of_one_domain(db: Session) -> None:
    await beat(db, "one", 3)
    await beat(db, "silent", 0)
    await age(db, "silent")
    query = "select a.worker_id, a.in_flight, a.stuck from commandbus.worker_activity(%s, %s) a"

    assert await told(db, query, DOMAIN, 10) == [("silent", 0, 1), ("one", 3, 1)]
    assert await told(db, query, None, 1) == [("silent", 0, 1)]
    assert await told(db, query, "nobody", 10) == []
    seconds = "select a.heartbeat_seconds from commandbus.worker_activity(%s, 1) a"
    assert 119 < float(await db.value(seconds, DOMAIN)) < 150


async def test_limits_tell_what_runs_and_count_what_waits_up_to_a_bound(db: Session) -> None:
    await db.rows("select commandbus.set_limit(%s, null, false, 1)", DOMAIN)
    for _ in range(4):
        await db.send()
    assert len(await db.receive(4)) == 1
    query = (
        "select a.command_type, a.max_running, a.is_paused, a.running, a.waiting"
        " from commandbus.limit_activity(%s, %s) a"
    )
    listed = await told(db, "select l.running, l.waiting from commandbus.list_limits(%s) l", DOMAIN)
    (found,) = await told(db, query, DOMAIN, 100)
    assert found[:3] == (None, 1, False)
    assert found[3:] == listed[0] == (1, 3)
    assert (await told(db, query, None, 2))[0][3:] == (1, 2)
    assert await told(db, query, "nobody", 100) == []


async def test_workers_count_in_their_own_domain(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value("select commandbus.ensure_domain('refunds')")
    await beat(db, "one", 3)
    query = "select a.domain, a.workers, a.in_flight from commandbus.domain_activity() a order by 1"
    assert await told(db, query) == [(DOMAIN, 1, 3), ("refunds", 0, 0)]

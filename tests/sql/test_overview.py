"""How domains stand and move, as SQL tells it: bounded, however much there is."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.waiting import until

TABLE = f"pgmq.q_{DOMAIN}__commands"
LOOK = "select * from commandbus.domain_overview(%s, %s)"


async def look(db: Session, most: int = 100) -> dict[str, Any]:
    (row,) = await db.rows(LOOK, [DOMAIN], most)
    return row


async def beat(db: Session, worker: str, **more: Any) -> None:
    await db.rows(
        "select commandbus.worker_heartbeat(%s, %s, false, 10, 3, 1, %s)",
        worker, DOMAIN, Jsonb(more),
    )  # fmt: skip


async def test_an_overview_tells_where_everything_is(db: Session) -> None:
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    for _ in range(6):
        await db.send()
    await db.receive(1)
    await db.rows(f"update {TABLE} set vt = 'infinity' where msg_id = 5")
    await db.rows(f"update {TABLE} set vt = now() + interval '1 day' where msg_id = 6")
    await beat(db, "one")
    await beat(db, "silent")
    await db.rows(
        "update commandbus.command_bus_worker set heartbeat_at = now() - interval '2 minutes'"
        " where worker_id = 'silent'"
    )
    found = await look(db)
    wanted = {
        "workers": 1, "silent": 1, "concurrency": 10, "in_flight": 3, "stuck": 2, "parked": 1,
        "ready": 3, "delayed": 2, "waiting": 1, "about": [], "is_paused": False,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert 0 <= found["due_seconds"] < 60
    await db.rows("select commandbus.pause_domain(%s, 'a test')", DOMAIN)
    assert (await look(db))["is_paused"] is True
    assert await db.rows(LOOK, ["nobody"], 100) == []


@pytest.mark.parametrize("level", [None, 1])
async def test_what_is_too_much_to_count_is_an_estimate_and_said_to_be_one(
    db: Session, level: int | None
) -> None:
    await db.send()
    headers = None if level is None else Jsonb({"priority": level})
    await db.rows(
        f"insert into {TABLE} (vt, message, headers)"
        " select now() + case when n %% 4 = 0 then interval '1 hour' else interval '0' end,"
        " '{}', %s from generate_series(1, 40000) n",
        headers,
    )
    await db.rows(f"analyze {TABLE}")
    found = await look(db)
    assert found["about"] == ["ready", "delayed"]
    assert abs(found["ready"] - 30_000) < 3_000
    assert abs(found["delayed"] - 10_000) < 3_000
    assert found["waiting"] == 0
    exact = await look(db, 50_000)
    assert (exact["ready"], exact["delayed"], exact["about"]) == (30_001, 10_000, [])


async def test_one_kind_that_is_exact_is_taken_off_the_estimate_of_the_other(db: Session) -> None:
    await db.send()
    await db.rows(
        f"insert into {TABLE} (vt, message) select case when n <= 50 then 'infinity'::timestamptz"
        " else now() end, '{}' from generate_series(1, 5000) n"
    )
    await db.rows(f"analyze {TABLE}")
    found = await look(db)
    assert (found["waiting"], found["about"]) == (50, ["ready"])
    assert abs(found["ready"] - 4_951) < 50


async def sample(db: Session) -> None:
    """Take one now, whenever the last one was."""
    await db.rows(
        "update commandbus.command_bus_chore set started_at = started_at - interval '9 s'"
    )
    assert await db.value("select commandbus.sample_domains()") is True


async def rates(db: Session) -> dict[str, Any]:
    (row,) = await db.rows("select * from commandbus.domain_rates(%s)", [DOMAIN])
    return row


async def test_samples_tell_what_came_and_what_workers_ended(db: Session) -> None:
    await db.send()
    assert await db.value("select commandbus.sample_domains()") is True
    assert await db.value("select commandbus.sample_domains()") is False
    await db.rows("update commandbus.command_bus_tally set since = now() - interval '1 hour'")
    for _ in range(7):
        await db.send()
    await beat(db, "one", completed=4, retried=2, version="1.2.3", stuck_types=["Debit"])
    await beat(db, "one", completed=1, parked=3, failed=1)
    await sample(db)
    found = await rates(db)
    assert (found["queued"], found["completed"], found["parked"]) == (7, 5, 3)
    assert (found["failed"], found["retried"], found["over_seconds"]) == (1, 2, 60)
    # The worker ends, and another begins: nothing is counted twice, nothing is lost.
    await db.rows("select commandbus.worker_gone('one')")
    await beat(db, "two", completed=2)
    await sample(db)
    assert (await rates(db))["completed"] == 7


async def test_a_queue_that_begins_anew_is_counted_from_its_beginning(db: Session) -> None:
    await db.send()
    await db.value("select commandbus.sample_domains()")
    await db.rows(
        "update commandbus.command_bus_tally set queued = 1000000, removed = 1000000,"
        " completed = 1000000"
    )
    await db.send()
    await sample(db)
    found = await rates(db)
    assert (found["queued"], found["completed"]) == (2, 0)


async def test_after_a_time_without_samples_no_minute_gets_all_of_it(db: Session) -> None:
    await db.send()
    await db.value("select commandbus.sample_domains()")
    await db.rows("update commandbus.command_bus_chore set started_at = now() - interval '600 s'")
    await db.rows("update commandbus.command_bus_tally set completed = -600")
    await db.value("select commandbus.sample_domains()")
    rows = await db.rows(
        "select seconds, completed from commandbus.command_bus_sample order by seconds"
    )
    assert [(row["seconds"], row["completed"]) for row in rows] == [(10, 10), (60, 60)]


async def test_old_samples_go(db: Session) -> None:
    await db.rows(
        "insert into commandbus.command_bus_sample"
        " select s, now() - a::interval, 'x', 1, 1, 1, 1, 1, 1"
        " from (values (10, '1 hour'), (10, '3 hours'), (60, '6 days'), (60, '8 days')) v(s, a)"
    )
    await db.send()
    await db.value("select commandbus.sample_domains()")
    rows = await db.rows(
        "select seconds, at > now() - interval '7 days' as kept"
        " from commandbus.command_bus_sample where domain = 'x' order by 1"
    )
    assert [(row["seconds"], row["kept"]) for row in rows] == [(10, True), (60, True)]


async def test_causes_are_counted_in_the_hour_in_which_they_were_seen(db: Session) -> None:
    async def park(times: int) -> None:
        for _ in range(times):
            await db.put("IN_TROUBLESHOOTING_QUEUE")

    async def again() -> None:
        await db.rows(
            "update commandbus.command_bus_chore set started_at = started_at - interval '2 min'"
        )
        await db.value("select commandbus.sample_domains()")

    await park(3)
    await db.value("select commandbus.sample_domains()")
    await park(2)
    await again()
    await again()
    (row,) = await db.rows("select * from commandbus.group_trends(%s)", DOMAIN)
    assert row["seen"] == 5
    await db.rows("update commandbus.command_bus_failure_group set is_governed = true")
    assert await db.rows("select * from commandbus.group_trends(%s, null, 24, 'u')", DOMAIN) == []
    assert FAILURE  # the one cause of them all


async def test_what_left_the_queue_is_told_by_the_statistics_of_the_server(db: Session) -> None:
    await db.send()
    await db.value("select commandbus.sample_domains()")
    held = await db.receive(1)
    await db.settle("complete", held[0].item(data=None))

    async def is_told() -> bool:
        await db.value("select pg_stat_force_next_flush()")
        await sample(db)
        return bool((await rates(db))["removed"])

    await until(is_told)

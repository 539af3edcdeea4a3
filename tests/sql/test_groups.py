"""Failure groups under several sessions at once, and what their listing reads."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.parking import MISCOUNTED, park
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Held, Session

ROUNDS = 25


def failure(chance: random.Random, number: int) -> dict[str, Any]:
    """One of three causes."""
    cause = chance.choice(["no answer to", "sold out:", "late by"])
    return {
        "error_type": "TRANSIENT", "error_code": "X", "error_msg": f"{cause} {number}",
    }  # fmt: skip


async def work_and_decide(dsn: str, seed: int) -> None:
    """Send, lease, settle a mixture, and decide on whatever is parked, as a fleet would."""
    chance = random.Random(seed)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        db = Session(conn)
        for number in range(ROUNDS):
            await db.send(batch_id=None)
            await db.rows(
                "select commandbus.send_commands(%s, (select jsonb_agg(jsonb_build_object("
                "'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, 5)))",
                DOMAIN,
            )
            held: list[Held] = await db.receive(8, worker=f"w{seed}")
            chance.shuffle(held)
            outcomes = {
                "park": [h.item(reason="PERMANENT", **failure(chance, number)) for h in held[:5]],
                "complete": [h.item(data=None) for h in held[5:7]],
                "fail": [h.item(**failure(chance, number)) for h in held[7:]],
            }
            await db.rows(
                "select commandbus.settle_commands(%s, %s)",
                DOMAIN, Jsonb({k: v for k, v in outcomes.items() if v}),
            )  # fmt: skip
            verb = chance.choice(
                [
                    "operator_retry(%s, %s, 'ann', true, false)",
                    "operator_cancel(%s, %s, 'why', 'ann', false)",
                    "operator_complete(%s, %s, null, 'ann', false)",
                ]
            )
            some = await db.rows(
                "select command_id from commandbus.command_bus_troubleshooting"
                " order by random() limit 4"
            )
            await db.rows(f"select commandbus.{verb}", DOMAIN, [row["command_id"] for row in some])


async def test_counters_are_exact_while_several_park_retry_cancel_and_complete(
    db: Session, dsn: str
) -> None:
    await db.send()
    wrong: list[int] = []

    async def sample() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            while True:
                wrong.append(await Session(conn).value(MISCOUNTED))
                await asyncio.sleep(0.01)

    sampler = asyncio.create_task(sample())
    await asyncio.gather(*(work_and_decide(dsn, seed) for seed in range(4)))
    sampler.cancel()
    await asyncio.gather(sampler, return_exceptions=True)

    assert wrong
    assert sum(wrong) == 0
    assert await db.value(MISCOUNTED) == 0
    groups = await db.rows("select * from commandbus.command_bus_failure_group")
    assert {g["message"] for g in groups} == {"no answer to <n>", "sold out: <n>", "late by <n>"}
    parked = await db.value(
        "select count(*) from commandbus.command_bus_audit"
        " where event_type = 'MOVED_TO_TROUBLESHOOTING_QUEUE'"
    )
    assert sum(g["total_seen"] for g in groups) == parked
    assert await db.value(
        "select deadlocks from pg_stat_database where datname = current_database()"
    ) in {0, None}


async def test_a_park_that_is_rolled_back_counts_nothing(db: Session, session: Open) -> None:
    held = await db.put("IN_PROGRESS")
    other = await session()
    await other.settle("park", held.item(reason="PERMANENT", error_msg="no"))
    await other.conn.rollback()

    assert await db.rows("select * from commandbus.list_failure_groups()") == []


async def test_who_parks_waits_for_the_group_and_counts_on(db: Session, session: Open) -> None:
    one, two = await db.put("IN_PROGRESS"), await db.put("IN_PROGRESS")
    first, second = await session(), await session()
    await first.settle("park", one.item(reason="PERMANENT", error_msg="no 1"))
    waiting = asyncio.create_task(
        second.settle("park", two.item(reason="PERMANENT", error_msg="no 2"))
    )
    await db.until_blocked(second)
    await first.conn.commit()
    await waiting
    await second.conn.commit()

    [group] = await db.rows("select * from commandbus.list_failure_groups()")
    assert group["parked_count"] == 2


@pytest.mark.parametrize("analyzed", [False, True])
async def test_listing_groups_reads_no_parked_command(db: Session, analyzed: bool) -> None:
    await park(db.conn, 1_500, domain=DOMAIN)
    await park(db.conn, 500, domain=DOMAIN, code="LATE")
    if analyzed:
        await db.rows("analyze")

    async def read() -> int:
        await db.value("select pg_stat_force_next_flush()")
        return await db.value(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int"
            " from pg_stat_user_tables where schemaname in ('commandbus', 'pgmq')"
            " and relname <> 'command_bus_failure_group'"
        )

    before = await read()
    groups = await db.rows("select * from commandbus.list_failure_groups(%s)", DOMAIN)
    assert [g["parked_count"] for g in groups] == [1_500, 500]
    assert await read() == before
    # The measure itself: reading the parked ones would have been seen.
    await db.rows("select * from commandbus.command_bus_troubleshooting")
    assert await read() >= before + 2_000


async def test_the_members_of_one_group_among_many_are_found_by_index(db: Session) -> None:
    await park(db.conn, 1_500, domain=DOMAIN)
    await park(db.conn, 5, domain=DOMAIN, code="LATE")
    await db.rows("analyze")
    name = await db.value(
        "select fingerprint from commandbus.command_bus_failure_group where error_code = 'LATE'"
    )
    await db.value("select pg_stat_force_next_flush()")
    query = (
        "select seq_tup_read from pg_stat_user_tables"
        " where relid = 'commandbus.command_bus_troubleshooting'::regclass"
    )
    before = await db.value(query)

    matches = await db.rows(
        "select * from commandbus.bulk_matches(%s, %s)", DOMAIN, Jsonb({"group": name})
    )
    listed = await db.rows(
        "select * from commandbus.list_troubleshooting(%s, null, 100, 0, %s)", DOMAIN, name
    )

    assert len(matches) == len(listed) == 5
    await db.value("select pg_stat_force_next_flush()")
    assert await db.value(query) == before


@pytest.mark.parametrize("verb", ["retry", "cancel"])
async def test_a_chunk_of_a_bulk_operation_reads_only_its_items(db: Session, verb: str) -> None:
    # No ANALYZE, so the planner believes what it likes, as in a database that has just grown.
    await park(db.conn, 2_000, domain=DOMAIN)
    bulk = await db.value(
        "select commandbus.start_bulk(gen_random_uuid(), %s, %s, '{}', '{\"reason\": \"x\"}',"
        " p_everything => true)",
        DOMAIN, verb,
    )  # fmt: skip

    async def read() -> dict[str, int]:
        await db.value("select pg_stat_force_next_flush()")
        rows = await db.rows(
            "select relname, (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int as n"
            " from pg_stat_user_tables where relname in ('command_bus_command',"
            " 'command_bus_troubleshooting', 'command_bus_bulk_item', 'a_payments__commands')"
        )
        return {row["relname"]: row["n"] for row in rows}

    before = await read()
    [step] = await db.rows("select * from commandbus.run_bulk_chunk(%s, 20)", bulk)

    assert step["acted"] == 20
    after = await read()
    # A few touches of each; one walk through the domain would be 2,000.
    assert {table: n for table, n in after.items() if n - before[table] >= 500} == {}

"""The functions of each queue: made with it, planned once, and not needed."""

from __future__ import annotations

import asyncio

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.waiting import until

QUEUE = f"pgmq.q_{DOMAIN}__commands"
VERBS = [f"queue_drop_{DOMAIN}__commands", f"queue_fill_{DOMAIN}__commands",
         f"queue_fill_{DOMAIN}__replies", f"queue_put_{DOMAIN}__commands",
         f"queue_put_{DOMAIN}__replies", f"queue_take_{DOMAIN}__commands"]  # fmt: skip


async def verbs(db: Session) -> list[str]:
    found = await db.rows(
        "select proname from pg_proc where pronamespace = 'commandbus'::regnamespace"
        f" and proname ~ '^queue_(take|drop|put|fill)_{DOMAIN}__' order by 1"
    )
    return [row["proname"] for row in found]


async def drop_verbs(db: Session) -> None:
    for name in await verbs(db):
        await db.rows(f"drop function commandbus.{name}")


async def work_one_off(db: Session) -> None:
    sent = await db.send()
    (held,) = await db.receive()
    assert [held.command_id] == sent
    assert await db.settle("complete", held.item(data={"is": "done"})) == []
    assert (await db.command(held.command_id))["status"] == "COMPLETED"
    assert await db.queued() == []


async def test_a_queue_gets_its_functions_when_it_is_made_and_only_its_owner_may_call_them(
    db: Session,
) -> None:
    await db.send()
    assert await verbs(db) == VERBS
    rights = await db.rows(
        "select p.proname from pg_proc p cross join aclexplode(coalesce(p.proacl,"
        " acldefault('f', p.proowner))) a where p.proname = any(%s) and a.grantee <> p.proowner",
        VERBS,
    )
    assert rights == []


async def test_a_queue_without_its_functions_is_served_as_well(db: Session) -> None:
    await db.send()
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    await drop_verbs(db)
    assert await verbs(db) == []
    await work_one_off(db)


async def test_functions_that_are_lost_come_back_with_the_next_load(db: Session) -> None:
    await db.send()
    await drop_verbs(db)
    await db.rows(
        "select commandbus.make_queue_verbs(q.physical) from commandbus.own_queues() q"
        " where commandbus.is_made_by_us(q.physical)"
    )
    assert await verbs(db) == VERBS


async def test_a_session_that_has_planned_them_goes_on_when_its_queue_is_made_anew(
    db: Session,
) -> None:
    await work_one_off(db)
    await db.rows("select pgmq.drop_queue(%s)", f"{DOMAIN}__commands")
    await db.rows("select commandbus.ensure_queue(%s)", f"{DOMAIN}.commands")
    await work_one_off(db)


async def test_two_sessions_may_make_the_functions_of_a_queue_at_once(
    db: Session, session: Open
) -> None:
    await db.send()
    other = await session()
    await other.rows("begin")
    await other.rows("select commandbus.make_queue_verbs(%s)", f"{DOMAIN}__commands")
    waits = asyncio.create_task(
        db.rows("select commandbus.make_queue_verbs(%s)", f"{DOMAIN}__commands")
    )
    await until(lambda: is_waiting(other), "the wait for the other session")
    await other.rows("commit")
    await waits
    assert await verbs(db) == VERBS


async def is_waiting(db: Session) -> bool:
    return bool(
        await db.value(
            "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
        )
    )


async def test_a_plan_that_was_made_for_an_empty_queue_reads_only_what_is_taken_of_a_full_one(
    db: Session,
) -> None:
    await work_one_off(db)
    await db.rows(f"analyze {QUEUE}")
    await db.value(
        f"select commandbus.send_commands('{DOMAIN}', (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, 5000)))"
    )

    async def read() -> int:
        await db.value("select pg_stat_force_next_flush()")
        (row,) = await db.rows(
            "select seq_tup_read + idx_tup_fetch as n from pg_stat_user_tables"
            " where relid = %s::regclass", QUEUE,
        )  # fmt: skip
        return int(row["n"])

    before = await read()
    held = await db.receive(5)
    await db.settle("complete", *(h.item(data=None) for h in held))
    assert 0 < await read() - before < 100

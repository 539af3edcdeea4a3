"""The chore of limits is short, however many wait at however many keys, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import complete, limit, places, sent, waiting
from tests.sql.test_plans_gates import touched

KEYS = 8_000
TEND = "select commandbus.tend_gates(%s, 200)"


async def with_many_keys(db: Session) -> None:
    """One waits at each of very many keys."""
    await limit(db, by_key=True, max_running=1)
    await sent(db, 1, limit_key="first")
    await db.value(
        "select commandbus.send_commands(%s, (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit', 'limit_key', 'k' || n))"
        " from generate_series(1, %s) n))",
        DOMAIN, KEYS,
    )  # fmt: skip
    await db.rows(
        "with aside as (update pgmq.q_payments__commands set vt = 'infinity' where vt <= now()"
        " returning msg_id, (message ->> 'command_id')::uuid as command_id)"
        " insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " select 'payments', 'l:k:Debit/' || c.limit_key, a.msg_id, a.msg_id, a.command_id"
        " from aside a join commandbus.command_bus_command c using (command_id)"
    )
    await db.rows(
        "insert into commandbus.command_bus_gate (domain, gate)"
        " select domain, gate from commandbus.command_bus_waiting on conflict do nothing"
    )


@pytest.fixture
async def others(session: Open) -> Session:
    """Another session, which waits for nothing."""
    found = await session()
    await found.rows("set lock_timeout = '50ms'")
    await found.conn.commit()
    return found


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_chore_reads_few_of_many_keys(db: Session, analyzed: bool) -> None:
    for table in ("waiting", "slot", "gate", "command"):
        await db.rows(
            f"alter table commandbus.command_bus_{table} set (autovacuum_enabled = false)"
        )
    await with_many_keys(db)
    if analyzed:
        await db.rows("analyze commandbus.command_bus_waiting, commandbus.command_bus_gate")
    before = await touched(db)
    assert await db.value(TEND, DOMAIN) == 0
    after = await touched(db)
    # It looks at 1,000 rows of gates a call, and whether somebody waits at each.
    assert all(after[table] - before[table] < 3_000 for table in after), (before, after)


async def test_the_chore_comes_to_all_gates_in_turn(db: Session) -> None:
    await with_many_keys(db)
    last = await db.value("select max(gate) from commandbus.command_bus_gate")
    await db.rows("delete from commandbus.command_bus_waiting where gate = %s", last)
    for _ in range(KEYS // 1_000 + 2):
        await db.value(TEND, DOMAIN)
    assert await db.value("select count(*) from commandbus.command_bus_gate") == KEYS


async def test_those_who_wait_at_the_keys_of_a_removed_limit_become_due(db: Session) -> None:
    await limit(db, max_running=1)
    await limit(db, "Debit.x", by_key=True, max_running=1)
    await limit(db, "Debit", by_key=True, max_running=1)
    kept = await sent(db, 3)
    await sent(db, 3, limit_key="a")
    others = await sent(db, 3, type="Debit.x", limit_key="a")
    held = await db.receive()
    assert len(held) == 2
    await db.value("select commandbus.clear_limit(%s, 'Debit.x', true)", DOMAIN)
    assert await db.value(TEND, DOMAIN) == 2
    assert await db.value(TEND, DOMAIN) == 0
    assert set(await waiting(db)).isdisjoint(others)
    assert set(kept[1:]) < set(await waiting(db))


async def test_nobody_waits_for_the_chore_that_finds_nothing_to_write(
    db: Session, others: Session
) -> None:
    await limit(db, max_running=1)
    await sent(db, 3)
    await db.receive()
    await db.rows("begin")
    assert await db.value(TEND, DOMAIN) == 0
    await limit(others, max_running=2)


@pytest.mark.parametrize("what", ["domain", "message", "command"])
async def test_the_chore_waits_for_nobody_and_comes_again(
    db: Session, others: Session, what: str
) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    (held,) = await db.receive()
    await complete(db, held)
    (again,) = await sent(db, 1)
    await db.rows(
        "insert into commandbus.command_bus_slot values (%s, 'l:t:Debit', %s)", DOMAIN, again
    )
    locks = {
        "domain": "select 1 from commandbus.command_bus_flow for update",
        "message": "select 1 from pgmq.q_payments__commands for update",
        "command": "select 1 from commandbus.command_bus_command for update",
    }
    await db.rows("begin")
    await db.rows(locks[what])
    assert await others.value(TEND, DOMAIN) == 0
    assert await places(others) == ["l:t:Debit"]
    await others.conn.commit()
    await db.conn.rollback()
    assert await others.value(TEND, DOMAIN) == 0
    assert await places(others) == []


async def test_the_chore_and_who_uses_levels_do_not_wait_for_each_other(
    db: Session, others: Session
) -> None:
    await limit(db, max_running=1)
    (waits,) = await sent(db, 1)
    await db.rows(
        "insert into commandbus.command_bus_slot values (%s, 'l:t:Debit', %s)", DOMAIN, waits
    )
    change: tuple[Any, ...] = ("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [waits])
    await db.rows("begin")
    await db.rows(*change)  # has the message, and then the row of the domain
    assert await others.value(TEND, DOMAIN) == 0
    await others.conn.commit()
    await db.conn.commit()
    assert await others.value(TEND, DOMAIN) == 0
    assert await places(others) == []

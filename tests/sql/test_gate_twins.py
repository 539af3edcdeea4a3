"""Limits of two domains whose commands, types and gates have the same names."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import limit, sent, waiting

OTHER = "refunds"


async def set_rate(db: Session, domain: str, per: float) -> None:
    await db.value(
        "select commandbus.set_limit(%s, p_type => 'Debit', p_rate => 1, p_per => %s,"
        " p_burst => 1)",
        domain, per,
    )  # fmt: skip


async def leases_one_of_two(db: Session, domain: str) -> None:
    commands = [{"command_id": str(uuid4()), "type": "Debit"} for _ in range(2)]
    await db.value("select commandbus.send_commands(%s, %s)", domain, Jsonb(commands))
    rows = await db.rows(
        "select command_id from commandbus.receive_commands(%s, 30, 10, 'worker-1')", domain
    )
    assert len(rows) == 1


async def gate_of(db: Session, domain: str) -> dict[str, Any]:
    (row,) = await db.rows(
        "select tokens, refilled_at, ready_at from commandbus.command_bus_gate where domain = %s",
        domain,
    )
    return dict(row)


def seconds_to_wait(gate: dict[str, Any]) -> float:
    ready, refilled = gate["ready_at"], gate["refilled_at"]
    assert isinstance(ready, datetime)
    return float((ready - refilled).total_seconds())


async def test_the_next_token_comes_by_the_rate_of_its_own_domain(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", OTHER)
    await set_rate(db, DOMAIN, 3_600)
    await set_rate(db, OTHER, 7_200)
    await leases_one_of_two(db, DOMAIN)
    ours = await gate_of(db, DOMAIN)
    await leases_one_of_two(db, OTHER)
    assert round(seconds_to_wait(ours)) == 3_600
    assert round(seconds_to_wait(await gate_of(db, OTHER))) == 7_200
    assert await gate_of(db, DOMAIN) == ours


async def test_one_that_goes_to_another_gate_moves_nobody_of_another_domain(db: Session) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    await db.receive()
    assert set(await waiting(db)) == {ids[1]}
    await db.rows(
        "insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " select %s, gate, seq, msg_id, command_id from commandbus.command_bus_waiting",
        OTHER,
    )
    await db.value(
        "select commandbus.wait_at_gates(%s, array[w.msg_id], array[w.command_id], array['l:d'],"
        " array[false], true, array['l:d']) from commandbus.command_bus_waiting w"
        " where w.domain = %s",
        DOMAIN, DOMAIN,
    )  # fmt: skip
    rows = await db.rows("select domain, gate from commandbus.command_bus_waiting")
    assert {row["domain"]: row["gate"] for row in rows} == {DOMAIN: "l:d", OTHER: "l:t:Debit"}


async def test_one_that_waits_already_and_is_read_again_waits_once(db: Session) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    await db.receive()
    # As another program does that uses PGMQ's own functions.
    await db.rows(f"update pgmq.q_{DOMAIN}__commands set vt = now() where vt = 'infinity'")
    assert await db.receive() == []
    assert await waiting(db) == {ids[1]: "l:t:Debit"}


async def limits(db: Session) -> dict[str, int]:
    rows = await db.rows("select domain, max_running from commandbus.command_bus_flow_rule")
    return {row["domain"]: row["max_running"] for row in rows}


async def test_a_limit_is_cleared_in_its_own_domain(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", OTHER)
    for domain, number in ((DOMAIN, 3), (OTHER, 5)):
        await db.value(
            "select commandbus.set_limit(%s, p_type => 'Debit', p_max_running => %s)",
            domain, number,
        )  # fmt: skip
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", OTHER) is True
    assert await limits(db) == {DOMAIN: 3}
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", OTHER) is False
    assert await limits(db) == {DOMAIN: 3}
    rows = await db.rows(
        "select details_json -> 'before' ->> 'max_running' as before"
        " from commandbus.command_bus_audit"
        " where domain = %s and event_type = 'EXECUTION_LIMIT_CLEARED'",
        OTHER,
    )
    assert [row["before"] for row in rows] == ["5"]


async def test_to_clear_a_limit_waits_for_nobody_of_another_domain(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    await db.value("select commandbus.ensure_domain(%s)", OTHER)
    await db.value("select commandbus.set_limit(%s, p_type => 'Debit', p_max_running => 1)", OTHER)
    other = await session()
    await other.rows(
        "select 1 from commandbus.command_bus_flow where domain = %s for update", OTHER
    )
    await db.rows("set lock_timeout = '2s'")
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN) is True
    await other.rows("rollback")

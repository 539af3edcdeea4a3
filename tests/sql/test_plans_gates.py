"""Receiving under limits reads what it gives out, however many wait."""

from __future__ import annotations

import pytest

from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_gates import complete, limit, sent
from tests.sql.test_plans import read

WAITING = 20_000


async def touched(db: Session) -> dict[str, int]:
    """Rows read so far of each table of the limits, by scans and by an index."""
    return {table: sum(await read(db, table)) for table in ("waiting", "slot", "gate", "command")}


@pytest.mark.parametrize("analyzed", ["never", "empty", "few", "full"])
async def test_a_receive_reads_only_what_it_gives_out_of_many_who_wait(
    db: Session, analyzed: str
) -> None:
    for table in ("waiting", "slot", "command"):
        await db.rows(
            f"alter table commandbus.command_bus_{table} set (autovacuum_enabled = false)"
        )
    if analyzed == "empty":
        await db.rows("analyze")
    await limit(db, max_running=10)
    # The plans are made, and cached, while the tables are as good as empty.
    await sent(db, 12)
    held = await db.receive(20)
    assert len(held) == 10
    if analyzed == "few":
        await db.rows("analyze")
    for _ in range(7):
        await complete(db, *held[:1])
        held = held[1:] + await db.receive()
        await sent(db, 1)
    for kind in ("Debit", "Credit"):
        await db.value(
            "select commandbus.send_commands(%s, (select jsonb_agg(jsonb_build_object("
            "'command_id', gen_random_uuid(), 'type', %s::text)) from generate_series(1, %s)))",
            DOMAIN, kind, WAITING if kind == "Debit" else 200,
        )  # fmt: skip
    await db.rows(
        "with aside as (update pgmq.q_payments__commands set vt = 'infinity' where vt <= now()"
        " and message ->> 'type' = 'Debit' returning msg_id, message)"
        " insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " select 'payments', 'l:t:Debit', msg_id, msg_id, (message ->> 'command_id')::uuid"
        " from aside"
    )
    if analyzed == "full":
        await db.rows("analyze commandbus.command_bus_waiting")
        await db.rows("analyze commandbus.command_bus_slot")
    before = await touched(db)
    await complete(db, *held[:2])
    await db.settle("retry", *(h.item(delay_seconds=60, **FAILURE) for h in held[2:4]))
    got = await db.receive(20)
    assert len(got) == 20
    assert sum(h.row["command_type"] == "Debit" for h in got) == 4
    await db.value("select commandbus.next_due(%s)", DOMAIN)
    await db.value(
        "select commandbus.cancel_commands(%s, array(select command_id"
        " from commandbus.command_bus_waiting limit 5), 'why')",
        DOMAIN,
    )
    after = await touched(db)
    assert all(after[table] - before[table] < 400 for table in after), (before, after)

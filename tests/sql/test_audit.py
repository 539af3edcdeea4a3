"""The audit is append-only, for everyone."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.helpers import Session

CHANGES = {
    "update": "update commandbus.command_bus_audit set event_type = 'X'",
    "update of no row": "update commandbus.command_bus_audit set event_type = 'X' where false",
    "delete": "delete from commandbus.command_bus_audit",
    "truncate": "truncate commandbus.command_bus_audit",
    "truncate cascade": "truncate commandbus.command_bus_audit restart identity cascade",
    "upsert": (
        "insert into commandbus.command_bus_audit"
        " select * from commandbus.command_bus_audit limit 1"
        " on conflict (audit_id) do update set event_type = 'X'"
    ),
    "inside a block": "do $$ begin delete from commandbus.command_bus_audit; end $$",
    "behind the name of the pruning function": (
        "do $$ begin delete from commandbus.command_bus_audit"
        " /* PL/pgSQL function commandbus.prune_audit( */; end $$"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_the_audit_is_refused_also_for_the_owner(
    db: Session, change: str
) -> None:
    await db.put("COMPLETED")
    assert await db.value(
        "select pg_has_role(current_user, relowner, 'usage') from pg_class"
        " where oid = 'commandbus.command_bus_audit'::regclass"
    )
    before = await db.everything()
    with pytest.raises(psycopg.Error, match="the audit is append-only") as info:
        await db.rows(CHANGES[change])
    assert info.value.sqlstate == "CB008"
    assert await db.everything() == before


def pruning(schema: str, path: str) -> str:
    return (
        f"create function {schema}.prune_audit() returns void language plpgsql {path} as"
        " $$ begin delete from commandbus.command_bus_audit; end $$"
    )


async def test_the_pruning_function_may_delete(db: Session) -> None:
    await db.put("COMPLETED")
    await db.rows("drop function if exists commandbus.prune_audit")
    await db.rows(pruning("commandbus", "set search_path = pg_catalog, pg_temp"))
    await db.rows("select commandbus.prune_audit()")
    assert await db.rows("select * from commandbus.command_bus_audit") == []


async def test_another_function_of_the_same_name_may_not_delete(db: Session) -> None:
    await db.put("COMPLETED")
    await db.rows("create schema mine")
    await db.rows(pruning("mine", ""))
    with pytest.raises(psycopg.Error, match="append-only"):
        await db.rows("select mine.prune_audit()")


async def test_events_are_told_in_the_order_in_which_they_happened(db: Session) -> None:
    held = await db.put("COMPLETED")
    rows = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by ts, audit_id",
        held.command_id,
    )
    assert [row["event_type"] for row in rows] == ["SENT", "RECEIVED", "COMPLETED"]

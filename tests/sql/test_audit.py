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


async def test_the_pruning_function_may_delete(db: Session) -> None:
    await db.put("COMPLETED")

    await db.rows("select commandbus.prune_audit('payments', clock_timestamp(), 100, null, 'ada')")

    rows = await db.rows("select event_type, actor from commandbus.command_bus_audit")
    assert rows == [{"event_type": "AUDIT_PRUNED", "actor": "ada"}]


FORGED = {
    "in a comment of the statement": (
        "do $$ begin delete from commandbus.command_bus_audit /*\n"
        "PL/pgSQL function commandbus.prune_audit(text) line 1 at SQL statement */; end $$"
    ),
    "in the name of a function": (
        'create function public."x\nPL/pgSQL function commandbus.prune_audit("() returns void'
        " language plpgsql as $f$ begin delete from commandbus.command_bus_audit; end $f$;"
        'select public."x\nPL/pgSQL function commandbus.prune_audit("()'
    ),
    "in the name of a schema": (
        'create schema "commandbus.prune_audit";'
        'create function "commandbus.prune_audit".prune_audit(v_ids bigint[]) returns void'
        " language plpgsql set search_path = pg_catalog as $f$ begin"
        " delete from commandbus.command_bus_audit a where a.audit_id = any(v_ids); end $f$;"
        'select "commandbus.prune_audit".prune_audit(array(select generate_series(1, 99)))'
    ),
    "by the same name and statement elsewhere": (
        "create schema mine;"
        "create function mine.prune_audit(v_ids bigint[]) returns void"
        " language plpgsql as $f$ begin"
        " delete from commandbus.command_bus_audit a where a.audit_id = any(v_ids); end $f$;"
        "set search_path = mine;"
        "select mine.prune_audit(array(select generate_series(1, 99)))"
    ),
    "by the same statement and more in a comment": (
        "do $$ declare v_ids bigint[] := array(select generate_series(1, 99)); begin"
        ' delete from commandbus.command_bus_audit a where a.audit_id = any(v_ids) --"\n'
        "--PL/pgSQL function commandbus.prune_audit(text) line 1 at SQL statement\n; end $$"
    ),
    "by a dynamic statement": (
        "do $$ begin execute 'delete from commandbus.command_bus_audit'; end $$"
    ),
    "by a function that prune_audit does not call": (
        "create function public.outer_one() returns void language plpgsql as $f$ begin"
        " perform commandbus.prune_audit('nobody', now(), 1);"
        " delete from commandbus.command_bus_audit; end $f$;"
        "select public.outer_one()"
    ),
}


async def test_nobody_can_pass_for_the_pruning_function(db: Session) -> None:
    await db.put("COMPLETED")
    before = await db.everything()

    for forgery, statements in FORGED.items():
        with pytest.raises(psycopg.Error) as info:
            await db.conn.execute(statements.encode())  # one transaction in all
        assert info.value.sqlstate == "CB008", (forgery, info.value)

    assert await db.everything() == before


async def test_events_are_told_in_the_order_in_which_they_happened(db: Session) -> None:
    held = await db.put("COMPLETED")
    rows = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by ts, audit_id",
        held.command_id,
    )
    assert [row["event_type"] for row in rows] == ["SENT", "RECEIVED", "COMPLETED"]

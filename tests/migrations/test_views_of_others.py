"""Views that others have made on our tables, when a migration puts another table in the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import AsyncConnection

from commandbus import Settings
from commandbus.database import migrations
from commandbus.database.migrations import migrate
from tests.migrations.test_migrations import empty, fetch

__all__ = ["empty"]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "upgrading.md"
#: The version before the audit was divided into parts.
BEFORE_PARTS = 29


@pytest.fixture
async def old(empty: AsyncConnection, monkeypatch: pytest.MonkeyPatch) -> AsyncConnection:
    """A database whose audit is one table, with an event in it."""
    found = migrations.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: found[:BEFORE_PARTS])
        patch.setattr(migrations, "function_text", lambda: "select 1;")
        await migrate(empty, Settings())
    await write(empty)
    await empty.execute("create schema reports")
    return empty


async def write(conn: AsyncConnection) -> None:
    await conn.execute(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type)"
        " values ('shop', gen_random_uuid(), 'SENT')"
    )


async def test_a_view_on_the_audit_sees_what_is_written_after_the_migration(
    old: AsyncConnection,
) -> None:
    await old.execute(
        "create view reports.events with (security_barrier = true) as"
        " select a.audit_id, a.domain || '%' as who from commandbus.command_bus_audit a"
    )
    await old.execute("create view reports.counted as select count(*) from reports.events")
    await old.execute("grant select on reports.events to public")
    with_rights = "select relacl::text, reloptions from pg_class where relname = 'events'"
    before = await fetch(old, with_rights)

    await migrate(old, Settings())
    while await fetch(old, "select 1 from commandbus.tend_audit() where o_did is not null"):
        pass
    # far beyond the first part
    await old.execute("select setval('commandbus.command_bus_audit_audit_id_seq', 100000000)")
    await write(old)

    assert await fetch(old, "select * from reports.counted") == [(2,)]
    assert await fetch(old, with_rights) == before


async def test_a_view_that_cannot_be_made_anew_hinders_no_migration_and_the_doctor_names_it(
    old: AsyncConnection,
) -> None:
    await old.execute("create view reports.whole as select a from commandbus.command_bus_audit a")
    await old.execute(
        "create materialized view reports.kept as select * from commandbus.command_bus_audit"
    )

    await migrate(old, Settings())

    assert await fetch(old, "select count(*) from reports.whole") == [(1,)]
    found = (
        "select subject from commandbus.check_server() where code = 'AUDIT_PART_READ' order by 1"
    )
    assert await fetch(old, found) == [
        ("reports.kept reads command_bus_audit_first",),
        ("reports.whole reads command_bus_audit_first",),
    ]
    await old.execute("drop view reports.whole")
    await old.execute("drop materialized view reports.kept")
    assert await fetch(old, found) == []


async def test_what_others_have_built_on_the_audit_stays_and_the_guide_finds_it(
    old: AsyncConnection,
) -> None:
    await old.execute(
        "create function reports.name_of(commandbus.command_bus_audit) returns text"
        " language sql return $1.event_type"
    )
    await old.execute("create view reports.whole as select a from commandbus.command_bus_audit a")
    await old.execute(
        "create view reports.ids as select audit_id from commandbus.command_bus_audit"
    )
    query = GUIDE.read_text().split("```sql\nselect distinct ", 1)[1].split("```", 1)[0]

    await migrate(old, Settings())

    assert {text for (text,) in await fetch(old, "select distinct " + query)} == {
        "function reports.name_of(command_bus_audit_first)",
        "rule _RETURN on view reports.whole",
        "view reports.whole",
    }

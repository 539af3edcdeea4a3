"""Installing, upgrading, and refusing what does not fit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from typer.testing import CliRunner

from commandbus import Command, CommandBus, HandlerContext, Settings
from commandbus.cli.main import app
from commandbus.database import migrations
from commandbus.database.migrations import Migration, check_schema, full_sql, migrate, schema_status
from commandbus.database.pgmq.install import install_pgmq, packaged_version
from commandbus.errors import (
    DatabaseUnavailableError,
    InvalidSettingError,
    PermanentCommandError,
    PgmqError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from commandbus.wiring import database_status, migrate_database
from tests.migrations.snapshot import SNAPSHOT, describe
from tests.waiting import until_status, working

NEWEST = migrations.migrations()[-1].version


async def fetch(conn: AsyncConnection, query: str) -> list[tuple[object, ...]]:
    return await (await conn.execute(query.encode())).fetchall()


@pytest.fixture
async def empty(empty_dsn: str) -> AsyncIterator[AsyncConnection]:
    """An autocommit connection to a database with nothing in it."""
    async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def installed(conn: AsyncConnection) -> str:
    """What a fresh install looks like."""
    return await describe(conn)


async def test_a_fresh_install_equals_the_committed_snapshot(installed: str) -> None:
    assert installed == SNAPSHOT.read_text(encoding="utf-8"), (
        "the schema has changed; run `make schema` and review the difference"
    )


async def test_a_second_migration_changes_nothing(empty: AsyncConnection) -> None:
    first = await migrate(empty, Settings())
    assert first == [f"{m.version:04}_{m.name}" for m in migrations.migrations()]
    records = await fetch(empty, "select * from commandbus.command_bus_migration")
    before = await describe(empty)
    assert await migrate(empty, Settings()) == []
    assert await describe(empty) == before
    assert await fetch(empty, "select * from commandbus.command_bus_migration") == records


async def test_functions_whose_name_or_arguments_have_changed_are_replaced(
    conn: AsyncConnection, installed: str
) -> None:
    for old in (
        "start_bulk(uuid, text, text, jsonb, jsonb, float8, text, boolean) returns uuid",
        "find_bulk(uuid) returns text",
        "find_batch(text, uuid) returns text",
        "complete_held(text, jsonb) returns uuid[]",
        "create_held_batch(text, uuid, jsonb) returns void",
        "held_envelopes(text, uuid[]) returns text",
        "hold_commands(text, jsonb) returns uuid[]",
        "queue_held(text, uuid[], text[]) returns uuid[]",
        "resolve_parked(text, uuid[]) returns void",
    ):
        await conn.execute(
            f"create function commandbus.{old} language plpgsql as $$ begin end $$".encode()
        )
    assert await describe(conn) != installed

    assert await migrate(conn, Settings()) == []

    assert await describe(conn) == installed


async def test_a_migration_gives_a_function_the_planner_settings_back_that_it_has_lost(
    conn: AsyncConnection, installed: str
) -> None:
    await conn.execute("alter function commandbus.receive_commands reset all")
    assert await describe(conn) != installed

    assert await migrate(conn, Settings()) == []

    assert await describe(conn) == installed


async def test_migrators_at_once_apply_everything_once(empty_dsn: str, installed: str) -> None:
    applied = await asyncio.gather(*(migrate_database(empty_dsn, Settings()) for _ in range(4)))
    assert sorted(len(names) for names in applied) == [0, 0, 0, len(migrations.migrations())]
    async with await psycopg.AsyncConnection.connect(empty_dsn) as conn:
        assert await describe(conn) == installed


async def test_buses_that_start_at_once_on_an_empty_database_all_work(empty_dsn: str) -> None:
    async def start() -> None:
        async with CommandBus.connect(empty_dsn) as bus:
            await bus.send("payments", "Ping", uuid4(), {})

    await asyncio.gather(*(start() for _ in range(3)))


async def test_an_older_schema_is_refused_with_the_advice_to_migrate(
    dsn: str, conn: AsyncConnection
) -> None:
    await conn.execute(
        "update commandbus.command_bus_migration set version = 0 where version = %s", (NEWEST,)
    )
    before = await describe(conn)
    with pytest.raises(SchemaTooOldError, match=f"needs {NEWEST}; run `commandbus db migrate`"):
        async with CommandBus.connect(dsn):
            pass
    assert await describe(conn) == before
    status = await database_status(dsn, Settings())
    assert len(status.pending) == 1


async def test_a_schema_that_lacks_one_of_ours_is_refused_also_when_it_has_newer_ones(
    conn: AsyncConnection,
) -> None:
    await conn.execute("update commandbus.command_bus_migration set version = 9000 + version")
    with pytest.raises(SchemaTooOldError, match="run `commandbus db migrate`"):
        await check_schema(conn, Settings())


async def newer(conn: AsyncConnection, *, is_breaking: bool) -> None:
    await conn.execute(
        "insert into commandbus.command_bus_migration (version, name, checksum, is_breaking)"
        " values (9000, 'future', 'x', %s)",
        (is_breaking,),
    )


async def test_a_newer_schema_that_breaks_older_code_is_refused(
    dsn: str, conn: AsyncConnection
) -> None:
    await newer(conn, is_breaking=True)
    before = await describe(conn)
    with pytest.raises(
        SchemaTooNewError, match=r"version 9000 needs newer code.*upgrade commandbus"
    ):
        async with CommandBus.connect(dsn):
            pass
    with pytest.raises(SchemaTooNewError, match="upgrade commandbus"):
        await migrate_database(dsn, Settings())
    assert await describe(conn) == before


async def test_a_newer_schema_that_breaks_nothing_is_accepted(
    dsn: str, conn: AsyncConnection
) -> None:
    await newer(conn, is_breaking=False)
    async with CommandBus.connect(dsn) as bus:
        await bus.send("payments", "Ping", uuid4(), {})


async def test_an_older_migrator_leaves_the_functions_of_a_newer_schema_alone(
    dsn: str, conn: AsyncConnection
) -> None:
    await newer(conn, is_breaking=False)
    await conn.execute(
        "create or replace function commandbus.iso8601(p_ts timestamptz) returns text"
        " language sql immutable as $$ select 'from the future' $$"
    )
    before = await describe(conn)
    assert await migrate_database(dsn, Settings()) == []
    assert await describe(conn) == before


async def test_a_migration_applied_in_another_form_is_refused(
    dsn: str, conn: AsyncConnection
) -> None:
    await conn.execute(
        "update commandbus.command_bus_migration set checksum = 'other' where version = 1"
    )
    with pytest.raises(SchemaTooNewError, match="0001_initial was applied in another form"):
        await migrate_database(dsn, Settings())


async def test_a_database_of_the_first_version_is_accepted(dsn: str, conn: AsyncConnection) -> None:
    for version, checksum in migrations.FORMER_CHECKSUMS.items():
        await conn.execute(
            "update commandbus.command_bus_migration set checksum = %s where version = %s",
            (checksum, version),
        )
    assert await migrate_database(dsn, Settings()) == []


async def test_an_empty_database_is_refused_by_whoever_does_not_create(
    empty_dsn: str, empty: AsyncConnection
) -> None:
    with pytest.raises(
        SchemaMissingError, match="no schema 'commandbus'; run `commandbus db init`"
    ):
        await check_schema(empty, Settings())
    async with AsyncConnectionPool(empty_dsn, min_size=1, open=False) as pool:
        with pytest.raises(SchemaMissingError, match="run `commandbus db init`"):
            await CommandBus(pool).send("payments", "Ping", uuid4(), {})
    assert (
        await fetch(empty, "select 1 from pg_namespace where nspname in ('pgmq', 'commandbus')")
        == []
    )


async def test_connect_initialises_an_empty_database(
    empty_dsn: str, empty: AsyncConnection, installed: str
) -> None:
    async with CommandBus.connect(empty_dsn):
        pass
    assert await describe(empty) == installed


async def everything(conn: AsyncConnection) -> list[tuple[object, ...]]:
    """The schemas, relations and functions that stand in a database."""
    return await fetch(
        conn,
        "select 'schema', nspname from pg_namespace where nspname !~ '^pg_t'"
        " union all select 'relation', relname from pg_class where relnamespace >= 16384"
        " union all select 'function', oid::regprocedure::text from pg_proc"
        " where pronamespace >= 16384 order by 1, 2",
    )


@pytest.mark.parametrize("where", ["numbered file", "function file"])
async def test_a_failure_in_the_middle_leaves_the_database_as_it_was(
    empty: AsyncConnection, monkeypatch: pytest.MonkeyPatch, where: str, installed: str
) -> None:
    before = await everything(empty)
    if where == "numbered file":
        found = [
            *migrations.migrations(),
            Migration(9000, "broken", "create table commandbus.x (;"),
        ]
        monkeypatch.setattr(migrations, "migrations", lambda: found)
    else:
        monkeypatch.setattr(migrations, "function_text", lambda: "create function oops")
    with pytest.raises(psycopg.errors.SyntaxError):
        await migrate(empty, Settings())
    assert await everything(empty) == before
    monkeypatch.undo()
    await migrate(empty, Settings())
    assert await describe(empty) == installed


async def test_a_failed_upgrade_leaves_the_installed_version_as_it_was(
    conn: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await describe(conn)
    found = [
        *migrations.migrations(),
        Migration(9000, "good", "create table commandbus.good (id int);"),
        Migration(9001, "broken", "select no_such_function();"),
    ]
    monkeypatch.setattr(migrations, "migrations", lambda: found)
    with pytest.raises(psycopg.errors.UndefinedFunction):
        await migrate(conn, Settings())
    assert await describe(conn) == before


async def test_a_database_of_the_first_version_is_upgraded_with_its_batches(
    empty: AsyncConnection, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    found = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: found[:1])
    monkeypatch.setattr(migrations, "function_text", lambda: "select 1;")
    await migrate(empty, Settings())
    monkeypatch.undo()
    await empty.execute(
        "insert into commandbus.command_bus_batch (batch_id, domain, total_count)"
        " values (gen_random_uuid(), 'payments', 5)"
    )
    applied = await migrate(empty, Settings())
    assert applied == [f"{m.version:04}_{m.name}" for m in found[1:]]
    assert await describe(empty) == installed
    assert await fetch(
        empty, "select is_pending, requires_approval, decision from commandbus.command_bus_batch"
    ) == [(False, False, None)]
    assert await fetch(empty, "select * from commandbus.batch_approval_tickets") == []


async def test_tokens_and_types_that_were_used_to_submit_are_known_after_an_upgrade(
    empty: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: found[:8])
    monkeypatch.setattr(migrations, "function_text", lambda: "select 1;")
    await migrate(empty, Settings())
    monkeypatch.undo()
    await empty.execute(
        "insert into commandbus.command_bus_api_token (token_id, user_id, scopes, secret_hash)"
        " select repeat(n::text, 32), 'ada', s::text[], 'x' from (values (1, '{read}'),"
        " (2, '{read,send}'), (3, '{admin}')) v(n, s)"
    )
    await empty.execute(
        "with batch as (insert into commandbus.command_bus_batch (batch_id, domain, total_count,"
        " batch_type, created_by) values (gen_random_uuid(), 'shop', 1, 'ORDERS', 'ada')"
        " returning *)"
        " insert into commandbus.command_bus_command (domain, queue_name, command_id, command_type,"
        " status, max_attempts, reply_queue, correlation_id, batch_id)"
        " select 'shop', 'shop.commands', gen_random_uuid(), 'PlaceOrder', 'COMPLETED', 3, '',"
        " gen_random_uuid(), b.batch_id from batch b"
    )
    await migrate(empty, Settings())
    governed = (
        "select command_type, batch_type from commandbus.command_bus_governed_type order by 1"
    )
    assert await fetch(empty, governed) == [
        ("DecideTicket", "BATCH_APPROVE"), ("PlaceOrder", "ORDERS"),
    ]  # fmt: skip
    stored = "select scopes from commandbus.command_bus_api_token order by token_id"
    assert await fetch(empty, stored) == [(["read"],), (["read", "send", "submit"],), (["admin"],)]


async def test_another_schema_name_gives_the_same_schema_and_no_trace_of_the_default(
    empty: AsyncConnection, installed: str
) -> None:
    await migrate(empty, Settings(schema="other"))
    assert await describe(empty, "other") == installed
    assert await fetch(empty, "select 1 from pg_namespace where nspname = 'commandbus'") == []
    bodies = await fetch(
        empty, "select prosrc from pg_proc where pronamespace = 'other'::regnamespace"
    )
    assert len(bodies) > 20
    for (body,) in bodies:
        assert not re.search(r"\bcommandbus(\\?\.|\[\.)", str(body))
    assert "commandbus." not in full_sql("other")


async def test_another_schema_name_works_from_end_to_end(
    empty_dsn: str, empty: AsyncConnection
) -> None:
    settings = Settings(schema="other")
    async with CommandBus.connect(empty_dsn, settings=settings) as bus:

        @bus.handler("payments", "Double")
        async def double(command: Command, ctx: HandlerContext) -> int:
            return int(command.data["n"]) * 2

        @bus.handler("payments", "Refuse")
        async def refuse(command: Command, ctx: HandlerContext) -> None:
            raise PermanentCommandError("NO", "never")

        refused = uuid4()
        async with working(bus, "payments"):
            assert (await bus.call("payments", "Double", {"n": 4})).data == 8
            await bus.send("payments", "Refuse", refused, {})
            await until_status(bus, "payments", refused, "IN_TROUBLESHOOTING_QUEUE")
        await bus.operator_cancel("payments", refused, "enough")
        assert [reply.command_id async for reply in bus.replies("payments", wait=False)] == [
            refused
        ]
        assert await bus.get_audit_trail(refused)
    with pytest.raises(psycopg.Error, match="append-only"):
        await empty.execute("delete from other.command_bus_audit")


async def test_the_printed_sql_run_by_hand_gives_the_same_schema(
    empty: AsyncConnection, installed: str
) -> None:
    async with empty.transaction():
        await install_pgmq(empty)
    await empty.execute(full_sql().encode())
    assert await describe(empty) == installed
    await check_schema(empty, Settings())
    assert (await schema_status(empty, Settings())).functions_current
    assert await migrate(empty, Settings()) == []


def test_the_printed_sql_is_what_the_command_line_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_SCHEMA", "other")

    assert CliRunner().invoke(app, ["db", "sql"]).stdout == full_sql("other") + "\n"


@pytest.mark.parametrize(
    "signature", ["set_vt(text, bigint[], integer)", "archive(text, bigint[])"]
)
async def test_a_pgmq_that_lacks_a_function_is_refused_with_its_name(
    conn: AsyncConnection, signature: str
) -> None:
    await conn.execute(f"drop function pgmq.{signature}".encode())
    before = await describe(conn)
    with pytest.raises(PgmqError, match=r"lacks pgmq\.\w+\(.*upgrade it to 1\.8 or later") as info:
        await migrate(conn, Settings())
    assert signature in str(info.value)
    assert await describe(conn) == before


async def test_pgmq_is_installed_once_and_its_version_is_recorded(
    dsn: str, conn: AsyncConnection
) -> None:
    assert (await database_status(dsn, Settings())).pgmq_version == packaged_version()
    before = await fetch(
        conn, "select oid from pg_proc where pronamespace = 'pgmq'::regnamespace order by 1"
    )
    await migrate(conn, Settings())
    after = await fetch(
        conn, "select oid from pg_proc where pronamespace = 'pgmq'::regnamespace order by 1"
    )
    assert after == before


async def test_the_status_tells_what_is_there_and_what_is_missing(
    empty: AsyncConnection,
) -> None:
    status = await schema_status(empty, Settings())
    assert (status.installed_version, status.package_version) == (None, NEWEST)
    assert len(status.pending) == len(migrations.migrations())
    assert not status.functions_current
    await migrate(empty, Settings())
    status = await schema_status(empty, Settings())
    assert (status.installed_version, status.pending) == (NEWEST, ())
    assert status.functions_current
    assert re.match(r"\d+", status.server_version)
    await empty.execute(
        "update commandbus.command_bus_setting set value = 'x' where name = 'functions_checksum'"
    )
    assert not (await schema_status(empty, Settings())).functions_current


async def test_settings_of_the_database_survive_a_migration(conn: AsyncConnection) -> None:
    await conn.execute("select commandbus.change_setting('command_id_scope', 'global')")
    await migrate(conn, Settings())
    assert await fetch(conn, "select commandbus.setting('command_id_scope')") == [("global",)]


async def test_a_scope_of_ids_that_differs_from_the_database_is_refused(
    dsn: str, conn: AsyncConnection
) -> None:
    with pytest.raises(InvalidSettingError, match=r"'global' here but 'domain' in the database"):
        async with CommandBus.connect(dsn, settings=Settings(command_id_scope="global")):
            pass
    await conn.execute("select commandbus.change_setting('command_id_scope', 'global')")
    with pytest.raises(InvalidSettingError, match=r"'domain' here but 'global' in the database"):
        async with CommandBus.connect(dsn):
            pass
    async with CommandBus.connect(dsn, settings=Settings(command_id_scope="global")) as bus:
        await bus.send("payments", "Ping", uuid4(), {})


def test_migrations_are_numbered_without_gaps() -> None:
    versions = [m.version for m in migrations.migrations()]
    assert versions == list(range(1, len(versions) + 1))


def test_a_migration_is_breaking_when_its_first_line_says_so() -> None:
    assert Migration(2, "x", "-- breaking\nselect 1;").is_breaking
    assert not Migration(2, "x", "-- 0002\n-- breaking\nselect 1;").is_breaking


def test_the_checksum_of_a_migration_is_that_of_its_statements() -> None:
    assert Migration(2, "x", "a").checksum != Migration(2, "x", "b").checksum
    assert Migration(2, "x", "-- why\na  b").checksum == Migration(2, "x", "a\nb -- c").checksum


async def test_a_session_that_may_only_read_is_told_so_unless_it_is_ours(
    server: object, empty_dsn: str, empty: AsyncConnection
) -> None:
    await empty.execute("set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await migrate(empty, Settings())
    reading = empty_dsn + " options='-c default_transaction_read_only=on'"
    with pytest.raises(DatabaseUnavailableError, match="target_session_attrs=any"):
        await migrate_database(reading, Settings())
    # On a connection of our own it is a default that is answered, for who asks for that.
    assert await migrate_database(reading + " target_session_attrs=any", Settings())

"""`commandbus db roles`: what is there, what is wrong, and how it is put and kept right."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner, Result

from commandbus import CommandBus, Settings
from commandbus.cli.main import app
from commandbus.errors import DatabaseError, InvalidSettingError
from commandbus.wiring import database_roles, migrate_database
from tests.conftest import Server
from tests.security.roled import RoledDatabase, drop_database, roled_database

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(server: Server, template: str) -> Iterator[RoledDatabase]:
    with roled_database(server, template) as made:
        yield made


@pytest.fixture
def bare(server: Server, template: str) -> Iterator[RoledDatabase]:
    """Without roles."""
    name = f"test_{secrets.token_hex(6)}"
    made = RoledDatabase(server.dsn(name), f"r{secrets.token_hex(6)}", secrets.token_hex(16))
    with server.admin() as admin:
        admin.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        try:
            yield made
        finally:
            drop_database(admin, made)


def run(dsn: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["db", "roles", *arguments, "--dsn", dsn])


def test_a_database_without_roles_says_so_and_how_to_make_them(bare: RoledDatabase) -> None:
    result = run(bare.owner, "--prefix", bare.prefix)

    assert result.exit_code == 1
    assert "db roles --apply" in result.output


def test_roles_are_made_once_and_a_repeat_changes_nothing(bare: RoledDatabase) -> None:
    first = run(bare.owner, "--apply", "--prefix", bare.prefix, "--json")
    second = run(bare.owner, "--apply", "--json")
    shown = run(bare.owner, "--json")

    assert first.exit_code == second.exit_code == shown.exit_code == 0, first.output + first.stderr
    assert json.loads(first.output)["ran"]
    assert json.loads(second.output)["ran"] == []
    assert json.loads(shown.output) == {
        "is_right": True, "prefix": bare.prefix, "is_set_up": True, "differences": [], "ran": [],
    }  # fmt: skip


def test_the_printed_sql_does_the_same(bare: RoledDatabase) -> None:
    printed = run(bare.owner, "--sql", "--prefix", bare.prefix)
    assert printed.exit_code == 0
    with psycopg.connect(bare.owner) as conn:
        lines = printed.output.splitlines()
        for line in lines:
            conn.execute(line.encode())
            if "_migrator" in line and line.startswith("create role"):
                conn.execute(f"grant {bare.prefix}_migrator to current_user".encode())

    again = run(bare.owner, "--sql", "--prefix", bare.prefix)
    assert again.output == ""


TAMPERED = [
    "grant update on commandbus.command_bus_audit to {prefix}_worker",
    "grant select on commandbus.command_bus_payload_archive to {prefix}_sender",
    "grant select (secret_hash) on commandbus.command_bus_api_token to {prefix}_reader",
    "grant execute on function commandbus.prune_audit to {prefix}_operator",
    "grant execute on function commandbus.put_messages to public",
    "grant create on schema commandbus to {prefix}_api",
    "grant usage on sequence commandbus.command_bus_audit_audit_id_seq to {prefix}_api",
    "grant select on pgmq.q_shop__commands to {prefix}_reader",
    "grant {prefix}_migrator to {prefix}_worker",
    "alter role {prefix}_worker login",
    "revoke execute on function commandbus.offer_one from {prefix}_sender",
    "revoke select on commandbus.command_bus_command from {prefix}_reader",
    "alter table commandbus.command_bus_batch owner to current_user",
]


async def test_what_is_too_much_or_too_little_is_shown_found_and_put_right(
    database: RoledDatabase,
) -> None:
    async with (
        CommandBus.connect(database.owner) as bus,
        await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as conn,
    ):
        await bus.send("shop", "Work", uuid4(), {})
        for text in TAMPERED:
            statement = text.replace("{prefix}", database.prefix)
            await conn.execute(statement.encode())

            found = await (
                await conn.execute("select code from commandbus.check_roles()")
            ).fetchall()
            assert ("ROLE_RIGHTS",) in found, statement
            status, ran = await database_roles(database.owner, Settings(), apply=True)
            assert (len(ran) > 0, status.differences) == (True, ()), statement

        codes = {finding.code for finding in (await bus.upkeep.doctor()).findings}
        assert "ROLE_RIGHTS" not in codes


async def test_a_migration_by_a_member_of_the_migrator_keeps_owner_and_rights(
    database: RoledDatabase,
) -> None:
    async with database.connect("migrator") as conn:
        # a function that the next release has and this one had not, and a table of another column
        await conn.execute("drop function commandbus.offer_one")
        await conn.execute("grant execute on function commandbus.send_command to public")

        await migrate_database(database.dsn("migrator"), Settings())

    status, _ = await database_roles(database.dsn("reader"), Settings())
    assert status.differences == ()
    async with database.bus("sender") as bus:
        await bus.send("after", "Work", uuid4(), {})


async def test_a_migration_by_a_stranger_says_whom_to_ask(database: RoledDatabase) -> None:
    with pytest.raises(DatabaseError, match=f"{database.prefix}_migrator"):
        await migrate_database(database.dsn("reader"), Settings())


async def test_queues_that_are_made_later_belong_to_the_migrator(database: RoledDatabase) -> None:
    async with database.bus("sender") as bus:
        await bus.send("later", "Work", uuid4(), {}, reply_to="later.answers")

    status, _ = await database_roles(database.owner, Settings())

    assert status.differences == ()
    async with database.connect("migrator") as conn:
        rows = await (
            await conn.execute(
                "select relname, relowner::regrole::text from pg_class"
                " where relname ~ '^[qa]_later__(commands|replies|answers)$'"
            )
        ).fetchall()
    assert len(rows) == 6
    assert {row[1] for row in rows} == {f"{database.prefix}_migrator"}


async def test_roles_of_another_database_are_not_shared_by_mistake(
    database: RoledDatabase, dsn: str
) -> None:
    with pytest.raises(InvalidSettingError, match="belong to another installation"):
        await database_roles(dsn, Settings(), prefix=database.prefix, apply=True)


async def test_who_may_not_create_roles_is_told_what_is_missing(
    bare: RoledDatabase, server: Server
) -> None:
    login = f"{bare.prefix}_plain"
    with server.admin() as admin:
        name = str(conninfo_to_dict(bare.owner)["dbname"])
        admin.execute(f"create role {login} login password '{bare.password}'".encode())
        admin.execute(f"grant {login} to current_user".encode())
    with psycopg.connect(bare.owner, autocommit=True) as conn:
        conn.execute(f"grant usage on schema commandbus to {login}".encode())
        for table in ("command_bus_migration", "command_bus_setting"):
            conn.execute(f"grant select on commandbus.{table} to {login}".encode())
        conn.execute(f"grant execute on function commandbus.role_differences to {login}".encode())
    plain = make_conninfo(bare.owner, user=login, password=bare.password)

    with pytest.raises(DatabaseError, match=r"may not create roles.*createrole.*--sql"):
        await database_roles(plain, Settings(), prefix=bare.prefix, apply=True)

    assert name


async def test_another_schema_has_roles_of_its_own(bare: RoledDatabase) -> None:
    # Both in one database, with one PGMQ: a worker of one is nobody in the other.
    other = Settings(schema=f"{bare.prefix}s")
    await migrate_database(bare.owner, other)
    for settings, prefix in ((Settings(), bare.prefix), (other, f"{bare.prefix}_two")):
        await database_roles(bare.owner, settings, prefix=prefix, apply=True)
    for settings, prefix in ((Settings(), bare.prefix), (other, f"{bare.prefix}_two")):
        status, _ = await database_roles(bare.owner, settings)
        assert (status.prefix, status.differences) == (prefix, ())
    with psycopg.connect(bare.owner, autocommit=True) as conn:
        conn.execute(
            f"create role {bare.prefix}_login login password '{bare.password}'"
            f" in role {bare.prefix}_two_worker".encode()
        )
        conn.execute(f"grant {bare.prefix}_login to current_user".encode())
    dsn = make_conninfo(bare.owner, user=f"{bare.prefix}_login", password=bare.password)
    async with CommandBus.connect(dsn, settings=other) as bus:
        await bus.send("shop", "Work", uuid4(), {})
        receiver: Any = bus._store
        leased = await receiver.receive("shop", vt_seconds=9, quantity=9, worker="w", limits={})
        assert len(leased) == 1
    with pytest.raises(DatabaseError):
        async with CommandBus.connect(dsn) as bus:
            await bus.send("shop", "Work", uuid4(), {})


async def test_the_doctor_warns_a_process_that_logs_in_as_the_owner(
    database: RoledDatabase,
) -> None:
    for role, is_warned in (("migrator", True), ("operator", False), ("reader", False)):
        async with database.bus(role) as bus:
            found = {finding.code for finding in (await bus.upkeep.doctor()).findings}
        assert ("ROLE_OWNER" in found) == is_warned, role
        assert not found & {"ROLE_RIGHTS", "FUNCTION_OPEN", "CHECK_FAILED", "RIGHTS_MISSING"}

"""Migrations: numbered files once, function files whole every time, under one lock.

Numbered files hold tables, types and indexes; forward only, each recorded with its checksum in
the transaction that ran it. Function files are reloaded after them. `-- breaking` on the first
line of a numbered file makes older code refuse to start.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from commandbus.database.connections import fetch
from commandbus.database.pgmq.install import install_pgmq
from commandbus.database.roles import apply_rights, become_owner
from commandbus.errors import (
    InvalidSettingError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
    SchemaVersionError,
)
from commandbus.settings import Settings

#: Keeps two migrators apart; held until the end of the transaction. "cmdbus" as a number.
MIGRATION_LOCK = 0x636D64627573

#: Loaded in this order: plain SQL functions are checked against what they call, and loading a
#: function again takes its settings away, which the last two files give back.
FUNCTION_FILES = (
    "former", "basics", "settings", "queues", "queue_verbs", "shards", "moving_parts",
    "moving_audit", "moving", "locks", "history", "visibility",
    "audit", "seals", "parts", "audit_parts", "audit_drops", "archive_parts", "archive_drops",
    "workers", "payloads", "replies", "batches",
    "troubleshooting", "key_reads",
    "flow", "pause", "levels", "gates", "gate_places", "gate_reads", "gate_rules", "keys",
    "key_turns", "sending", "unique", "unique_sends", "receiving", "emptying", "leases", "outcomes",
    "cancels",
    "progress", "expiry", "settle", "dispatch", "recovery", "loading", "operator",
    "key_operator", "reschedule", "bulk", "bulk_run", "search", "history_search",
    "timetable", "life", "batch_reads",
    "figures", "overview", "samples", "checks", "activity", "rights", "roles", "schedules",
    "firing", "handover", "gate_upkeep", "doctor", "key_doctor", "doctor_server", "repair",
    "retention", "retention_history", "retention_batches", "limits", "governance", "governed",
    "approvals", "edits",
    "reviews", "tickets", "tokens", "console", "planner", "security",
)  # fmt: skip

#: What version 0.1.0 recorded for the same statements, by version: it counted the comments too.
FORMER_CHECKSUMS = {
    1: "86f8bf8a7df6ba6b20dc08c78889f79329d5d0ef780ec5228f70a6d332bb0e59",
    2: "0daafb5c4a5501bb8ceb024e5b60b0d62ba9ff521d5097e59e540df3cce8d078",
    3: "347ef496b06f2d622bf6f109b01de584cdfa104d05cbbf3a46311c411e49a8f6",
    4: "f75bbe47b2a998722143c444d1988ff901cd46c3cb81ab27333b080d7f99e1be",
}

_BOOTSTRAP = """
create schema if not exists commandbus;
create table if not exists commandbus.command_bus_migration (
    version     int primary key,
    name        text not null,
    checksum    text not null,
    is_breaking boolean not null default false,
    applied_at  timestamptz not null default now()
);
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of the statements, not the comments; `migrate` refuses a file that has changed."""
        statements = re.sub(r"--[^\n]*", "", self.text)
        return hashlib.sha256(" ".join(statements.split()).encode()).hexdigest()

    @property
    def is_breaking(self) -> bool:
        """Whether older code cannot work with the result."""
        return self.text.startswith("-- breaking")


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """What the database has, and what this package brings."""

    installed_version: int | None
    package_version: int
    pending: tuple[str, ...]
    pgmq_version: str | None
    server_version: str
    functions_current: bool
    #: Why every process with these settings refuses the database, and what to do; None: none does.
    refusal: str | None


def migrations() -> list[Migration]:
    """All numbered files, in order."""
    folder = files("commandbus").joinpath("database", "sql", "migrations")
    found = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            text = entry.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], text))
    return found


def function_text() -> str:
    """All function files, in order, and the views."""
    folder = files("commandbus").joinpath("database", "sql")
    paths = [folder.joinpath("functions", f"{name}.sql") for name in FUNCTION_FILES]
    paths.append(folder.joinpath("views.sql"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def full_sql(schema: str = "commandbus") -> str:
    """Everything that `migrate` runs on an empty database, for teams with a tool of their own.

    PGMQ is not part of it: install the extension first, or let `commandbus db init` do it.
    """
    parts = [_in_schema(_BOOTSTRAP, schema)]
    for migration in migrations():
        parts.append(f"-- {migration.version:04} {migration.name}")
        parts.append(_in_schema(migration.text, schema))
        parts.append(_record(migration, schema) + ";\n")
    parts.append(_in_schema(function_text(), schema))
    parts.append(_in_schema(_functions_record(), schema))
    return "\n".join(parts)


async def migrate(
    conn: psycopg.AsyncConnection[Any], settings: Settings, *, upto: int | None = None
) -> list[str]:
    """Bring the database up to date; returns the names of what was applied.

    One transaction in all: a failure half-way leaves the database as it was. With `upto` only the
    numbered files up to that one are run: the functions come with a later call without it.
    """
    applied: list[str] = []
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        await become_owner(conn, settings)
        await install_pgmq(conn)
        if not await _has_records(conn, settings):
            # Only then: `create schema if not exists` takes a right that its owner need not have.
            await _execute_script(conn, _in_schema(_BOOTSTRAP, settings.schema))
        known = await _applied(conn, settings)
        for migration in migrations():
            if upto is not None and migration.version > upto:
                break
            if migration.version in known:
                _refuse_changed(migration, known[migration.version])
                continue
            await _execute_script(conn, _in_schema(migration.text, settings.schema))
            await _execute_script(conn, _record(migration, settings.schema))
            applied.append(f"{migration.version:04}_{migration.name}")
        _refuse_newer(known, _package_version())
        if upto is None and max(known, default=0) <= _package_version():
            # Otherwise the functions are those of a newer package, which must not be replaced.
            await _execute_script(conn, _in_schema(function_text(), settings.schema))
            await _execute_script(conn, _in_schema(_functions_record(), settings.schema))
            await apply_rights(conn, settings)
    return applied


async def schema_status(conn: psycopg.AsyncConnection[Any], settings: Settings) -> SchemaStatus:
    """Compare the database with this package; changes nothing."""
    known = await _applied(conn, settings)
    pending = tuple(f"{m.version:04}_{m.name}" for m in migrations() if m.version not in known)
    ((server_version,),) = await fetch(conn, "select current_setting('server_version')")
    recorded = await _settings(conn, settings) if known else {}
    refusal = None
    try:
        await check_schema(conn, settings)
    except (SchemaTooNewError, InvalidSettingError) as error:
        refusal = str(error)
    except SchemaVersionError:
        pass  # `pending` tells
    return SchemaStatus(
        installed_version=max(known, default=None),
        package_version=_package_version(),
        pending=pending,
        pgmq_version=recorded.get("pgmq_version"),
        server_version=server_version,
        functions_current=recorded.get("functions_checksum") == _functions_checksum(),
        refusal=refusal,
    )


async def check_schema(conn: psycopg.AsyncConnection[Any], settings: Settings) -> None:
    """Raise if this version cannot work with what the database has."""
    known = await _applied(conn, settings)
    if not known:
        raise SchemaMissingError(
            f"the database has no schema {settings.schema!r}; run `commandbus db init`"
        )
    _refuse_newer(known, _package_version())
    missing = [m.version for m in migrations() if m.version not in known]
    if missing:
        raise SchemaTooOldError(
            f"the schema is at version {max(known)}, this package needs {max(missing)}; "
            "run `commandbus db migrate`"
        )
    scope = (await _settings(conn, settings)).get("command_id_scope")
    if scope != settings.command_id_scope:
        raise InvalidSettingError(
            f"command_id_scope is {settings.command_id_scope!r} here but {scope!r} in the database;"
            " use the same in every process, or change it with commandbus.change_setting"
        )


def _package_version() -> int:
    return migrations()[-1].version


def _refuse_newer(known: dict[int, tuple[str, bool]], package: int) -> None:
    breaking = [v for v, (_, is_breaking) in known.items() if v > package and is_breaking]
    if breaking:
        raise SchemaTooNewError(
            f"the schema is at version {max(known)}, and version {min(breaking)} needs newer code "
            f"than this package (which knows {package}); upgrade commandbus"
        )


def _refuse_changed(migration: Migration, recorded: tuple[str, bool]) -> None:
    if recorded[0] not in {migration.checksum, FORMER_CHECKSUMS.get(migration.version)}:
        raise SchemaTooNewError(
            f"migration {migration.version:04}_{migration.name} was applied in another form than "
            "this package has; install the release that migrated this database"
        )


async def _applied(
    conn: psycopg.AsyncConnection[Any], settings: Settings
) -> dict[int, tuple[str, bool]]:
    if not await _has_records(conn, settings):
        return {}
    query = sql.SQL("select version, checksum, is_breaking from {}.command_bus_migration")
    rows = await fetch(conn, query.format(sql.Identifier(settings.schema)))
    return {version: (checksum, is_breaking) for version, checksum, is_breaking in rows}


async def _has_records(conn: psycopg.AsyncConnection[Any], settings: Settings) -> bool:
    is_there = "select to_regclass(quote_ident(%s) || '.command_bus_migration') is not null"
    return (await fetch(conn, is_there, settings.schema)) == [(True,)]


async def _settings(conn: psycopg.AsyncConnection[Any], settings: Settings) -> dict[str, str]:
    query = sql.SQL("select name, value from {}.command_bus_setting")
    return dict(await fetch(conn, query.format(sql.Identifier(settings.schema))))


def _functions_checksum() -> str:
    return hashlib.sha256(function_text().encode()).hexdigest()


def _record(migration: Migration, schema: str) -> str:
    values = (migration.version, migration.name, migration.checksum, migration.is_breaking)
    insert = sql.SQL(
        "insert into {}.command_bus_migration (version, name, checksum, is_breaking)"
        " values ({}, {}, {}, {})"
    )
    return insert.format(sql.SQL(schema), *values).as_string(None)


def _functions_record() -> str:
    return (
        sql.SQL(
            "insert into commandbus.command_bus_setting (name, value)"
            " values ('functions_checksum', {})"
            " on conflict (name) do update set value = excluded.value, updated_at = now();\n"
            "insert into commandbus.command_bus_setting (name, value)"
            " select 'pgmq_version', coalesce("
            "(select extversion from pg_extension where extname = 'pgmq'),"
            " obj_description('pgmq'::regnamespace), 'unknown')"
            " on conflict (name) do update set value = excluded.value, updated_at = now();\n"
        )
        .format(_functions_checksum())
        .as_string(None)
    )


def _in_schema(text: str, schema: str) -> str:
    # The files are written, and can be read and run, with the default name. Settings.schema is
    # checked to be a plain identifier.
    if schema == "commandbus":
        return text
    text = re.sub(r"\bcommandbus(?=\.[a-z_])", schema, text)
    text = re.sub(r"\bcommandbus(?=\[\.\])", schema, text)
    return text.replace(
        "create schema if not exists commandbus", f"create schema if not exists {schema}"
    )


async def _execute_script(conn: psycopg.AsyncConnection[Any], text: str) -> None:
    # Without parameters psycopg sends the whole script at once, and % needs no doubling.
    await conn.execute(text.encode())


def function_bodies(schema: str) -> dict[str, str]:
    """The body of each of our functions, as the database should have it."""
    text = _in_schema(function_text(), schema)
    # Not those that were bound when they were made: PostgreSQL keeps no text of them.
    head = rf"create or replace function {schema}\.(\w+)\s*\("
    body = r"\$(\w*)\$(.*?)\$\2\$"  # one that makes functions itself is quoted with a word
    found = re.findall(rf"{head}(?:(?!create or replace ).)*?{body}", text, re.S)
    return {name: source for name, _, source in found}

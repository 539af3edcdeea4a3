"""Backups: one file with all of a database, and the way back into an empty one.

pg_dump reads one snapshot, so a backup that is taken while workers are busy is as consistent as one
that is taken at rest. The file is pg_dump's custom format: pg_restore reads it without us.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from commandbus.embedded.tools import ToolError, Tools, find_tools
from commandbus.errors import InvalidInputError, InvalidOperationError

_CONTENTS = (
    "select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname not like 'pg\\_%' and n.nspname <> 'information_schema'"
    "   and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')"
    "   and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass"
    "                    and d.objid = c.oid and d.deptype = 'e')"
    " union select n.nspname from pg_namespace n"
    "  where n.nspname in ('pgmq', 'commandbus') order by 1"
)
_GRANTEE = re.compile(r'^GRANT .+ TO ("[^"]+"|[\w$]+)(?: WITH GRANT OPTION)?;$', re.M)


@dataclass(frozen=True, slots=True)
class Archive:
    """What the head of a backup says."""

    server_version: str
    entries: int

    @property
    def major(self) -> int:
        """The major version of the server that it was taken from."""
        return int(re.match(r"\d+", self.server_version)[0])  # type: ignore[index]


def server_major(address: str) -> int:
    """The major version of a server."""
    with psycopg.connect(address) as connection:
        return connection.info.server_version // 10_000


async def write_backup(address: str, file: Path, major: int) -> tuple[Tools, Archive]:
    """Write a backup to a new file, which only this account can read; it appears whole or not."""
    tools = find_tools(major)
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        if file.exists():  # noqa: ASYNC240
            raise InvalidInputError(f"{file} exists; name a new file")
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise InvalidInputError(f"cannot write {file}: {error.strerror}") from error
    try:
        await tools.run("pg_dump", address, ["--format=custom", f"--file={unfinished}"])
        archive = await read_archive(tools, unfinished)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return tools, archive


async def read_archive(tools: Tools, file: Path) -> Archive:
    """Read the head of a backup; raises if it is none, or one that these tools cannot read."""
    if not file.is_file():  # noqa: ASYNC240
        raise InvalidInputError(f"there is no file {file}")
    try:
        listing = await tools.run("pg_restore", None, ["--list", str(file)])
    except ToolError as error:
        raise InvalidInputError(
            f"{file} cannot be read by pg_restore {tools.major} ({error}); it is no backup, or it "
            "is not whole, or a newer PostgreSQL made it"
        ) from error
    version = re.search(r"^; +Dumped from database version: (\S+)", listing, re.M)
    entries = re.findall(r"^\d+;", listing, re.M)
    return Archive(version[1] if version else "0", len(entries))


async def read_backup(
    address: str, file: Path, major: int, *, schema: str, with_rights: bool = True
) -> Archive:
    """Restore a backup into an empty database, all or nothing."""
    tools = find_tools(major)
    archive = await read_archive(tools, file)
    if archive.major > major:
        raise InvalidOperationError(
            f"{file} is a backup of PostgreSQL {archive.server_version}, and this server is "
            f"PostgreSQL {major}; restore into the same version, or a newer one"
        )
    refuse_contents(address)
    rights = ["--no-privileges"]
    if with_rights:
        await _refuse_missing_roles(address, tools, file)
        rights = []
    with tempfile.TemporaryDirectory(prefix="commandbus-") as folder:
        chosen = await _chosen_entries(address, tools, file, Path(folder, "entries"))
        await tools.run(
            "pg_restore",
            address,
            ["--no-owner", "--single-transaction", f"--use-list={chosen}", *rights, str(file)],
        )
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("analyze")  # a backup has no statistics
        # They work on the database that the backup was taken from, and not on this one.
        table = sql.Identifier(schema, "command_bus_worker")
        if connection.execute("select to_regclass(%s)", [table.as_string()]).fetchone() != (None,):
            connection.execute(sql.SQL("delete from {}").format(table))
    return archive


def refuse_contents(address: str) -> None:
    """A backup goes into an empty database only."""
    with psycopg.connect(address) as connection:
        found = [name for (name,) in connection.execute(_CONTENTS)]
        if found:
            database = connection.info.dbname
            raise InvalidOperationError(
                f"the database {database!r} is not empty (schemas {', '.join(found[:5])}); restore "
                "into a new one: `create database`, or another --data-dir"
            )


async def _refuse_missing_roles(address: str, tools: Tools, file: Path) -> None:
    """Rights are given to roles, which belong to a server and are in no backup."""
    script = await tools.run("pg_restore", None, ["--schema-only", "--file=-", str(file)])
    wanted = {name.strip('"') for name in _GRANTEE.findall(script)} - {"PUBLIC"}
    with psycopg.connect(address) as connection:
        known = {str(name) for (name,) in connection.execute("select rolname from pg_roles")}
    if missing := sorted(wanted - known):
        raise InvalidOperationError(
            f"the backup gives rights to roles that this server does not have: "
            f"{', '.join(missing)}; create them first (create role {missing[0]}), or restore "
            "without rights: --no-rights"
        )


async def _chosen_entries(address: str, tools: Tools, file: Path, chosen: Path) -> Path:
    """The entries to restore: not the default rights of an owner that is not ours to change."""
    listing = await tools.run("pg_restore", None, ["--list", str(file)])
    with psycopg.connect(address) as connection:
        user = connection.info.user
    lines = [
        line
        for line in listing.splitlines()
        if " DEFAULT ACL " not in line or line.endswith(f" {user}")
    ]
    chosen.write_text("\n".join(lines) + "\n")  # noqa: ASYNC240
    return chosen

"""`db init`, `migrate`, `status`, `sql`: the schema of a database, and that of this package."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from commandbus.cli.frame import Frame, View
from commandbus.cli.output import ExitCode, jsonable, print_fields, say, text_of
from commandbus.errors import SchemaTooNewError
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.database.migrations import SchemaStatus


async def init(frame: Frame) -> View:
    """Set up an empty database; one that is already set up is not changed."""
    return await _migrate(frame, only_if_missing=True)


async def migrate(frame: Frame) -> View:
    """Bring the database up to date: tables, functions, PGMQ."""
    return await _migrate(frame, only_if_missing=False)


async def _migrate(frame: Frame, *, only_if_missing: bool) -> View:
    from commandbus.wiring import database, database_status, migrate_database

    settings = Settings.from_env()
    async with database(frame.place.one.dsn, frame.place.data_dir) as address:
        before = await database_status(address, settings)
        if only_if_missing and before.installed_version is not None:
            if before.refusal is not None and before.installed_version > before.package_version:
                raise SchemaTooNewError(before.refusal)
            text = f"The database is set up already, at version {before.installed_version}."
            return View.line(text, applied=[])
        applied = await migrate_database(address, settings)
    if applied:
        text = f"Applied {', '.join(applied)}."
    elif before.functions_current:
        text = "Nothing to do: the database is up to date."
    else:
        text = "Reloaded the functions; the tables were up to date."
    return View.line(text, applied=applied)


async def status(frame: Frame) -> View:
    """Compare the database with this package; exit code 3 if it has to be migrated.

    Exit code 5 if every process of this package refuses it, because it needs a newer release.
    """
    from commandbus.wiring import database, database_status

    async with database(frame.place.one.dsn, frame.place.data_dir) as address:
        found = await database_status(address, Settings.from_env())
    is_newer = (found.installed_version or 0) > found.package_version
    is_current = not found.pending and (found.functions_current or is_newer) and not found.refusal
    document = {"is_current": is_current, **jsonable(found)}
    code = ExitCode.OK if is_current else ExitCode.PENDING_MIGRATIONS
    if found.refusal is not None:
        code = ExitCode.TOO_NEW if is_newer else ExitCode.USAGE
    show = partial(_print_status, found, is_current=is_current, is_newer=is_newer)
    return View(document, show, code, found.refusal)


def _print_status(found: SchemaStatus, *, is_current: bool, is_newer: bool) -> None:
    print_fields(
        [
            ("PostgreSQL", found.server_version),
            ("PGMQ", text_of(found.pgmq_version)),
            ("schema", text_of(found.installed_version)),
            ("this package", str(found.package_version)),
            ("pending", ", ".join(found.pending) or "-"),
            ("functions", "current" if found.functions_current else "[yellow]not current[/]"),
        ]
    )
    if found.refusal is not None:
        say("[red]Every process of this package refuses this database.[/]")
    elif is_newer:
        say("[yellow]The database is newer than this package.[/]")
    elif is_current:
        say("[green]The database is up to date.[/]")
    elif found.installed_version is None:
        say("[yellow]The database is not set up; run `commandbus db init`.[/]")
    else:
        say("[yellow]Run `commandbus db migrate`.[/]")


def sql() -> None:
    """Print all SQL of an installation, for a migration tool of your own. Needs no database.

    PGMQ is not part of it: install the extension first.
    """
    from commandbus.database.migrations import full_sql

    print(full_sql(Settings.from_env().schema))

"""`db`: set up, migrate and examine the database."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from commandbus.cli.options import AsJson, DataDir, Dsn, Place
from commandbus.cli.output import ExitCode, print_fields, print_json, say, text_of
from commandbus.settings import Settings

db = typer.Typer(help="Set up, migrate and examine the database.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(db, name="db", rich_help_panel="Operate")


@db.command("init")
def init(dsn: Dsn = None, data_dir: DataDir = None) -> None:
    """Set up a database that has nothing yet; one that is set up is left as it is."""
    _migrate(Place(dsn, data_dir), only_if_missing=True)


@db.command("migrate")
def migrate(dsn: Dsn = None, data_dir: DataDir = None) -> None:
    """Bring the database up to date: tables, functions, PGMQ."""
    _migrate(Place(dsn, data_dir), only_if_missing=False)


def _migrate(place: Place, *, only_if_missing: bool) -> None:
    from commandbus.wiring import database, database_status, migrate_database

    settings = Settings.from_env()

    async def work() -> str:
        async with database(place.dsn, place.data_dir) as address:
            before = await database_status(address, settings)
            if only_if_missing and before.installed_version is not None:
                return f"The database is set up already, at version {before.installed_version}."
            applied = await migrate_database(address, settings)
            if applied:
                return f"Applied {', '.join(applied)}."
            if before.functions_current:
                return "Nothing to do: the database is up to date."
            return "Reloaded the functions; the tables were up to date."

    say(asyncio.run(work()))


@db.command("status")
def status(as_json: AsJson = False, dsn: Dsn = None, data_dir: DataDir = None) -> None:
    """Compare the database with this package; exit code 3 if it has to be migrated."""
    from commandbus.wiring import database, database_status

    place = Place(dsn, data_dir)
    settings = Settings.from_env()

    async def work() -> Any:
        async with database(place.dsn, place.data_dir) as address:
            return await database_status(address, settings)

    found = asyncio.run(work())
    is_newer = (found.installed_version or 0) > found.package_version
    is_current = not found.pending and (found.functions_current or is_newer)
    if as_json:
        print_json(
            {
                "is_current": is_current,
                "installed_version": found.installed_version,
                "package_version": found.package_version,
                "pending": found.pending,
                "functions_current": found.functions_current,
                "pgmq_version": found.pgmq_version,
                "server_version": found.server_version,
            }
        )
    else:
        _print_status(found, is_current=is_current, is_newer=is_newer)
    if not is_current:
        raise typer.Exit(ExitCode.PENDING_MIGRATIONS)


def _print_status(found: Any, *, is_current: bool, is_newer: bool) -> None:
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
    if is_newer:
        say("[yellow]The database is newer than this package.[/]")
    elif is_current:
        say("[green]The database is up to date.[/]")
    elif found.installed_version is None:
        say("[yellow]The database is not set up; run `commandbus db init`.[/]")
    else:
        say("[yellow]Run `commandbus db migrate`.[/]")


@db.command("sql")
def sql() -> None:
    """Print all SQL of an installation, for a migration tool of your own. Needs no database.

    PGMQ is not part of it: install the extension first.
    """
    from commandbus.wiring import migration_sql

    print(migration_sql(Settings.from_env()))

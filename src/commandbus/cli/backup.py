"""`backup` and `restore`: all of a database in one file, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.cli.doctor import print_diagnosis
from commandbus.cli.frame import Frame, View
from commandbus.cli.output import ExitCode, jsonable, print_note, say, working
from commandbus.errors import SchemaMissingError
from commandbus.settings import Settings

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file of pg_dump's format.")]


@asynccontextmanager
async def _server(frame: Frame) -> AsyncIterator[tuple[str, int]]:
    """The address of the database, and the major version of its server."""
    from commandbus.database.sqlstate import translated
    from commandbus.embedded.dumps import server_major
    from commandbus.wiring import database

    async with database(frame.place.one.dsn, frame.place.data_dir) as address:
        with translated():
            yield address, await asyncio.to_thread(server_major, address)


async def backup(frame: Frame, file: BackupFile) -> View:
    """Write all of the database to a new file: yours, ours and the queues. Workers may go on.

    With the pg_dump that fits the server. Keys are not in it: they are not in the database.
    """
    from commandbus.embedded.dumps import write_backup
    from commandbus.wiring import database_status

    settings = Settings.from_env()
    with working("writing the backup …", quiet=frame.as_json):
        async with _server(frame) as (address, major):
            if (await database_status(address, settings)).installed_version is None:
                raise SchemaMissingError(f"the database has no schema {settings.schema!r}")
            tools, archive = await write_backup(address, file, major)
    size = file.stat().st_size
    return View.line(
        f"Wrote {file}, {size:,} bytes, from PostgreSQL {archive.server_version}. Keep the keys "
        "too: they are not in it.",
        file=str(file), bytes=size, server_version=archive.server_version, tools=tools.major,
    )  # fmt: skip


async def restore(
    frame: Frame,
    file: BackupFile,
    *,
    no_rights: Annotated[
        bool, typer.Option("--no-rights", help="Without the rights that roles were given.")
    ] = False,
) -> View:
    """Restore a backup into an empty database or data folder, all or nothing; then the doctor.

    Exit code 1 if the doctor finds something wrong. Start workers after that, not before.
    """
    from commandbus.embedded.dumps import read_backup
    from commandbus.wiring import database_status, migrate_database

    settings = Settings.from_env()
    with working("restoring …", quiet=frame.as_json):
        async with _server(frame) as (address, major):
            archive = await read_backup(
                address, file, major, schema=settings.schema, with_rights=not no_rights
            )
            if frame.place.is_embedded or no_rights:
                # Without the rights of the backup everybody has some: a migration takes them.
                await migrate_database(address, settings)
            status = await database_status(address, settings)
            document: dict[str, Any] = {
                "server_version": archive.server_version,
                "pending": status.pending,
            }
            if status.pending:
                print_note(f"Restored {file}; it is of an older release.")
                text = "Next: `commandbus db migrate`, then `commandbus doctor --full`."
                return View.line(text, **document)
            async with frame.open() as session:
                found = await session.bus.upkeep.doctor(full=True)
    print_note(f"Restored {file}, a backup of PostgreSQL {archive.server_version}.")
    document |= {"is_healthy": found.is_healthy, **jsonable(found)}
    code = ExitCode.OK if found.is_healthy else ExitCode.FAILED

    def show() -> None:
        print_diagnosis(found)
        say("Replies, timers and leases go on from the moment of the backup.")

    return View(document, partial(show), code)

"""`db upgrade`: the data of the embedded server to its new major version."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.cli.db import db
from commandbus.cli.doctor import print_diagnosis
from commandbus.cli.frame import Frame, View, command
from commandbus.cli.output import ExitCode, jsonable, print_note, working
from commandbus.errors import InvalidSettingError
from commandbus.settings import Settings


@command(db, "upgrade")
async def upgrade(
    frame: Frame,
    *,
    old_bin: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The bin folder of the old version. Default: it is looked for."
        ),
    ] = None,
) -> View:
    """Bring the embedded server's data to its major version, by dump and restore; then the doctor.

    The old data are kept. If it is cut off, start it again. Exit code 1 if the doctor finds
    something wrong.
    """
    from commandbus.embedded.upgrading import upgrade_folder
    from commandbus.wiring import database_roles, migrate_database

    if not frame.place.is_embedded:
        raise InvalidSettingError(
            "`db upgrade` is for the embedded server, and --dsn or COMMANDBUS_DSN names another "
            "one; upgrade that one as any PostgreSQL, for example with pg_upgrade"
        )
    settings, folder = Settings.from_env(), frame.place.folder

    async def finish(address: str) -> None:
        await migrate_database(address, settings)
        # What was restored belongs to our login; with roles, it belongs to one of them.
        if (await database_roles(address, settings))[0].is_set_up:
            await database_roles(address, settings, apply=True)

    with working("upgrading …", quiet=frame.as_json):
        done = await upgrade_folder(
            folder,
            schema=settings.schema,
            finish=finish,
            old_bin=old_bin,
            older=[] if frame.place.data_dir else _older(folder),
        )
        if done is None:
            return View.line(
                f"Nothing to do: {folder} is of the server's version.", is_upgraded=False
            )
        async with frame.open() as session:
            found = await session.bus.upkeep.doctor(full=True)
    print_note(
        f"{folder} is of PostgreSQL {done.to_major} now. The data of PostgreSQL {done.from_major} "
        f"are kept in {done.kept}; remove them when you no longer want to go back."
    )
    document: dict[str, Any] = {
        "is_upgraded": True,
        **jsonable(done),
        "is_healthy": found.is_healthy,
        **jsonable(found),
    }
    code = ExitCode.OK if found.is_healthy else ExitCode.FAILED
    return View(document, partial(print_diagnosis, found), code)


def _older(folder: Path) -> list[Path]:
    """The default folders of other versions, the newest first."""
    found = [path for path in folder.parent.glob("pg*") if path.name[2:].isdigit()]
    others = [path for path in found if path != folder]
    return sorted(others, key=lambda path: int(path.name[2:]), reverse=True)

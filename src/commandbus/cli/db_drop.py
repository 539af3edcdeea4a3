"""`db drop`: everything of ours out of a database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.cli.db import db
from commandbus.cli.frame import Frame, View, command
from commandbus.cli.output import Column, Table, jsonable, say
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.database.removal import Contents, DomainContents


@command(db, "drop")
async def drop(
    frame: Frame,
    *,
    yes_delete: Annotated[
        str | None,
        typer.Option(
            metavar="DOMAINS",
            help="Do it. The names of all domains that there are, with commas; `none` if none.",
        ),
    ] = None,
    even_open: Annotated[
        bool, typer.Option("--even-open", help="Also commands that are open or parked.")
    ] = False,
) -> View:
    """Drop the queues, their archives and the schema, in one transaction. There is no way back.

    Without --yes-delete it shows what would go. Refused while commands are open or parked.
    """
    from commandbus.wiring import database, database_contents, drop_database

    settings = Settings.from_env()
    async with database(frame.place.one.dsn, frame.place.data_dir) as address:
        if yes_delete is None:
            found = await database_contents(address, settings)
        else:
            typed = {name for each in yes_delete.split(",") if (name := each.strip())}
            found = await drop_database(address, settings, typed, even_open=even_open)
    document: dict[str, Any] = {"is_dropped": yes_delete is not None, **jsonable(found)}
    show = partial(_print, found, settings.schema, is_dropped=yes_delete is not None)
    return View(document, show)


def _print(found: Contents, schema: str, *, is_dropped: bool) -> None:
    table: Table[DomainContents] = Table(
        Column("DOMAIN", lambda each: each.domain),
        Column("COMMANDS", lambda each: f"{each.commands:,}"),
        Column("OPEN", lambda each: f"{each.open:,}"),
        Column("PARKED", lambda each: f"{each.parked:,}"),
        empty="No domains.",
    )
    table.print(found.domains)
    goes = f"the schema {schema}, and with their archives the queues {', '.join(found.queues)}"
    if not found.queues:
        goes = f"the schema {schema}"
    if found.others:
        say(f"Queues of other programs, which stay: {', '.join(found.others)}.")
    if is_dropped:
        say(f"Dropped {goes}. Roles, keys and PGMQ are left.")
        return
    say(f"This would drop {goes}. Nothing was changed.")
    say(f"To do it: commandbus db drop --yes-delete {found.confirmation}")

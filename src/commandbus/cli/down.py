"""`down`: end what `up` started, and the embedded server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View
from commandbus.cli.output import print_note
from commandbus.errors import InvalidSettingError
from commandbus.settings import Settings


async def down(
    frame: Frame,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do not wait for handlers; cut off all who use the server."),
    ] = False,
) -> View:
    """Stop each `up` on the embedded server, and the server itself.

    Refused while other processes use the server; it says which. The data stay where they are.
    """
    from commandbus.embedded.down import bring_down
    from commandbus.embedded.standing import Standing

    if not frame.place.is_embedded:
        raise InvalidSettingError(
            "`down` is for the embedded server, and --dsn or COMMANDBUS_DSN names another one; "
            "stop workers and services by SIGTERM, or unset the address"
        )
    folder = frame.place.folder
    standing = Standing.of(folder)
    document = {"folder": str(folder), "ups": [], "was_running": False}
    if standing is None:
        return View.line(f"Nothing to stop: there is no server in {folder}.", **document)
    went = await asyncio.to_thread(
        bring_down,
        standing,
        grace_seconds=Settings.from_env().shutdown_grace_seconds,
        force=force,
        tell=print_note,
    )
    document |= {"ups": list(went.ups), "was_running": went.was_running}
    if not went.was_running:
        return View.line(f"Nothing to stop: no server runs in {folder}.", **document)
    return View.line(f"The server is down; its data stay in {folder}.", **document)

"""`show`: what happened to one command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from commandbus.cli.frame import Frame, Session, View
from commandbus.cli.options import OneCommand, parse_json
from commandbus.cli.show_view import MAX_EVENTS, command_document, print_command
from commandbus.errors import CommandNotFoundError


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of a payload is shown."""

    payload: Annotated[
        bool, typer.Option("--payload", help="Show the payload too, secrets masked.")
    ] = False
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Show the payload, and do not mask it.")
    ] = False


async def show(frame: Frame, one: OneCommand, shown: Shown) -> View:
    """Show what happened to a command: every event, who caused it, and how long it took."""
    async with frame.open() as session:
        document = await read_command(session, one, shown)
    return View(document, lambda: print_command(document))


async def read_command(session: Session, one: OneCommand, shown: Shown) -> dict[str, Any]:
    """A command and its events as a document, with its payload only if that is asked for."""
    domain, command_id = await session.find(one)
    found = await session.bus.get_command(domain, command_id)
    if found is None:
        raise CommandNotFoundError(domain, command_id)
    events = await session.bus.get_audit_trail(command_id, domain, limit=MAX_EVENTS)
    document = command_document(found, events)
    if shown.show_secrets:
        text = await session.store.get_payload(domain, command_id)
        document["payload"] = parse_json(text, "the payload")
    elif shown.payload:
        document["payload"] = await session.bus.search.payload(domain, command_id)
    return document

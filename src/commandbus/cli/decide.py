"""`tsq show|note|edit` and `cancel`: what a person does with one command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.cli.bulk_options import Operator
from commandbus.cli.commands import read_payload
from commandbus.cli.look import ShowPayload, ShowSecrets
from commandbus.cli.operator import tsq
from commandbus.cli.options import (
    AsJson,
    CommandId,
    DataDir,
    DomainOfId,
    Dsn,
    Place,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import print_json, say
from commandbus.cli.timeline import print_command, read_timeline
from commandbus.errors import InvalidInputError
from commandbus.models import CommandMetadata, CommandStatus


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    tsq.command("show")(show)
    tsq.command("note")(note)
    tsq.command("edit")(edit)
    app.command("cancel", rich_help_panel="Operate")(cancel)


def show(
    command_id: CommandId,
    *,
    domain: DomainOfId = None,
    payload: ShowPayload = False,
    show_secrets: ShowSecrets = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Show the life of a command, and what you can do about it."""
    place = Place(dsn, data_dir)

    async def work() -> dict[str, Any]:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            document = await read_timeline(
                session, where, wanted, payload=payload or show_secrets, masked=not show_secrets
            )
            has_payload = await session.store.get_payload(where, wanted) is not None
            document["next"] = _next_steps(document["command"], has_payload)
            return document

    document = asyncio.run(work())
    if as_json:
        print_json(document)
        return
    print_command(document)
    say()
    if document["next"]:
        say("[bold]What you can do[/]")
        for step in document["next"]:
            say(f"  {step['command']}  [dim]{step['meaning']}[/]")
    else:
        say(f"It is {document['command'].status}: there is nothing to decide.")


def _next_steps(command: CommandMetadata, has_payload: bool) -> list[dict[str, str]]:
    def step(words: str, meaning: str) -> dict[str, str]:
        return {"command": f"commandbus {words}", "meaning": meaning}

    name = command.command_id
    if command.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
        again = [
            step(f"tsq retry {name}", "the cause is mended: run it again"),
            step(f"tsq edit {name} --data JSON", "run it again with a mended payload"),
        ]
        return [
            *(again if has_payload else []),
            step(f'tsq cancel {name} --reason "…"', "it shall not happen; the caller is told"),
            step(f"tsq complete {name} --data JSON", "it was done by hand; the caller is told"),
            step(f'tsq note {name} "…"', "leave a remark for the next one who looks"),
        ]
    if command.status is CommandStatus.PENDING and command.leased_by is None:
        return [step(f'cancel {name} --reason "…"', "it has not started: call it off")]
    return []


def note(
    command_id: CommandId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The remark.")],
    *,
    domain: DomainOfId = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Leave a remark on a command, in any state; `show` lists it with your name."""
    place = Place(dsn, data_dir)
    actor = actor_or_login(operator)

    async def work() -> str:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            await session.bus.troubleshooting.note(where, wanted, text, operator=actor)
            return f"{wanted} has a note"

    say(asyncio.run(work()))


def edit(
    command_id: CommandId,
    *,
    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The whole new payload; '-' reads it from stdin."),
    ] = None,
    data_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the new payload.")
    ] = None,
    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Do not count attempts from zero again.")
    ] = False,
    domain: DomainOfId = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Send a parked command again with an edited payload.

    Begin with what `tsq show ID --payload --json` prints: fields that are left masked keep their
    real values.
    """
    place = Place(dsn, data_dir)
    if data is None and data_file is None:
        raise InvalidInputError("give the new payload with --data or --data-file")
    payload = read_payload(data, data_file)
    actor = actor_or_login(operator)

    async def work() -> str:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            await session.bus.operator_retry(
                where, wanted, operator=actor, reset_attempts=not keep_attempts, payload=payload
            )
            return f"{wanted} is queued again, edited"

    say(asyncio.run(work()))


def cancel(
    command_id: CommandId,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept and replied.")],
    domain: DomainOfId = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End a command that is still PENDING as CANCELED; its reply goes out."""
    place = Place(dsn, data_dir)
    actor = actor_or_login(operator)

    async def work() -> str:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            await session.bus.cancel(where, wanted, reason, operator=actor)
            return f"{wanted} is canceled"

    say(asyncio.run(work()))

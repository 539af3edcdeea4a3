"""`send`: one command, and its reply."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from commandbus.cli.options import (
    AsJson,
    DataDir,
    Dsn,
    Place,
    Session,
    open_session,
    parse_json,
)
from commandbus.cli.output import (
    ExitCode,
    print_error,
    print_json,
    say,
    text_of,
)
from commandbus.commands.replies import Replies
from commandbus.errors import InvalidInputError
from commandbus.models import CommandStatus, Reply, ReplyOutcome
from commandbus.names import INBOX, check_uuid, new_id

#: Seconds between two looks whether a command that `send --wait` waits for was parked.
PARKED_POLL_SECONDS = 0.25


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("send", rich_help_panel="Send and look")(send)


# -- send


def send(  # noqa: PLR0913  (each is an option)
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="For example payments.")],
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="For example DebitAccount.")],
    *,
    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The payload, a JSON object; '-' reads it from stdin."),
    ] = None,
    data_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the payload.")
    ] = None,
    command_id: Annotated[
        str | None,
        typer.Option("--id", metavar="UUID", help="The id; a repeat of it is refused."),
    ] = None,
    reply_to: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE", help="The reply queue; '' for none. Default: DOMAIN.replies."
        ),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="UUID", help="Ties the command to what caused it.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="How often it is tried at most.")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Wait for the reply and print it."),
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Send a command and print its id.

    With --wait: exit code 1 if the command fails, is parked, or gives no reply in time.
    """
    place = Place(dsn, data_dir)
    if wait is not None and reply_to is not None:
        raise InvalidInputError("--wait takes the reply itself; leave out --reply-to")
    if wait is not None and not 0 < wait <= 86_400:
        raise InvalidInputError(f"--wait is {wait:g}; use seconds from 0 to 86,400")
    payload = read_payload(data, data_file)
    wanted = new_id() if command_id is None else check_uuid(command_id, "--id")
    correlation = None if correlation_id is None else check_uuid(correlation_id, "--correlation-id")

    async def work() -> Reply | str | None:
        async with open_session(place, create=True) as session:
            await session.bus.send(
                domain,
                command_type,
                wanted,
                payload,
                reply_to if wait is None else INBOX,
                correlation,
                max_attempts=max_attempts,
            )
            if not as_json:
                print(wanted, flush=True)
            return None if wait is None else await _answer(session, domain, wanted, wait)

    answer = asyncio.run(work())
    reply = answer if isinstance(answer, Reply) else None
    if as_json:
        print_json({"command_id": wanted, "reply": reply})
    elif reply is not None:
        _print_reply(reply)
    if isinstance(answer, str):
        print_error(answer)
    if answer is not None and (reply is None or reply.outcome is not ReplyOutcome.SUCCESS):
        raise typer.Exit(ExitCode.FAILED)


def read_payload(data: str | None, data_file: Path | None) -> Any:
    """The payload that was given, in whichever way."""
    if data is not None and data_file is not None:
        raise InvalidInputError("--data and --data-file are two payloads; use one of them")
    if data == "-" or data_file == Path("-"):
        return parse_json(sys.stdin.read(), "stdin")
    if data_file is not None:
        try:
            return parse_json(data_file.read_text(encoding="utf-8"), str(data_file))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"cannot read {data_file}: {error}") from None
    return {} if data is None else parse_json(data, "--data")


async def _answer(session: Session, domain: str, command_id: UUID, seconds: float) -> Reply | str:
    """The reply, or why there will be none: a parked command has none until somebody decides."""
    replies = Replies(session.store)
    waiting = asyncio.create_task(replies.wait(domain, command_id, seconds))
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=PARKED_POLL_SECONDS)
            found = await session.bus.get_command(domain, command_id)
            if found is not None and found.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
                return (
                    f"the command is in troubleshooting ({found.last_error_code}: "
                    f"{found.last_error_msg}); see `commandbus show {command_id}`"
                )
        return await waiting
    finally:
        waiting.cancel()
        await replies.close()


def _print_reply(reply: Reply) -> None:
    colour = "green" if reply.outcome is ReplyOutcome.SUCCESS else "red"
    error = f" {reply.error.code}: {reply.error.message}" if reply.error else ""
    say(f"[{colour}]{reply.outcome}[/]{text_of(error) if error else ''}")
    if reply.data is not None:
        print_json(reply.data)

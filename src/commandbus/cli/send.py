"""`send`: one command, and its reply."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, cast
from uuid import UUID

import typer

from commandbus.cli.frame import Frame, Session, View
from commandbus.cli.options import Domain, Meta, Payload, parse_meta, parse_seconds, parse_uuid
from commandbus.cli.output import ExitCode, print_json, say, text_of
from commandbus.cli.timing import Start, parse_duration
from commandbus.errors import InvalidInputError
from commandbus.flow import SendOptions
from commandbus.models import Reply, ReplyOutcome
from commandbus.names import INBOX, new_id

#: Seconds between two looks whether a command that `send --wait` waits for was parked.
PARKED_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """That a command is sent once."""

    unique_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Of the commands of one key one at a time is sent."),
    ] = None
    unique_while: Annotated[
        str | None,
        typer.Option(
            metavar="waiting|open|TIME",
            help="How long it holds its key; TIME is for example 90s or 2h. Default: open.",
        ),
    ] = None
    on_duplicate: Annotated[
        str | None,
        typer.Option(metavar="refuse|skip|replace", help="If the key is held. Default: refuse."),
    ] = None
    max_wait: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With replace: it waits no longer than this."),
    ] = None

    def options(self) -> SendOptions:
        """As `CommandBus.send` takes them."""
        rule: Any = self.unique_while
        if rule not in {None, "waiting", "open"}:
            rule = parse_duration(rule, "--unique-while")
        return SendOptions(
            unique_key=self.unique_key,
            unique_while=rule,
            on_duplicate=cast("Any", self.on_duplicate),
            max_wait=None if self.max_wait is None else parse_duration(self.max_wait, "--max-wait"),
        )


async def send(  # noqa: PLR0913  (each is an option)
    frame: Frame,
    domain: Domain,
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="For example DebitAccount.")],
    *,
    payload: Payload,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="The id; a repeat of it is refused.")
    ] = None,
    reply_to: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE", help="The reply queue; '' for none. Default: DOMAIN.replies."
        ),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="UUID", help="Connects the command with its cause.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="How often it is tried at most.")
    ] = None,
    start: Start,
    uniqueness: Uniqueness,
    meta: Meta = None,
    wait: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Wait for the reply and print it.")
    ] = None,
    retry_for: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="While no server accepts writes, send it again for this long: it is sent once.",
        ),
    ] = None,
) -> View:
    """Send a command and print its id.

    With --wait: exit code 1 if the command fails, is parked, or has no reply in time.
    """
    if wait is not None and reply_to is not None:
        raise InvalidInputError("--wait takes the reply itself; leave out --reply-to")
    seconds = parse_seconds(wait, "--wait", 86_400)
    patience = parse_seconds(retry_for, "--retry-for", 86_400)
    wanted = parse_uuid(command_id, "--id") or new_id()
    correlation = parse_uuid(correlation_id, "--correlation-id")
    data = payload.read()
    options = start.options() | uniqueness.options() | SendOptions(meta=parse_meta(meta))
    async with frame.open(creates=True, wait_seconds=patience or 0.0) as session:
        holder = await session.bus.send(
            domain,
            command_type,
            wanted,
            {} if data is None else data,
            reply_to if seconds is None else INBOX,
            correlation,
            max_attempts=max_attempts,
            retry_for=patience,
            **options,
        )
        if not frame.as_json:
            print(holder, flush=True)
        if seconds is None:
            return View({"command_id": holder, "reply": None}, lambda: None)
        if holder != wanted:
            raise InvalidInputError(
                f"command {holder} holds the key, so there is no reply to wait for here"
            )
        return await _reply_view(session, domain, wanted, seconds)


async def _reply_view(session: Session, domain: str, command_id: UUID, seconds: float) -> View:
    """The reply, or why there is none: a parked command has none until somebody decides."""
    waiting = asyncio.create_task(session.bus.wait_reply(domain, command_id, timeout=seconds))
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=PARKED_POLL_SECONDS)
            parked = await session.bus.troubleshooting.get(domain, command_id)
            if parked is not None:
                document = {"command_id": command_id, "reply": None}
                error = (
                    f"the command is in troubleshooting ({parked.last_error_code}: "
                    f"{parked.last_error_msg}); see `commandbus show {command_id}`"
                )
                return View(document, lambda: None, ExitCode.FAILED, error)
        reply = await waiting
    finally:
        waiting.cancel()
    is_success = reply.outcome is ReplyOutcome.SUCCESS
    code = ExitCode.OK if is_success else ExitCode.FAILED
    return View({"command_id": command_id, "reply": reply}, lambda: _print_reply(reply), code)


def _print_reply(reply: Reply) -> None:
    colour = "green" if reply.outcome is ReplyOutcome.SUCCESS else "red"
    error = f" {text_of(f'{reply.error.code}: {reply.error.message}')}" if reply.error else ""
    say(f"[{colour}]{reply.outcome}[/]{error}")
    if reply.data is not None:
        print_json(reply.data)

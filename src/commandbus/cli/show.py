"""`show`: what happened to one command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from commandbus.cli.failures import kind_of, print_stack, raised, told
from commandbus.cli.frame import Frame, Session, View
from commandbus.cli.options import OneCommand, parse_json
from commandbus.cli.output import (
    Column,
    Table,
    duration,
    error_text,
    escaped,
    jsonable,
    moment,
    print_fields,
    print_json,
    progress_text,
    say,
    styled_status,
    text_of,
)
from commandbus.commands.contents import FormerPayload, ShownReply
from commandbus.errors import CommandNotFoundError
from commandbus.models import AuditEvent, CommandMetadata, Progress
from commandbus.worker.stacks import place_of

#: What is said of a reply, behind the name of its queue.
REPLY_WORDS = {
    "waiting": ", waits to be taken", "leased": ", is being read", "taken": ", taken",
    "gone": ", taken or removed by retention", "unknown": ", not found there",
}  # fmt: skip
#: Events of one command that are read.
MAX_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class Shown:
    """How much is shown: of the payload, and of the last failure."""

    payload: Annotated[
        bool, typer.Option("--payload", help="Show the payload too, secrets masked.")
    ] = False
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Show the payload, and do not mask it.")
    ] = False
    stack: Annotated[
        bool, typer.Option("--stack", help="Show where in the code the last failure was raised.")
    ] = False


async def show(frame: Frame, one: OneCommand, shown: Shown) -> View:
    """Show what happened to a command: every event, who caused it, and how long it took."""
    async with frame.open() as session:
        document = await read_command(session, one, shown)
    return View(document, lambda: print_command(document, shown))


async def read_command(session: Session, one: OneCommand, shown: Shown) -> dict[str, Any]:
    """A command and its events as a document, with its payload only if that is asked for."""
    domain, command_id = await session.find(one)
    found = await session.bus.get_command(domain, command_id)
    if found is None:
        raise CommandNotFoundError(domain, command_id)
    events = await session.bus.get_audit_trail(domain, command_id, limit=MAX_EVENTS)
    document: dict[str, Any] = {"command": found, "events": _steps(found, events)}
    life = await session.bus.troubleshooting.life(domain, command_id)
    document |= {"sentence": life.sentence, "reply_state": life.facts.reply}
    document["trace_id"] = life.facts.trace_id
    if found.leased_by is not None:
        told = await session.bus.search.progress(domain, [command_id])
        document["progress"] = told.get(command_id)
    document["meta"] = await session.bus.search.meta(domain, command_id)
    document["stack"] = await session.bus.search.stack(domain, command_id)
    if shown.show_secrets:
        text = await session.store.get_payload(domain, command_id)
        document["payload"] = parse_json(text, "the payload")
    elif shown.payload:
        document["payload"] = await session.bus.search.payload(domain, command_id)
        document["former_payloads"] = await session.bus.search.former_payloads(domain, command_id)
        document["reply"] = await session.bus.search.reply(domain, command_id)
    return document


def _steps(command: CommandMetadata, events: Sequence[AuditEvent]) -> list[dict[str, Any]]:
    """The events, each with the seconds since the one before."""
    return [
        {
            "event_type": event.event_type,
            "ts": event.ts,
            "seconds_since_previous": before and (event.ts - before.ts).total_seconds(),
            "seconds_since_sent": (event.ts - command.created_at).total_seconds(),
            "attempt": (event.details or {}).get("attempt"),
            "actor": event.actor,
            "details": event.details,
        }
        for before, event in zip([None, *events], events, strict=False)
    ]


# -- as text


def print_command(document: dict[str, Any], shown: Shown) -> None:
    """Print what `read_command` has read."""
    command: CommandMetadata = document["command"]
    say(f"[bold]{command.command_type}[/]  {command.command_id}")
    say(escaped(document["sentence"]))
    told: Progress | None = document.get("progress")
    facts = _facts(command, document["reply_state"])
    facts += [] if told is None else [("progress", progress_text(told))]
    facts += [("trace", document["trace_id"])] if document["trace_id"] else []
    meta: dict[str, str] = document["meta"] or {}
    facts += [(escaped(f"meta {key}"), escaped(value)) for key, value in meta.items()]
    print_fields([*facts, *_failure(command, document["stack"])])
    say()
    _STEPS.print(document["events"])
    if len(document["events"]) == MAX_EVENTS:
        say(f"These are the first {MAX_EVENTS:,} events; `commandbus audit ID` has the latest.")
    if shown.stack and document["stack"] is not None:
        print_stack(document["stack"])
    elif shown.stack:
        say("\nNo code raised an error, or it was before stacks were kept: there is no stack.")
    if "payload" in document:
        _print_contents(document)


def _print_contents(document: dict[str, Any]) -> None:
    """The payload, those before it was edited, and the reply, as far as they are there."""
    if document["payload"] is None:
        say("\nThe payload is gone: the message of a finished command is deleted.")
    else:
        say("\n[bold]Payload[/]")
        print_json(document["payload"])
    former: list[FormerPayload] = document.get("former_payloads", [])
    for each in former:
        say(f"\n[bold]Payload before[/] {moment(each.replaced_at)}, {text_of(each.replaced_by)}")
        say("It is not kept any more.") if each.payload is None else print_json(each.payload)
    reply: ShownReply | None = document.get("reply")
    if reply is not None and reply.outcome is not None:
        say("\n[bold]Reply[/]")
        print_json({"outcome": reply.outcome, "data": reply.data, "error": reply.error})


def _facts(command: CommandMetadata, reply_state: str) -> list[tuple[str, str]]:
    facts = [
        ("domain", command.domain),
        ("status", styled_status(command.status)),
        ("attempts", f"{command.attempts} of {command.max_attempts}"),
        ("sent", moment(command.created_at)),
        ("correlation", str(command.correlation_id)),
        ("replies to", f"{text_of(command.reply_queue)}{REPLY_WORDS.get(reply_state, '')}"),
    ]
    if command.batch_id is not None:
        facts.append(("batch", str(command.batch_id)))
    facts += _start(command)
    if command.leased_by is not None and command.lease_expires_at is not None:
        lease = f"by {text_of(command.leased_by)} until {moment(command.lease_expires_at)}"
        facts.append(("leased", lease))
    return facts


def _start(command: CommandMetadata) -> list[tuple[str, str]]:
    """When it may start and what it waits for, as far as anything is said of it."""
    known = [
        ("due", command.due_at and moment(command.due_at)),
        ("deliver at", command.deliver_at and moment(command.deliver_at)),
        ("expires", command.expires_at and moment(command.expires_at)),
        ("waits", command.waiting_for and text_of(command.waiting_for)),
        ("priority", command.priority and str(command.priority)),
        ("ordering key", command.ordering_key and text_of(command.ordering_key)),
        ("limit key", command.limit_key and text_of(command.limit_key)),
    ]
    return [(name, text) for name, text in known if text]


def _failure(command: CommandMetadata, stack: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What is known of the last failure, where it came from first."""
    if command.last_error_code is None:
        return []
    facts = [("last error", error_text(command.last_error_code, command.last_error_msg))]
    kind = kind_of(command.last_error_code)
    if kind is not None:
        facts.append(("what it was", kind))
    if stack is not None:
        facts.append(("raised", escaped(raised(stack))))
    return facts


def event_columns() -> list[Column[dict[str, Any]]]:
    """What is shown of an event; before it there are columns for when, and of which command."""
    return [
        Column("EVENT", lambda event: _styled_event(event["event_type"])),
        Column("ATTEMPT", lambda event: str(_details(event).get("attempt", "")), is_number=True),
        Column("WHO", lambda event: escaped(event["actor"] or "")),
        Column("WHAT", lambda event: escaped(_what(event)), may_fold=True),
    ]


def _details(event: dict[str, Any]) -> dict[str, Any]:
    return dict(event["details"] or {})


def _after(step: dict[str, Any]) -> str:
    seconds = step["seconds_since_previous"]
    return "" if seconds is None else duration(seconds)


def when(event: dict[str, Any]) -> str:
    """Its time to the millisecond; with the date, unless it is today."""
    ts: datetime = event["ts"]
    return f"{moment(ts)}.{ts.microsecond // 1000:03}"


_STEPS = Table[dict[str, Any]](
    Column("TIME", when), Column("AFTER", _after, is_number=True), *event_columns()
)


def _styled_event(name: str) -> str:
    colours = {"COMPLETED": "green", "FAILED": "red", "LEASE_EXPIRED": "yellow", "NOTE": "cyan"}
    colour = "red" if name.startswith("MOVED_TO") else colours.get(name)
    return f"[{colour}]{name}[/]" if colour else name


def _what(event: dict[str, Any]) -> str:
    """The error first, as a sentence; then the other details."""
    details = _details(event)
    stack = details.pop("stack", None)
    parts = told(event["event_type"], details)
    if "message" in details:
        parts.insert(0, f"{details.pop('code', '?')}: {details.pop('message')}")
    if "retry_in_seconds" in details:
        parts.append(f"next try after {details.pop('retry_in_seconds'):g} s")
    if "text" in details:  # a note
        parts.append(str(details.pop("text")))
    if isinstance(details.get("edited"), dict):
        parts += edit_phrases(details.pop("edited").get("changes") or {})
    for name in ("class", "attempt"):  # not told, and a column of its own
        details.pop(name, None)
    parts += [
        f"{key} {value if isinstance(value, str | int) else json.dumps(jsonable(value))}"
        for key, value in details.items()
    ]
    if isinstance(stack, dict):
        parts.append(f"at {place_of(stack) or '?'}")
    return "; ".join(parts)


def edit_phrases(changes: dict[str, Any]) -> list[str]:
    """What an operator changed in the payload, a phrase for each."""
    phrases = [
        *(f"{c['path']}: {c['from']} -> {c['to']}" for c in changes.get("changed", ())),
        *(f"{c['path']} added: {c['to']}" for c in changes.get("added", ())),
        *(f"{c['path']} removed: {c['from']}" for c in changes.get("removed", ())),
        *(f"{path} set, not shown" for path in changes.get("secret", ())),
        *(f"{path} edited" for path in changes.get("paths", ())),  # by a bulk operation
    ]
    return [*phrases, f"and {changes['more']} more changes"] if "more" in changes else phrases

"""The life of one command, as a document and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from commandbus.cli.output import (
    Column,
    duration,
    jsonable,
    moment,
    print_fields,
    print_table,
    say,
    styled_status,
    text_of,
)
from commandbus.models import AuditEvent, CommandMetadata


def timeline_document(command: CommandMetadata, events: Sequence[AuditEvent]) -> dict[str, Any]:
    """The command and its steps, each with the seconds since the one before."""
    steps = []
    before: datetime | None = None
    for event in events:
        steps.append(
            {
                "event_type": event.event_type,
                "ts": event.ts,
                "seconds_since_previous": None
                if before is None
                else (event.ts - before).total_seconds(),
                "actor": event.actor,
                "details": event.details,
            }
        )
        before = event.ts
    return {"command": command, "events": steps}


def print_command(document: dict[str, Any]) -> None:
    """Print what `timeline_document` made, and the payload if it is there."""
    command: CommandMetadata = document["command"]
    say(f"[bold]{command.command_type}[/]  {command.command_id}")
    print_fields(_facts(command))
    say()
    print_table(
        [
            Column("TIME"),
            Column("AFTER", is_number=True),
            Column("EVENT"),
            Column("ATTEMPT", is_number=True),
            Column("WHO"),
            Column("WHAT", may_fold=True),
        ],
        [_row(step) for step in document["events"]],
    )
    if "payload" in document:
        say()
        _print_payload(document["payload"])


def _facts(command: CommandMetadata) -> list[tuple[str, str]]:
    facts = [
        ("domain", command.domain),
        ("status", styled_status(command.status)),
        ("attempts", f"{command.attempts} of {command.max_attempts}"),
        ("sent", moment(command.created_at)),
        ("correlation", str(command.correlation_id)),
        ("replies to", text_of(command.reply_queue)),
    ]
    if command.batch_id is not None:
        facts.append(("batch", str(command.batch_id)))
    if command.leased_by is not None and command.lease_expires_at is not None:
        held = f"by {text_of(command.leased_by)} until {moment(command.lease_expires_at)}"
        facts.append(("held", held))
    if command.last_error_code is not None:
        facts.append(
            ("last error", f"{text_of(command.last_error_code)}: {text_of(command.last_error_msg)}")
        )
    return facts


def _row(step: dict[str, Any]) -> list[str]:
    details = dict(step["details"] or {})
    attempt = details.pop("attempt", None)
    after = step["seconds_since_previous"]
    return [
        step["ts"].astimezone().strftime("%H:%M:%S.%f")[:-3],
        "" if after is None else duration(after),
        _styled_event(step["event_type"]),
        "" if attempt is None else str(attempt),
        text_of(step["actor"]) if step["actor"] else "",
        text_of(_what(details)) if details else "",
    ]


def _styled_event(name: str) -> str:
    colours = {"COMPLETED": "green", "FAILED": "red", "LEASE_EXPIRED": "yellow"}
    colour = "red" if name.startswith("MOVED_TO") else colours.get(name)
    return f"[{colour}]{name}[/]" if colour else name


def _what(details: dict[str, Any]) -> str:
    """The error first, as a sentence; then whatever else there is."""
    parts = []
    if "message" in details:
        parts.append(f"{details.pop('code', '?')}: {details.pop('message')}")
    if "retry_in_seconds" in details:
        parts.append(f"next try after {details.pop('retry_in_seconds'):g} s")
    details.pop("class", None)
    parts += [
        f"{key} {value if isinstance(value, str | int) else json.dumps(jsonable(value))}"
        for key, value in details.items()
    ]
    return "; ".join(parts)


def _print_payload(payload: Any) -> None:
    if payload is None:
        say("The payload is gone: the message of a finished command is deleted.")
        return
    say("[bold]Payload[/]")
    print(json.dumps(payload, indent=2, ensure_ascii=False))

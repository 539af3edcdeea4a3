"""Parked commands and failure groups as text, and what an operator can do with a command."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from commandbus.cli.output import (
    duration,
    error_text,
    folding,
    jsonable,
    moment,
    number,
    print_table,
    say,
)
from commandbus.models import CommandMetadata, TroubleshootingItem
from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.model import FailureGroup

_NOTHING = "Nothing waits for an operator."

#: How each action is typed, and when to choose it.
_STEPS = {
    Action.RETRY: ("tsq retry {id}", "the cause is fixed: run it again"),
    Action.EDIT: ("tsq edit {id} --data JSON", "run it again with a corrected payload"),
    Action.CANCEL: ('tsq cancel {id} --reason "…"', "it must not happen; a reply says so"),
    Action.COMPLETE: ("tsq complete {id} --data JSON", "it was done by hand; a reply says so"),
    Action.CANCEL_PENDING: ('cancel {id} --reason "…"', "it has not started: end it"),
    Action.NOTE: ('tsq note {id} "…"', "leave a remark for the next one who looks"),
}  # fmt: skip


def parked_json(item: TroubleshootingItem) -> dict[str, Any]:
    """A parked command as `--json` prints it, without its payload, which `show --payload` masks."""
    document: dict[str, Any] = jsonable(item)
    del document["data"]
    return document


def print_parked(items: Sequence[TroubleshootingItem]) -> None:
    """A table of parked commands."""
    now = datetime.now(UTC)
    print_table(
        ["ID", "DOMAIN", "TYPE", "REASON", number("ATTEMPTS"), number("WAITS"), folding("ERROR")],
        [
            [
                str(item.command_id),
                item.domain,
                item.command_type,
                item.reason,
                f"{item.attempts}/{item.max_attempts}",
                duration(max((now - item.parked_at).total_seconds(), 0.0)),
                error_text(item.last_error_code, item.last_error_msg),
            ]
            for item in items
        ],
        empty=_NOTHING,
    )


def print_groups(groups: Sequence[FailureGroup]) -> None:
    """A table of failure groups."""
    print_table(
        [
            "GROUP", "DOMAIN", "TYPE", number("PARKED"), "FIRST SEEN", "LAST SEEN",
            folding("ERROR"),
        ],
        [
            [
                group.fingerprint,
                group.domain,
                group.command_type,
                f"{group.parked_count:,}",
                moment(group.first_seen),
                moment(group.last_seen),
                error_text(group.error_code, group.message),
            ]
            for group in groups
        ],
        empty=_NOTHING,
    )  # fmt: skip


def next_steps(command: CommandMetadata, has_payload: bool) -> list[dict[str, str]]:
    """What to type next; nothing if there is no decision to make."""
    actions = allowed_actions(
        command.status, is_leased=command.leased_by is not None, has_payload=has_payload
    )
    if not any(action.is_decision for action in actions):
        return []
    return [
        {"command": f"commandbus {words.format(id=command.command_id)}", "meaning": meaning}
        for words, meaning in map(_STEPS.__getitem__, actions)
    ]


def print_steps(command: CommandMetadata, steps: list[dict[str, str]]) -> None:
    """Print what to type next."""
    say()
    if not steps:
        say(f"It is {command.status}: there is nothing to decide.")
        return
    say("[bold]What you can do[/]")
    for step in steps:
        say(f"  {step['command']}  [dim]{step['meaning']}[/]")

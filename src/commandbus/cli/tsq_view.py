"""Parked commands and failure groups as text, and what an operator can do with a command."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from commandbus.cli.output import Column, Table, duration, error_text, jsonable, say
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


def _waits(item: TroubleshootingItem) -> str:
    return duration(max((datetime.now(UTC) - item.parked_at).total_seconds(), 0.0))


PARKED = Table[TroubleshootingItem](
    Column("ID", lambda item: item.command_id),
    Column("DOMAIN", lambda item: item.domain),
    Column("TYPE", lambda item: item.command_type),
    Column("REASON", lambda item: item.reason),
    Column("ATTEMPTS", lambda item: f"{item.attempts}/{item.max_attempts}", is_number=True),
    Column("WAITS", _waits, is_number=True),
    Column(
        "ERROR", lambda item: error_text(item.last_error_code, item.last_error_msg), may_fold=True
    ),
    empty=_NOTHING,
)

GROUPS = Table[FailureGroup](
    Column("GROUP", lambda group: group.fingerprint),
    Column("DOMAIN", lambda group: group.domain),
    Column("TYPE", lambda group: group.command_type),
    Column("PARKED", lambda group: group.parked_count, is_number=True),
    Column("FIRST SEEN", lambda group: group.first_seen),
    Column("LAST SEEN", lambda group: group.last_seen),
    Column("ERROR", lambda group: error_text(group.error_code, group.message), may_fold=True),
    empty=_NOTHING,
)


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

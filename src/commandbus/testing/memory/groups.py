"""Failure groups: what sql/functions/groups.sql does, one command at a time."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import datetime

from commandbus.models import ParkReason
from commandbus.testing.memory.tables import CommandRow, ParkedRow, State
from commandbus.troubleshooting.model import FailureGroup

#: The replacements of commandbus.normalise_message, in its order.
_CHANGING = [
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        (r'"[^"]*"', "<text>"),
        (r"(?<![A-Za-z0-9])'[^']*'", "<text>"),
        (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+", "<email>"),
        (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "<uuid>"),
        (
            r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?([.,][0-9]+)?)?"
            r"Z?([+-][0-9]{2}:?[0-9]{2})?",
            "<time>",
        ),
        (r"0[xX][0-9a-fA-F]+", "<hex>"),
        (r"(?<![A-Za-z0-9])[0-9a-fA-F]{8,}(?![A-Za-z0-9])", "<hex>"),
        (r"[0-9]+([.,:][0-9]+)*", "<n>"),
        (r"[ \t\n\r\f\v]+", " "),
    )
]


def normalise_message(message: str | None) -> str:
    """A message without what differs from one failure to the next."""
    text = (message or "")[:2_000]
    for pattern, placeholder in _CHANGING:
        text = pattern.sub(placeholder, text)
    return text.strip(" ")[:200]


def failure_fingerprint(row: CommandRow) -> str:
    """The name of the group that a failed command belongs to."""
    parts = (
        row.domain,
        row.command_type,
        row.last_error_type or "",
        row.last_error_code or "",
        normalise_message(row.last_error_msg),
    )
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


def enter_troubleshooting(state: State, row: CommandRow, reason: ParkReason, now: datetime) -> None:
    """List a command that was just parked, and count it into its group."""
    fingerprint = failure_fingerprint(row)
    state.parked[row.key] = ParkedRow(reason, now, fingerprint)
    known = state.groups.get((row.domain, fingerprint))
    state.groups[row.domain, fingerprint] = FailureGroup(
        domain=row.domain,
        fingerprint=fingerprint,
        command_type=row.command_type,
        error_class=row.last_error_type,
        error_code=row.last_error_code,
        message=normalise_message(row.last_error_msg),
        sample_message=row.last_error_msg,
        sample_command_id=row.command_id,
        parked_count=1 if known is None else known.parked_count + 1,
        total_seen=1 if known is None else known.total_seen + 1,
        first_seen=now if known is None else known.first_seen,
        last_seen=now,
    )


def leave_troubleshooting(state: State, row: CommandRow) -> bool:
    """Take a command off the list and out of its group; False if it was not there."""
    parked = state.parked.pop(row.key, None)
    if parked is None:
        return False
    group = state.groups[row.domain, parked.fingerprint]
    state.groups[row.domain, parked.fingerprint] = replace(
        group, parked_count=group.parked_count - 1
    )
    return True


def list_failure_groups(
    state: State,
    domain: str | None,
    *,
    command_type: str | None,
    include_empty: bool,
    limit: int,
    prefix: str,
) -> list[FailureGroup]:
    """Groups, largest first."""
    found = [
        group
        for group in state.groups.values()
        if domain in {None, group.domain}
        and command_type in {None, group.command_type}
        and (include_empty or group.parked_count)
        and group.fingerprint.startswith(prefix)
    ]
    found.sort(key=lambda g: (-g.parked_count, -g.last_seen.timestamp(), g.domain, g.fingerprint))
    return found[:limit]

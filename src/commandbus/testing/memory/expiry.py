"""Expiry: a command that was not begun by its time ends; what sql/functions/expiry.sql does."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from commandbus.models import AuditEventType, CommandStatus
from commandbus.testing.memory.lapses import end_lapsed_paused
from commandbus.testing.memory.sending import move_batch_counters, publish_cancel
from commandbus.testing.memory.tables import CommandRow, State, iso8601


def has_expired(row: CommandRow, now: datetime) -> bool:
    """Whether it must not begin any more."""
    return row.expires_at is not None and row.expires_at <= now


def expire(state: State, row: CommandRow, **changes: Any) -> None:
    """End a command as CANCELED, with its reply."""
    now = state.clock.now()
    reason = None if row.expires_at is None else f"not begun by {iso8601(row.expires_at)}"
    row = state.change(row, status=CommandStatus.CANCELED, updated_at=now, **changes)
    state.queues.archive(row.queue_name, [row.msg_id])
    publish_cancel(state, row, reason, code="EXPIRED")
    move_batch_counters(state, row, "open", "canceled")
    state.record(row, AuditEventType.EXPIRED, now, {"reason": reason})


def end_expired(state: State) -> None:
    """End what has expired and no worker has: delayed, backing off, paused, waiting.

    A running command goes on, and a parked one waits for its operator.
    """
    now = state.clock.now()
    for late in [row for row in state.commands.values() if has_expired(row, now)]:
        end_lapsed_paused(state, late.domain, [late.command_id])
        row = state.commands[late.key]
        if row.is_waiting:
            expire(state, row)

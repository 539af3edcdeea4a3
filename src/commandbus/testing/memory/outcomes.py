"""Outcomes: what sql/functions/outcomes.sql does. The ways a lease ends, one command at a time.

Whoever calls has made sure that the lease counts; settle.py does, for a whole group.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import orjson

from commandbus.models import (
    AuditEventType,
    CommandStatus,
    Failure,
    Outcome,
    ParkReason,
    ReplyOutcome,
)
from commandbus.names import commands_queue
from commandbus.testing.memory.counters import move_batch_counters
from commandbus.testing.memory.groups import enter_troubleshooting
from commandbus.testing.memory.replies import publish_reply
from commandbus.testing.memory.tables import CommandRow, State

_ENDED: dict[str, Any] = {"leased_by": None, "lease_expires_at": None, "lapses": 0}


def complete(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> COMPLETED, with a reply."""
    row = state.change(row, status=CommandStatus.COMPLETED, updated_at=now, **_ENDED)
    state.record(row, AuditEventType.COMPLETED, now)
    state.queues.delete(commands_queue(row.domain), [row.msg_id])
    publish_reply(state, row, ReplyOutcome.SUCCESS, now, data=orjson.loads(outcome.result))
    move_batch_counters(state, row, "open", "completed")


def retry(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> PENDING: the same message shows up again after the delay."""
    row = state.change(
        row, status=CommandStatus.PENDING, updated_at=now, **_ENDED, **_errors(outcome.failure)
    )
    _record_failure(state, row, outcome.failure, outcome.delay_seconds)
    visible_at = now + timedelta(seconds=outcome.delay_seconds)
    state.queues.set_vt(commands_queue(row.domain), [row.msg_id], visible_at)


def park(
    state: State, row: CommandRow, reason: ParkReason, failure: Failure | None, now: datetime
) -> None:
    """IN_PROGRESS -> IN_TROUBLESHOOTING_QUEUE: the payload waits in the archive, no reply yet."""
    row = state.change(
        row,
        status=CommandStatus.IN_TROUBLESHOOTING_QUEUE,
        started_alone=False,
        updated_at=now,
        **_ENDED,
        **_errors(failure),
    )
    state.queues.archive(commands_queue(row.domain), [row.msg_id])
    move_batch_counters(state, row, "open", "tsq")
    enter_troubleshooting(state, row, reason, now)
    _record_failure(state, row, failure)
    details = {"reason": reason.value, "code": row.last_error_code, "attempts": row.attempts}
    state.record(row, AuditEventType.MOVED_TO_TROUBLESHOOTING_QUEUE, now, details)


def fail(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> FAILED, with a reply."""
    row = state.change(
        row, status=CommandStatus.FAILED, updated_at=now, **_ENDED, **_errors(outcome.failure)
    )
    state.queues.archive(commands_queue(row.domain), [row.msg_id])
    error = {
        "code": row.last_error_code,
        "message": row.last_error_msg,
        "class": row.last_error_type,
    }
    publish_reply(state, row, ReplyOutcome.FAILED, now, error=error)
    move_batch_counters(state, row, "open", "failed")
    _record_failure(state, row, outcome.failure)
    state.record(row, AuditEventType.GIVEN_UP, now)


def release(state: State, row: CommandRow, _outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> PENDING, visible at once, as if it had never been taken."""
    changes = {**_ENDED, "lapses": -abs(row.lapses)}  # a suspect that was given back is still one
    attempts = max(row.attempts - 1, 0)
    row = state.change(
        row, status=CommandStatus.PENDING, attempts=attempts, updated_at=now, **changes
    )
    state.queues.set_vt(commands_queue(row.domain), [row.msg_id], now)
    state.record(row, AuditEventType.RELEASED, now)
    state.wake_workers(row.domain)


# -- what is kept of a failure


def _errors(failure: Failure | None) -> dict[str, str | None]:
    return {
        "last_error_type": failure.error_type if failure else None,
        "last_error_code": failure.code if failure else None,
        "last_error_msg": failure.message if failure else None,
    }


def _record_failure(
    state: State, row: CommandRow, failure: Failure | None, delay_seconds: float | None = None
) -> None:
    """One FAILED event for each failed attempt, whatever became of it."""
    details = {
        "attempt": row.attempts,
        "class": row.last_error_type,
        "code": row.last_error_code,
        "message": row.last_error_msg,
        "retry_in_seconds": delay_seconds,
        "details": failure.details if failure else None,
    }
    known = {name: value for name, value in details.items() if value is not None}
    state.record(row, AuditEventType.FAILED, row.updated_at, known)

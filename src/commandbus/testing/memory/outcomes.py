"""Outcomes: what sql/functions/outcomes.sql does. The ways a lease ends, fenced by that lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from commandbus.models import (
    AuditEventType,
    CommandStatus,
    Failure,
    Outcome,
    OutcomeKind,
    ParkReason,
    ReplyOutcome,
)
from commandbus.names import commands_queue
from commandbus.testing.memory.counters import move_batch_counters
from commandbus.testing.memory.sending import publish_reply, send_commands
from commandbus.testing.memory.tables import CommandRow, ParkedRow, State

_ENDED: dict[str, Any] = {"leased_by": None, "lease_expires_at": None, "lapses": 0}


def settle(state: State, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
    """Write outcomes, kind by kind, and what their handlers send; returns the lost leases."""
    state.queues.get(commands_queue(domain))
    # Before the first command moves: afterwards none of the leases counts any more.
    sends = [
        outgoing
        for outcome in outcomes
        if _leased_row(state, domain, outcome) is not None
        for outgoing in outcome.sends
    ]
    lost: set[UUID] = set()
    for kind in OutcomeKind:
        lost |= _settle_kind(state, domain, kind, [o for o in outcomes if o.kind is kind])
    for outgoing in sends:
        send_commands(state, outgoing.domain, outgoing.commands, outgoing.batch_id)
    return lost


def _settle_kind(
    state: State, domain: str, kind: OutcomeKind, outcomes: Sequence[Outcome]
) -> set[UUID]:
    now = state.clock.now()
    moved = set()
    for outcome in outcomes:
        row = _leased_row(state, domain, outcome)
        if row is not None:
            _MOVES[kind](state, row, outcome, now)
            moved.add(row.command_id)
    return _reject_stale(
        state, domain, [outcome for outcome in outcomes if outcome.lease.command_id not in moved]
    )


def _leased_row(state: State, domain: str, outcome: Outcome) -> CommandRow | None:
    row = state.commands.get((domain, outcome.lease.command_id))
    return row if row is not None and row.is_open and row.is_leased_as(outcome.lease) else None


def _reject_stale(state: State, domain: str, rest: Sequence[Outcome]) -> set[UUID]:
    lost = set()
    for outcome in rest:
        row = state.commands.get((domain, outcome.lease.command_id))
        # The same epoch without a lease: this very outcome was recorded before.
        if row is None or row.lease_epoch == outcome.lease.lease_epoch:
            continue
        details = {"lease_epoch": outcome.lease.lease_epoch}
        state.record(row, AuditEventType.STALE_RESULT_REJECTED, state.clock.now(), details)
        lost.add(row.command_id)
    return lost


def _complete(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> COMPLETED, with a reply."""
    row = state.change(row, status=CommandStatus.COMPLETED, updated_at=now, **_ENDED)
    state.record(row, AuditEventType.COMPLETED, now)
    state.queues.delete(row.queue_name, [row.msg_id])
    publish_reply(state, row, ReplyOutcome.SUCCESS, now, data=orjson.loads(outcome.result))
    move_batch_counters(state, row, "open", "completed")


def _retry(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> PENDING: the same message shows up again after the delay."""
    row = state.change(
        row, status=CommandStatus.PENDING, updated_at=now, **_ENDED, **_errors(outcome.failure)
    )
    _record_failure(state, row, outcome.failure, outcome.delay_seconds)
    visible_at = now + timedelta(seconds=outcome.delay_seconds)
    state.queues.set_vt(row.queue_name, [row.msg_id], visible_at)


def _park(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    park(state, row, outcome.reason or ParkReason.PERMANENT, outcome.failure, now)


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
    state.queues.archive(row.queue_name, [row.msg_id])
    move_batch_counters(state, row, "open", "tsq")
    state.parked[row.key] = ParkedRow(reason, now)
    _record_failure(state, row, failure)
    details = {"reason": reason.value, "code": row.last_error_code, "attempts": row.attempts}
    state.record(row, AuditEventType.MOVED_TO_TROUBLESHOOTING_QUEUE, now, details)


def _fail(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> FAILED, with a reply."""
    row = state.change(
        row, status=CommandStatus.FAILED, updated_at=now, **_ENDED, **_errors(outcome.failure)
    )
    state.queues.archive(row.queue_name, [row.msg_id])
    error = {
        "code": row.last_error_code,
        "message": row.last_error_msg,
        "class": row.last_error_type,
    }
    publish_reply(state, row, ReplyOutcome.FAILED, now, error=error)
    move_batch_counters(state, row, "open", "failed")
    _record_failure(state, row, outcome.failure)
    state.record(row, AuditEventType.GIVEN_UP, now)


def _release(state: State, row: CommandRow, _outcome: Outcome, now: datetime) -> None:
    """IN_PROGRESS -> PENDING, visible at once, as if it had never been taken."""
    changes = {**_ENDED, "lapses": -abs(row.lapses)}  # a suspect that was given back is still one
    attempts = max(row.attempts - 1, 0)
    row = state.change(
        row, status=CommandStatus.PENDING, attempts=attempts, updated_at=now, **changes
    )
    state.queues.set_vt(row.queue_name, [row.msg_id], now)
    state.record(row, AuditEventType.RELEASED, now)
    state.wake_workers(row.domain)


_MOVES: dict[OutcomeKind, Callable[[State, CommandRow, Outcome, datetime], None]] = {
    OutcomeKind.COMPLETE: _complete,
    OutcomeKind.RETRY: _retry,
    OutcomeKind.PARK: _park,
    OutcomeKind.FAIL: _fail,
    OutcomeKind.RELEASE: _release,
}


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

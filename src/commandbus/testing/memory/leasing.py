# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Leasing: how commands are received, and the ways a lease ends, each fenced by its epoch.

What sql/functions/receiving.sql, leases.sql and outcomes.sql do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Unpack
from uuid import UUID

import orjson

from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind, Said
from commandbus.database.store import ReceiveOptions
from commandbus.models import AuditEventType, CommandStatus, ParkReason, Progress, ReplyOutcome
from commandbus.names import commands_queue
from commandbus.testing.memory.expiry import expire, has_expired
from commandbus.testing.memory.keys import promote
from commandbus.testing.memory.lapses import end_lapsed_paused, lapsed_lease
from commandbus.testing.memory.pausing import is_paused, paused_types
from commandbus.testing.memory.sending import (
    move_batch_counters,
    publish_cancel,
    publish_reply,
    start_batch,
)
from commandbus.testing.memory.tables import CommandRow, State, made
from commandbus.testing.memory.unique import send_unique

#: Outcomes after which a command starts again, unless its cancel was requested.
STARTS_AGAIN = {OutcomeKind.RETRY, OutcomeKind.RELEASE, OutcomeKind.SNOOZE}
#: Leases in a row that may lapse before a command is parked without a further start.
MAX_LAPSES = 10

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


def receive_commands(state: State, domain: str, **options: Unpack[ReceiveOptions]) -> list[Lease]:
    queue, now = commands_queue(domain), state.clock.now()
    if is_paused(state, domain, now):
        return []
    # Those of a paused type wait; a lease of theirs that has lapsed is over.
    paused = paused_types(state, domain, now)
    waiting = [row.command_id for row in state.commands.values() if row.command_type in paused]
    end_lapsed_paused(state, domain, waiting)
    leases: list[Lease] = []
    for read in state.queues.read_due(
        queue,
        options["vt_seconds"],
        options["quantity"],
        from_head=options.get("from_head", False),
        left_out=[*options.get("except_types", ()), *paused],
        level_seconds=state.flow(domain).level_seconds,
    ):
        message = read.message
        row = _row_of(state, domain, read.msg_id, message)
        if row is None:
            state.queues.archive(queue, [read.msg_id])
            continue
        limit = options["limits"].get(row.command_type, row.max_attempts)
        # A lapse counts as an attempt if the policy counts every one, or if the command is known
        # to have run alone.
        every = options.get("count_every", ())
        counts_every = every is None or row.command_type in every
        is_new_start = row.leased_by is None and row.lapses <= 0
        attempts = row.attempts + (is_new_start or row.started_alone or counts_every)
        lapses = abs(row.lapses) - (row.leased_by is None and row.lapses > 0)
        if row.cancel_requested_at is not None:
            _cancel_lapsed(state, row, options["worker"])
            continue
        row = state.change(row, max_attempts=limit)
        if has_expired(row, now):
            _expire_received(state, row)
        elif attempts > limit or (lapses >= MAX_LAPSES and not counts_every):
            _park_used_up(state, row, options["worker"])
        else:
            leases.append(_lease(state, row, attempts, message, options))
    return leases


def _row_of(state: State, domain: str, msg_id: int, message: Any) -> CommandRow | None:
    """The open command of which this is the current message; any program may send any message."""
    text = message.get("command_id") if isinstance(message, dict) else None
    if not isinstance(text, str) or not _UUID.match(text):
        return None
    row = state.commands.get((domain, UUID(text)))
    return row if row is not None and row.is_open and row.msg_id == msg_id else None


def _lease(
    state: State, row: CommandRow, attempts: int, message: dict[str, Any], options: ReceiveOptions
) -> Lease:
    now, worker = state.clock.now(), options["worker"]
    is_marked = options.get("mark_in_progress", True)
    lapsed = None if row.leased_by is None else lapsed_lease(row)
    row = state.change(
        row,
        status=CommandStatus.IN_PROGRESS if is_marked else CommandStatus.PENDING,
        attempts=attempts,
        lapses=row.lapses if row.leased_by is None else abs(row.lapses) + 1,
        lease_epoch=row.lease_epoch + 1,
        leased_by=worker,
        started_alone=False,
        lease_expires_at=now + timedelta(seconds=options["vt_seconds"]),
        updated_at=now,
    )
    start_batch(state, row, now)
    if row.lapses > 0 and lapsed is not None:  # else it is told already
        state.record(row, AuditEventType.LEASE_EXPIRED, now, lapsed)
    state.record(row, AuditEventType.RECEIVED, now, {"attempt": attempts}, worker)
    payload = orjson.dumps(message["data"]).decode() if "data" in message else None
    return made(
        Lease,
        row,
        attempt=attempts,
        is_suspect=abs(row.lapses) > 1,
        payload=payload,
        is_limited=row.ordering_key is not None,
        meta=orjson.dumps(message["meta"]).decode() if "meta" in message else None,
        due_at=_due_at(row, now) if options.get("with_due") else None,
    )


def _due_at(row: CommandRow, now: datetime) -> float | None:
    if row.lease_epoch > 1:
        return None
    due = row.created_at if row.deliver_at is None else max(row.created_at, row.deliver_at)
    return time.monotonic() - (now - due).total_seconds()


def _park_used_up(state: State, row: CommandRow, worker: str) -> None:
    used = f"{row.attempts} of {row.max_attempts}"
    if row.leased_by is not None or row.lapses > 0:
        message = (
            f"the lease ran out before a result came, attempt {used}: the worker crashed, was "
            "killed, or lost its connection"
        )
        details = None if row.leased_by is None else lapsed_lease(row)
        failure = Failure("TRANSIENT", "LEASE_EXPIRED", message, details)
    else:
        failure = Failure("TRANSIENT", "ATTEMPTS_EXHAUSTED", f"no attempt left: {used} are used")
    # A new lease fences the worker that may still be running it.
    row = state.change(row, leased_by=worker, lease_epoch=row.lease_epoch + 1)
    _park(state, row, ParkReason.EXHAUSTED, failure, state.clock.now())


def _cancel_lapsed(state: State, row: CommandRow, worker: str) -> None:
    """Its worker was asked to end it, and has died."""
    state.record(row, AuditEventType.LEASE_EXPIRED, state.clock.now(), lapsed_lease(row))
    row = state.change(row, leased_by=worker, lease_epoch=row.lease_epoch + 1)
    _cancel(state, row, None, state.clock.now())


def _cancel(state: State, row: CommandRow, failure: Failure | None, now: datetime) -> None:
    """The end of a command whose cancel was requested, in place of what would start it again."""
    row = _ended(state, row, CommandStatus.CANCELED, now, started_alone=False)
    state.queues.archive(row.queue_name, [row.msg_id])
    publish_cancel(state, row, row.cancel_reason)
    move_batch_counters(state, row, "open", "canceled")
    details: dict[str, Any] = {"reason": row.cancel_reason}
    if failure is not None:
        details["error"] = {
            "class": failure.error_type,
            "code": failure.code,
            "message": failure.message,
        }
    state.record(row, AuditEventType.CANCELED, now, details, row.cancel_requested_by)


def _expire_received(state: State, row: CommandRow) -> None:
    # A new lease fences the worker that may still be running it; it ends at once.
    epoch = row.lease_epoch + 1
    ended: dict[str, Any] = {"leased_by": None, "lease_expires_at": None, "lapses": 0}
    expire(state, row, lease_epoch=epoch, started_alone=False, **ended)


def confirm_start(state: State, lease: Lease) -> bool:
    row = state.commands.get((lease.domain, lease.command_id))
    if row is None or not row.is_leased_as(lease):
        return False
    state.change(row, started_alone=True)
    return True


def extend_leases(state: State, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
    queue = commands_queue(domain)
    state.queues.get(queue)
    until = state.clock.now() + timedelta(seconds=ceil(seconds))
    lost = set()
    for lease in leases:
        row = state.commands.get((domain, lease.command_id))
        if row is not None and row.is_leased_as(lease):
            state.change(row, lease_expires_at=until)
            state.queues.set_vt(queue, [row.msg_id], until)
        else:
            lost.add(lease.command_id)
    return lost


def cancel_requests(state: State, domain: str, leases: Sequence[Lease]) -> set[UUID]:
    rows = [(state.commands.get((domain, lease.command_id)), lease) for lease in leases]
    return {
        row.command_id
        for row, lease in rows
        if row is not None and row.is_leased_as(lease) and row.cancel_requested_at is not None
    }


def record_progress(state: State, domain: str, said: Sequence[Said]) -> None:
    for each in said:
        key, epoch = (domain, each.lease.command_id), each.lease.lease_epoch
        if state.progress.get(key, (0, None))[0] <= epoch:
            told = Progress(each.fraction, each.message, state.clock.now())
            state.progress[key] = (epoch, told)


# -- the ways a lease ends


def settle(
    state: State,
    domain: str,
    outcomes: Sequence[Outcome],
    *,
    conn: Any = None,  # noqa: ARG001
) -> set[UUID]:
    state.queues.get(commands_queue(domain))
    # Before the first command moves: afterwards none of the leases is current any more.
    sends = [
        outgoing
        for outcome in outcomes
        if _leased_row(state, domain, outcome) is not None
        for outgoing in outcome.sends
    ]
    lost: set[UUID] = set()
    for kind in OutcomeKind:
        now = state.clock.now()
        group = [outcome for outcome in outcomes if outcome.kind is kind]
        for outcome in group:
            row = _leased_row(state, domain, outcome)
            if row is not None and row.cancel_requested_at is not None and kind in STARTS_AGAIN:
                _cancel(state, row, outcome.failure, now)
            elif row is not None:
                _move(state, row, outcome, now)
        lost.update(_reject_stale(state, domain, group))
    for outgoing in sends:
        send_unique(
            state, outgoing.domain, outgoing.commands, outgoing.batch_id, actor=outgoing.actor
        )
    return lost


def settle_and_receive(
    state: State, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
) -> tuple[set[UUID], list[Lease]]:
    lost = settle(state, domain, outcomes)
    promote(state)
    return lost, receive_commands(state, domain, **options)


def _leased_row(state: State, domain: str, outcome: Outcome) -> CommandRow | None:
    row = state.commands.get((domain, outcome.lease.command_id))
    return row if row is not None and row.is_open and row.is_leased_as(outcome.lease) else None


def _reject_stale(state: State, domain: str, group: Sequence[Outcome]) -> Iterator[UUID]:
    for outcome in group:
        row = state.commands.get((domain, outcome.lease.command_id))
        # The same epoch without a lease: this very outcome was recorded before.
        if row is not None and row.lease_epoch != outcome.lease.lease_epoch:
            details = {"lease_epoch": outcome.lease.lease_epoch}
            state.record(row, AuditEventType.STALE_RESULT_REJECTED, state.clock.now(), details)
            yield row.command_id


def _move(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    """The end of a lease; each case is a SQL function."""
    failure = outcome.failure
    match outcome.kind:
        case OutcomeKind.COMPLETE:
            row = _ended(state, row, CommandStatus.COMPLETED, now)
            state.record(row, AuditEventType.COMPLETED, now)
            state.queues.delete(row.queue_name, [row.msg_id])
            result = orjson.loads(outcome.result)
            publish_reply(state, row, ReplyOutcome.SUCCESS, data=result, meta=outcome.meta)
            move_batch_counters(state, row, "open", "completed")
        case OutcomeKind.RETRY:
            # The same message shows up again after the delay.
            row = _ended(state, row, CommandStatus.PENDING, now, **_errors(failure))
            _record_failure(state, row, failure, outcome.delay_seconds)
            visible_at = now + timedelta(seconds=outcome.delay_seconds)
            state.queues.set_vt(row.queue_name, [row.msg_id], visible_at)
        case OutcomeKind.PARK:
            _park(state, row, ParkReason(outcome.reason or ParkReason.PERMANENT), failure, now)
        case OutcomeKind.FAIL:
            row = _ended(state, row, CommandStatus.FAILED, now, **_errors(failure))
            state.queues.archive(row.queue_name, [row.msg_id])
            error = _shown_error(row)
            publish_reply(state, row, ReplyOutcome.FAILED, error=error, meta=outcome.meta)
            move_batch_counters(state, row, "open", "failed")
            _record_failure(state, row, failure)
            state.record(row, AuditEventType.GIVEN_UP, now)
        case OutcomeKind.RELEASE:
            # As if it had never been leased; but a suspect that is released is still a suspect.
            attempts, lapses = max(row.attempts - 1, 0), -abs(row.lapses)
            row = _ended(state, row, CommandStatus.PENDING, now, attempts=attempts, lapses=lapses)
            state.queues.set_vt(row.queue_name, [row.msg_id], now)
            state.record(row, AuditEventType.RELEASED, now)
            state.wake_workers(row.domain)
        case OutcomeKind.SNOOZE:
            attempts, snoozes = max(row.attempts - 1, 0), (row.snoozes or 0) + 1
            row = _ended(state, row, CommandStatus.PENDING, now, attempts=attempts, snoozes=snoozes)
            visible_at = now + timedelta(seconds=outcome.delay_seconds)
            state.queues.set_vt(row.queue_name, [row.msg_id], visible_at)
            why = {} if outcome.reason is None else {"reason": outcome.reason}
            details = {"seconds": outcome.delay_seconds, "snoozes": snoozes, **why}
            state.record(row, AuditEventType.SNOOZED, now, details)
        case OutcomeKind.DISCARD:
            row = _ended(state, row, CommandStatus.CANCELED, now)
            state.queues.archive(row.queue_name, [row.msg_id])
            publish_cancel(state, row, outcome.reason, code="DISCARDED", meta=outcome.meta)
            move_batch_counters(state, row, "open", "canceled")
            state.record(row, AuditEventType.DISCARDED, now, {"reason": outcome.reason})


def _ended(
    state: State, row: CommandRow, status: CommandStatus, now: datetime, **changes: Any
) -> CommandRow:
    ended = {"leased_by": None, "lease_expires_at": None, "lapses": 0, "started_alone": False}
    return state.change(row, status=status, updated_at=now, **{**ended, **changes})


def _park(
    state: State, row: CommandRow, reason: ParkReason, failure: Failure | None, now: datetime
) -> None:
    """The payload waits in the archive; there is no reply yet."""
    parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
    row = _ended(state, row, parked, now, **_errors(failure))
    state.queues.archive(row.queue_name, [row.msg_id])
    move_batch_counters(state, row, "open", "in_troubleshooting")
    state.parked[row.key] = (reason, now)
    _record_failure(state, row, failure)
    details = {"reason": reason.value, "code": row.last_error_code, "attempts": row.attempts}
    state.record(row, AuditEventType.MOVED_TO_TROUBLESHOOTING_QUEUE, now, details)


def _errors(failure: Failure | None) -> dict[str, str | None]:
    fields = {"type": "error_type", "code": "code", "msg": "message"}
    return {f"last_error_{name}": getattr(failure, fields[name], None) for name in fields}


def _shown_error(row: CommandRow) -> dict[str, Any]:
    columns = {"class": "type", "code": "code", "message": "msg"}
    return {name: getattr(row, f"last_error_{columns[name]}") for name in columns}


def _record_failure(
    state: State, row: CommandRow, failure: Failure | None, delay_seconds: float | None = None
) -> None:
    """One FAILED event for each failed attempt, whatever became of it."""
    details = {
        "attempt": row.attempts,
        **_shown_error(row),
        "retry_in_seconds": delay_seconds,
        "details": failure.details if failure else None,
        "stack": failure.stack if failure else None,
    }
    known = {name: value for name, value in details.items() if value is not None}
    state.record(row, AuditEventType.FAILED, row.updated_at, known)

# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Operators: what sql/functions/operator.sql does, for commands and batches. All ids, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack
from uuid import UUID

import orjson

from commandbus.database.store import RetryOptions
from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.models import AuditEventType, CommandStatus, ReplyOutcome
from commandbus.names import cancels_channel, check_domain, commands_queue
from commandbus.testing.memory.lapses import end_lapsed_paused
from commandbus.testing.memory.placing import put_command
from commandbus.testing.memory.reads import rows_of_batch
from commandbus.testing.memory.sending import (
    move_batch_counters,
    publish_cancel,
    publish_reply,
    require_batch,
)
from commandbus.testing.memory.tables import CommandRow, State, iso8601

#: Commands that one call of cancel_batch ends.
CANCEL_LIMIT = 5_000

_PARKED = "a command in troubleshooting"


def operator_retry(
    state: State, domain: str, ids: Sequence[UUID], **options: Unpack[RetryOptions]
) -> None:
    check_domain(domain)
    edits = options.get("edits") or {}
    parked = movable(state, domain, ids, lambda row: row.key in state.parked)
    for row in parked:
        if row.command_id in edits and edits[row.command_id].previous_msg_id != row.msg_id:
            raise InvalidOperationError(
                f"cannot retry command {row.command_id}: it was sent again since its payload was "
                "read; read the payload again, and edit that"
            )
    moved = _requeue(state, domain, parked, options)
    refuse(state, domain, ids, moved, "retry", _PARKED)


def _requeue(
    state: State, domain: str, rows: Sequence[CommandRow], options: RetryOptions
) -> Sequence[CommandRow]:
    """Send archived payloads again, of commands that are parked or FAILED; returns those moved."""
    queue, edits = commands_queue(domain), options.get("edits") or {}
    actor, reset_attempts = options["actor"], options["reset_attempts"]
    if not rows or not state.queues.exists(queue):
        return []
    # Those of one key in the order in which they were sent, in which they get their new numbers.
    rows = sorted(rows, key=lambda row: (row.turn, *row.place, row.command_id))
    archive = state.queues.get(queue).archive
    messages: list[Any] = []
    for row in rows:
        if row.msg_id not in archive:
            raise PayloadLostError(
                f"the payload of command {row.command_id} is no longer archived; cancel or "
                "complete it, and send the work again under a new id"
            )
        edit = edits.get(row.command_id)
        edited = {} if edit is None else {"data": orjson.loads(edit.data)}
        messages.append({**archive[row.msg_id].message, **edited})
    now = state.clock.now()
    for ended, message in zip(rows, messages, strict=True):
        row = state.change(
            put_command(state, ended, message),
            status=CommandStatus.PENDING,
            updated_at=now,
            # An operator wants it to run, also after its time.
            expires_at=None,
            lapses=0,
            # Without a reset there is still one attempt to use.
            attempts=0 if reset_attempts else min(ended.attempts, ended.max_attempts - 1),
            snoozes=None if reset_attempts else ended.snoozes,
            cancel_requested_at=None,
            cancel_requested_by=None,
            cancel_reason=None,
        )
        was_parked = state.parked.pop(row.key, None) is not None
        move_batch_counters(
            state, row, "in_troubleshooting" if was_parked else "failed", "open", actor
        )
        details: dict[str, Any] = {"msg_id": row.msg_id, "reset_attempts": reset_attempts}
        if edit := edits.get(row.command_id):
            changes = dict(edit.changes)
            details["edited"] = {"previous_msg_id": edit.previous_msg_id, "changes": changes}
        if ended.expires_at is not None:
            details["lifted_expiry"] = iso8601(ended.expires_at)
        state.record(row, AuditEventType.OPERATOR_RETRY, now, details, actor)
    state.wake_workers(domain)
    return rows


def operator_cancel(
    state: State, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None
) -> None:
    for row in _resolve(state, domain, ids, CommandStatus.CANCELED, "cancel"):
        publish_cancel(state, row, reason)
        move_batch_counters(state, row, "in_troubleshooting", "canceled", actor)
        state.record(row, AuditEventType.OPERATOR_CANCEL, row.updated_at, {"reason": reason}, actor)


def operator_complete(
    state: State, domain: str, ids: Sequence[UUID], *, result: bytes, actor: str | None
) -> None:
    for row in _resolve(state, domain, ids, CommandStatus.COMPLETED, "complete"):
        publish_reply(state, row, ReplyOutcome.SUCCESS, data=orjson.loads(result))
        move_batch_counters(state, row, "in_troubleshooting", "completed", actor)
        state.record(row, AuditEventType.OPERATOR_COMPLETE, row.updated_at, actor=actor)


def cancel_commands(
    state: State, domain: str, ids: Sequence[UUID], reason: str, actor: str | None, conn: Any = None
) -> None:
    del conn  # the engine has used it
    check_domain(domain)
    end_lapsed_paused(state, domain, ids)
    rows = movable(state, domain, ids, lambda row: row.is_waiting)
    refuse(state, domain, ids, rows, "cancel", "a command that is PENDING")
    _cancel_waiting(state, rows, reason, actor)


def _cancel_waiting(
    state: State, rows: Sequence[CommandRow], reason: str, actor: str | None
) -> None:
    for pending in rows:
        now = state.clock.now()
        row = state.change(pending, status=CommandStatus.CANCELED, updated_at=now)
        state.queues.archive(row.queue_name, [row.msg_id])
        publish_cancel(state, row, reason)
        move_batch_counters(state, row, "open", "canceled", actor)
        state.record(row, AuditEventType.CANCELED, now, {"reason": reason}, actor)


def request_cancel(
    state: State, domain: str, ids: Sequence[UUID], reason: str, actor: str | None, conn: Any = None
) -> set[UUID]:
    """What sql/functions/cancels.sql does."""
    del conn  # the engine has used it
    check_domain(domain)
    end_lapsed_paused(state, domain, ids)
    waiting = movable(state, domain, ids, lambda row: row.is_waiting)
    leased = movable(state, domain, ids, lambda row: row.is_open and row.leased_by is not None)
    wanted = "a command that is PENDING or that a worker has"
    refuse(state, domain, ids, [*waiting, *leased], "cancel", wanted)
    _cancel_waiting(state, waiting, reason, actor)
    _mark(state, leased, reason, actor)
    return {row.command_id for row in leased}


def _mark(state: State, rows: Sequence[CommandRow], reason: str, actor: str | None) -> int:
    new = [row for row in rows if row.cancel_requested_at is None]
    for found in new:
        now = state.clock.now()
        row = state.change(
            found, cancel_requested_at=now, cancel_requested_by=actor, cancel_reason=reason
        )
        state.record(row, AuditEventType.CANCEL_REQUESTED, now, {"reason": reason}, actor)
        state.notices.append(cancels_channel(row.domain))
    return len(new)


def request_batch_cancel(
    state: State, domain: str, batch_id: UUID, *, reason: str, actor: str | None
) -> int:
    require_batch(state, domain, batch_id)
    rows = rows_of_batch(state, domain, batch_id)
    return _mark(state, [row for row in rows if row.leased_by is not None], reason, actor)


def add_note(state: State, domain: str, command_id: UUID, *, text: str, actor: str | None) -> None:
    row = state.commands.get((domain, command_id))
    if row is None:
        raise CommandNotFoundError(domain, command_id)
    state.record(row, AuditEventType.NOTE, state.clock.now(), {"text": text}, actor)


def cancel_batch(
    state: State, domain: str, batch_id: UUID, *, reason: str, actor: str | None
) -> int:
    require_batch(state, domain, batch_id)
    ids = [row.command_id for row in rows_of_batch(state, domain, batch_id) if row.is_waiting]
    cancel_commands(state, domain, ids[:CANCEL_LIMIT], reason, actor)
    return min(len(ids), CANCEL_LIMIT)


def retry_batch(state: State, domain: str, batch_id: UUID, *, actor: str | None) -> int:
    require_batch(state, domain, batch_id)
    failed = {CommandStatus.IN_TROUBLESHOOTING_QUEUE, CommandStatus.FAILED}
    rows = [row for row in rows_of_batch(state, domain, batch_id) if row.status in failed]
    return len(_requeue(state, domain, rows, {"actor": actor, "reset_attempts": True}))


def _resolve(
    state: State, domain: str, ids: Sequence[UUID], status: CommandStatus, verb: str
) -> list[CommandRow]:
    """End all of these parked commands, or none."""
    rows = movable(state, domain, ids, lambda row: row.key in state.parked)
    refuse(state, domain, ids, rows, verb, _PARKED)
    for row in rows:
        del state.parked[row.key]
    return [state.change(row, status=status, updated_at=state.clock.now()) for row in rows]


def movable(
    state: State, domain: str, ids: Sequence[UUID], may_move: Callable[[CommandRow], bool]
) -> list[CommandRow]:
    """Those of the commands that can be moved, in the order of their ids."""
    found = (state.commands.get((domain, command_id)) for command_id in sorted(set(ids)))
    return [row for row in found if row is not None and may_move(row)]


def refuse(
    state: State, domain: str, ids: Sequence[UUID], moved: Sequence[CommandRow], *words: str
) -> None:
    """All or none: raise the error about the first that was not moved. `words`: verb, wanted."""
    for command_id in sorted(set(ids) - {row.command_id for row in moved}):
        row = state.commands.get((domain, command_id))
        if row is None:
            raise CommandNotFoundError(domain, command_id)
        standing = row.status.value if row.leased_by is None else "leased by a worker"
        raise InvalidOperationError(
            f"cannot {words[0]} command {command_id}: it is {standing}, and only {words[1]} can be"
        )

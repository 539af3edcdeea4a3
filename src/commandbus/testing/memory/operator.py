"""Operators: what sql/functions/operator.sql does, for commands and batches. All ids, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.models import AuditEventType, CommandStatus, Edit, ReplyOutcome
from commandbus.names import check_domain, commands_queue
from commandbus.testing.memory.counters import move_batch_counters
from commandbus.testing.memory.reads import rows_of_batch
from commandbus.testing.memory.sending import publish_cancel, publish_reply, require_batch
from commandbus.testing.memory.tables import CommandRow, State

#: Commands that one call of cancel_batch ends.
CANCEL_LIMIT = 5_000


def operator_retry(
    state: State,
    domain: str,
    command_ids: Sequence[UUID],
    *,
    actor: str | None,
    reset_attempts: bool,
    edits: Mapping[UUID, Edit] | None = None,
) -> None:
    """The same payload in a new message, or an edited one."""
    check_domain(domain)
    edits = edits or {}
    parked = _movable(state, domain, command_ids, _is_parked)
    for row in parked:
        if row.command_id in edits and edits[row.command_id].previous_msg_id != row.msg_id:
            raise InvalidOperationError(
                f"cannot retry command {row.command_id}: it was sent again since its payload was "
                "read; read the payload again, and edit that"
            )
    moved = _requeue(state, domain, parked, actor=actor, reset_attempts=reset_attempts, edits=edits)
    _refuse_unmoved(state, domain, command_ids, moved, "retry", _PARKED)


def _requeue(
    state: State,
    domain: str,
    rows: Sequence[CommandRow],
    *,
    actor: str | None,
    reset_attempts: bool,
    edits: Mapping[UUID, Edit],
) -> Sequence[CommandRow]:
    """Send archived payloads again, of commands that are parked or FAILED; returns those moved."""
    queue = commands_queue(domain)
    if not rows or not state.queues.exists(queue):
        return []
    rows = sorted(rows, key=lambda row: (*row.place, row.command_id))
    archive = state.queues.get(queue).archive
    for row in rows:
        if row.msg_id not in archive:
            raise PayloadLostError(
                f"the payload of command {row.command_id} is no longer archived; cancel or "
                "complete it, and send the work again under a new id"
            )
    now = state.clock.now()
    messages = [archive[row.msg_id].message for row in rows]
    for index, row in enumerate(rows):
        if row.command_id in edits:
            data = orjson.loads(edits[row.command_id].data)
            messages[index] = {**messages[index], "data": data}
    msg_ids = state.queues.send_batch(queue, messages)
    for ended, msg_id in zip(rows, msg_ids, strict=True):
        row = state.change(
            ended,
            status=CommandStatus.PENDING,
            msg_id=msg_id,
            updated_at=now,
            lapses=0,
            # Without a reset there is still one attempt to use.
            attempts=0 if reset_attempts else min(ended.attempts, ended.max_attempts - 1),
        )
        was_parked = state.parked.pop(row.key, None) is not None
        move_batch_counters(state, row, "tsq" if was_parked else "failed", "open", actor)
        details: dict[str, Any] = {"msg_id": msg_id, "reset_attempts": reset_attempts}
        if row.command_id in edits:
            edit = edits[row.command_id]
            details["edited"] = {
                "previous_msg_id": edit.previous_msg_id,
                "changes": dict(edit.changes),
            }
        state.record(row, AuditEventType.OPERATOR_RETRY, now, details, actor)
    state.wake_workers(domain)
    return rows


def operator_cancel(
    state: State, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
) -> None:
    """End what is parked as CANCELED, with the reply that it did not have yet."""
    for row in _resolve(state, domain, command_ids, CommandStatus.CANCELED, "cancel"):
        publish_cancel(state, row, reason)
        move_batch_counters(state, row, "tsq", "canceled")
        event = AuditEventType.OPERATOR_CANCEL
        state.record(row, event, row.updated_at, {"reason": reason}, actor)


def operator_complete(
    state: State, domain: str, command_ids: Sequence[UUID], *, result: bytes, actor: str | None
) -> None:
    """End what is parked as COMPLETED, with the reply that it did not have yet."""
    data: Any = orjson.loads(result)
    for row in _resolve(state, domain, command_ids, CommandStatus.COMPLETED, "complete"):
        publish_reply(state, row, ReplyOutcome.SUCCESS, row.updated_at, data=data)
        move_batch_counters(state, row, "tsq", "completed")
        state.record(row, AuditEventType.OPERATOR_COMPLETE, row.updated_at, actor=actor)


def cancel_commands(
    state: State, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
) -> None:
    """End what no worker has as CANCELED; a leased command is refused."""
    check_domain(domain)
    rows = _movable(state, domain, command_ids, lambda row: row.is_waiting)
    _refuse_unmoved(state, domain, command_ids, rows, "cancel", "a command that is PENDING")
    for pending in rows:
        now = state.clock.now()
        row = state.change(pending, status=CommandStatus.CANCELED, updated_at=now)
        state.queues.archive(row.queue_name, [row.msg_id])
        publish_cancel(state, row, reason)
        move_batch_counters(state, row, "open", "canceled")
        state.record(row, AuditEventType.CANCELED, now, {"reason": reason}, actor)


def add_note(state: State, domain: str, command_id: UUID, *, text: str, actor: str | None) -> None:
    """Put a remark into the audit of a command."""
    row = state.commands.get((domain, command_id))
    if row is None:
        raise CommandNotFoundError(domain, command_id)
    state.record(row, AuditEventType.NOTE, state.clock.now(), {"text": text}, actor)


def cancel_batch(
    state: State, domain: str, batch_id: UUID, *, reason: str, actor: str | None
) -> int:
    """End what no worker has; what a worker has goes on."""
    require_batch(state, domain, batch_id)
    waiting = [row.command_id for row in rows_of_batch(state, domain, batch_id) if row.is_waiting]
    chosen = waiting[:CANCEL_LIMIT]
    cancel_commands(state, domain, chosen, reason=reason, actor=actor)
    return len(chosen)


def retry_batch(state: State, domain: str, batch_id: UUID, *, actor: str | None) -> int:
    """Send again what failed: the parked and the FAILED ones."""
    require_batch(state, domain, batch_id)
    failed = {CommandStatus.IN_TROUBLESHOOTING_QUEUE, CommandStatus.FAILED}
    rows = [row for row in rows_of_batch(state, domain, batch_id) if row.status in failed]
    return len(_requeue(state, domain, rows, actor=actor, reset_attempts=True, edits={}))


_PARKED = "a command in troubleshooting"


def _is_parked(row: CommandRow) -> bool:
    return row.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE


def _resolve(
    state: State, domain: str, command_ids: Sequence[UUID], status: CommandStatus, verb: str
) -> list[CommandRow]:
    """End all of these parked commands, or none."""
    rows = _movable(state, domain, command_ids, _is_parked)
    _refuse_unmoved(state, domain, command_ids, rows, verb, _PARKED)
    for row in rows:
        del state.parked[row.key]
    return [state.change(row, status=status, updated_at=state.clock.now()) for row in rows]


def _movable(
    state: State, domain: str, command_ids: Sequence[UUID], may_move: Callable[[CommandRow], bool]
) -> list[CommandRow]:
    """Those of the commands that can be moved, in the order of their ids."""
    found = (state.commands.get((domain, command_id)) for command_id in sorted(set(command_ids)))
    return [row for row in found if row is not None and may_move(row)]


def _refuse_unmoved(
    state: State,
    domain: str,
    command_ids: Sequence[UUID],
    moved: Sequence[CommandRow],
    verb: str,
    wanted: str,
) -> None:
    """All or none: raise the error about the first that cannot be moved."""
    for command_id in sorted(set(command_ids) - {row.command_id for row in moved}):
        row = state.commands.get((domain, command_id))
        if row is None:
            raise CommandNotFoundError(domain, command_id)
        standing = row.status.value if row.leased_by is None else "leased by a worker"
        raise InvalidOperationError(
            f"cannot {verb} command {command_id}: it is {standing}, and only {wanted} can be"
        )

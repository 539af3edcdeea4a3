"""Operators: what sql/functions/operator.sql does. All of the ids are moved, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.models import AuditEventType, CommandStatus, Edit, ReplyOutcome
from commandbus.names import check_domain, commands_queue
from commandbus.testing.memory.counters import move_batch_counters
from commandbus.testing.memory.groups import leave_troubleshooting
from commandbus.testing.memory.replies import canceled_error, publish_reply
from commandbus.testing.memory.tables import CommandRow, State

PARKED = "a command in troubleshooting"
PENDING = "a command that is PENDING"


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
    parked = _movable(state, domain, command_ids, _is_parked)
    for row in parked:
        if (
            edits
            and row.command_id in edits
            and edits[row.command_id].previous_msg_id != row.msg_id
        ):
            raise InvalidOperationError(
                f"cannot retry command {row.command_id}: it was sent again since its payload was "
                "read; read the payload again, and edit that"
            )
    moved = requeue_commands(
        state, domain, parked, actor=actor, reset_attempts=reset_attempts, edits=edits or {}
    )
    _refuse_unmoved(state, domain, command_ids, moved, "retry", PARKED)


def requeue_commands(
    state: State,
    domain: str,
    rows: Sequence[CommandRow],
    *,
    actor: str | None,
    reset_attempts: bool,
    edits: Mapping[UUID, Edit] | None = None,
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
    edits = edits or {}
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
        was_parked = leave_troubleshooting(state, row)
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
    """End what is parked as CANCELED, with the reply that was held back."""
    rows = _movable(state, domain, command_ids, _is_parked)
    _refuse_unmoved(state, domain, command_ids, rows, "cancel", PARKED)
    for parked in rows:
        row = _resolve(state, parked, CommandStatus.CANCELED)
        error = canceled_error(reason)
        publish_reply(state, row, ReplyOutcome.CANCELED, row.updated_at, error=error)
        move_batch_counters(state, row, "tsq", "canceled")
        event = AuditEventType.OPERATOR_CANCEL
        state.record(row, event, row.updated_at, {"reason": reason}, actor)


def operator_complete(
    state: State, domain: str, command_ids: Sequence[UUID], *, result: bytes, actor: str | None
) -> None:
    """End what is parked as COMPLETED, with the reply that was held back."""
    data: Any = orjson.loads(result)
    rows = _movable(state, domain, command_ids, _is_parked)
    _refuse_unmoved(state, domain, command_ids, rows, "complete", PARKED)
    for parked in rows:
        row = _resolve(state, parked, CommandStatus.COMPLETED)
        publish_reply(state, row, ReplyOutcome.SUCCESS, row.updated_at, data=data)
        move_batch_counters(state, row, "tsq", "completed")
        state.record(row, AuditEventType.OPERATOR_COMPLETE, row.updated_at, actor=actor)


def cancel_commands(
    state: State, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
) -> list[UUID]:
    """End what nobody works on as CANCELED; a leased command is refused."""
    check_domain(domain)
    rows = _movable(state, domain, command_ids, _is_waiting)
    _refuse_unmoved(state, domain, command_ids, rows, "cancel", PENDING)
    for pending in rows:
        now = state.clock.now()
        row = state.change(pending, status=CommandStatus.CANCELED, updated_at=now)
        state.queues.archive(commands_queue(domain), [row.msg_id])
        publish_reply(state, row, ReplyOutcome.CANCELED, now, error=canceled_error(reason))
        move_batch_counters(state, row, "open", "canceled")
        state.record(row, AuditEventType.CANCELED, now, {"reason": reason}, actor)
    return [row.command_id for row in rows]


def _resolve(state: State, parked: CommandRow, status: CommandStatus) -> CommandRow:
    leave_troubleshooting(state, parked)
    return state.change(parked, status=status, updated_at=state.clock.now())


def _is_parked(row: CommandRow) -> bool:
    return row.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE


def _is_waiting(row: CommandRow) -> bool:
    return row.status is CommandStatus.PENDING and row.leased_by is None


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

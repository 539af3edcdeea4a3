"""The counters of batches: what sql/functions/batches.sql does when a command moves."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import orjson

from commandbus.models import AuditEventType, BatchStatus, NewCommand
from commandbus.names import batches_channel, replies_queue
from commandbus.testing.memory.sending import send_commands
from commandbus.testing.memory.tables import BatchRow, CommandRow, State

#: The classes of states that counters depend on; never whether a command was IN_PROGRESS.
StateClass = Literal["open", "tsq", "completed", "failed", "canceled"]


def start_batch(state: State, row: CommandRow, now: datetime) -> None:
    """The first command of a batch was received."""
    batch = state.batches.get(row.batch_id) if row.batch_id is not None else None
    if batch is None or batch.status is not BatchStatus.PENDING:
        return
    batch = state.change_batch(batch, status=BatchStatus.IN_PROGRESS, started_at=now)
    state.record(batch, AuditEventType.BATCH_STARTED, now)


def move_batch_counters(
    state: State,
    row: CommandRow,
    origin: StateClass,
    target: StateClass,
    actor: str | None = None,
) -> None:
    """Move a command from one class to another; its batch closes if that was the last.

    A batch that was closed, and of which a command is sent again, is open again.
    """
    if row.batch_id is None:
        return
    batch = state.batches[row.batch_id]
    batch = state.change_batch(
        batch,
        completed_count=batch.completed_count + (target == "completed"),
        failed_count=batch.failed_count + (target == "failed") - (origin == "failed"),
        canceled_count=batch.canceled_count + (target == "canceled"),
        in_troubleshooting_count=batch.in_troubleshooting_count
        + (target == "tsq")
        - (origin == "tsq"),
    )
    if batch.is_done and batch.completed_at is None:
        _close(state, batch)
    elif not batch.is_done and batch.completed_at is not None:
        batch = state.change_batch(batch, status=BatchStatus.IN_PROGRESS, completed_at=None)
        state.record(batch, AuditEventType.BATCH_REOPENED, state.clock.now(), actor=actor)


def _close(state: State, batch: BatchRow) -> None:
    now = state.clock.now()
    has_failures = batch.failed_count + batch.canceled_count > 0
    batch = state.change_batch(
        batch,
        status=BatchStatus.COMPLETED_WITH_FAILURES if has_failures else BatchStatus.COMPLETED,
        started_at=batch.started_at or now,
        completed_at=now,
        close_count=batch.close_count + 1,
    )
    details = {
        "status": batch.status.value,
        "total": batch.total_count,
        "completed": batch.completed_count,
        "failed": batch.failed_count,
        "canceled": batch.canceled_count,
    }
    state.record(batch, AuditEventType.BATCH_COMPLETED, now, details)
    if batch.on_complete is not None:
        _send_closing_command(state, batch, orjson.loads(batch.on_complete))
    if batch.notifies:
        state.notices.append(batches_channel(batch.domain))


def _send_closing_command(state: State, batch: BatchRow, asked: dict[str, Any]) -> None:
    domain, reply_to = asked["domain"], asked.get("reply_to")
    command = NewCommand(
        command_type=asked["type"],
        command_id=_closing_command_id(batch),
        data=orjson.dumps(asked.get("data") or {}),
        reply_to=replies_queue(domain) if reply_to is None else reply_to,
        correlation_id=batch.batch_id,
        max_attempts=asked.get("max_attempts") or 3,
    )
    send_commands(state, domain, [command])


def _closing_command_id(batch: BatchRow) -> UUID:
    """Only this closing has it; the next one of the same batch has another."""
    name = f"{batch.batch_id}/{batch.close_count}".encode()
    return UUID(hashlib.md5(name, usedforsecurity=False).hexdigest())

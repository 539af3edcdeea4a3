"""Batches: what sql/functions/batches.sql does, for one command at a time."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from commandbus.errors import BatchNotFoundError, InvalidOperationError
from commandbus.models import AuditEventType, BatchMetadata, BatchStatus
from commandbus.naming import check_domain
from commandbus.testing.memory.tables import CommandRow, State

#: The classes of states that counters depend on; never whether a command was IN_PROGRESS.
StateClass = Literal["open", "tsq", "completed", "failed", "canceled"]


def find_batch(state: State, domain: str, batch_id: UUID) -> BatchMetadata:
    """The batch, if it is one of this domain."""
    batch = state.batches.get(batch_id)
    if batch is None or batch.domain != domain:
        raise BatchNotFoundError(domain, batch_id)
    return batch


def join_batch(state: State, domain: str, batch_id: UUID, count: int) -> None:
    """New commands join a batch, which must not be finished."""
    batch = find_batch(state, domain, batch_id)
    if batch.completed_at is not None:
        raise InvalidOperationError(
            f"batch {batch_id} is finished; create a new batch for further commands"
        )
    state.batches[batch_id] = replace(batch, total_count=batch.total_count + count)


def start_batch(state: State, row: CommandRow, now: datetime) -> None:
    """The first command of a batch was received."""
    batch = state.batches.get(row.batch_id) if row.batch_id is not None else None
    if batch is None or batch.status != BatchStatus.PENDING:
        return
    state.batches[batch.batch_id] = replace(
        batch, status=BatchStatus.IN_PROGRESS.value, started_at=now
    )
    state.add_event(
        batch.domain, batch.batch_id, AuditEventType.BATCH_STARTED, now, None, batch.batch_id
    )


def move_batch_counters(
    state: State, row: CommandRow, origin: StateClass, target: StateClass
) -> None:
    """Move a command from one class to another, and close its batch if that was the last."""
    if row.batch_id is None:
        return
    batch = state.batches[row.batch_id]
    batch = replace(
        batch,
        completed_count=batch.completed_count + (target == "completed"),
        failed_count=batch.failed_count + (target == "failed"),
        canceled_count=batch.canceled_count + (target == "canceled"),
        in_troubleshooting_count=batch.in_troubleshooting_count
        + (target == "tsq")
        - (origin == "tsq"),
    )
    state.batches[batch.batch_id] = batch
    ended = batch.completed_count + batch.failed_count + batch.canceled_count
    if ended == batch.total_count and batch.completed_at is None:
        _close(state, batch)


def _close(state: State, batch: BatchMetadata) -> None:
    now = state.clock.now()
    has_failures = batch.failed_count + batch.canceled_count > 0
    status = BatchStatus.COMPLETED_WITH_FAILURES if has_failures else BatchStatus.COMPLETED
    state.batches[batch.batch_id] = replace(
        batch, status=status.value, started_at=batch.started_at or now, completed_at=now
    )
    state.add_event(
        batch.domain,
        batch.batch_id,
        AuditEventType.BATCH_COMPLETED,
        now,
        {
            "status": status.value,
            "total": batch.total_count,
            "completed": batch.completed_count,
            "failed": batch.failed_count,
            "canceled": batch.canceled_count,
        },
        batch.batch_id,
    )


def new_batch(
    state: State,
    domain: str,
    batch_id: UUID | None,
    name: str | None,
    custom_data: dict[str, Any] | None,
) -> UUID:
    """An empty batch."""
    batch = BatchMetadata(
        batch_id=batch_id or uuid4(),
        domain=check_domain(domain),
        name=name,
        custom_data=copy.deepcopy(custom_data),
        status=BatchStatus.PENDING.value,
        total_count=0,
        completed_count=0,
        failed_count=0,
        canceled_count=0,
        in_troubleshooting_count=0,
        created_at=state.clock.now(),
        started_at=None,
        completed_at=None,
    )
    state.batches[batch.batch_id] = batch
    return batch.batch_id

"""Batches in values: options, progress, how a dispatch or a recovery went."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import add
from typing import Any, TypedDict
from uuid import UUID

from commandbus.models import BatchCommand, BatchCompletionCallback, BatchMetadata
from commandbus.typed.commands import TypedCommand


class DispatchMode(StrEnum):
    """How the rows and the messages of a batch come together."""

    INLINE = "inline"
    TWO_PHASE = "two_phase"
    OPTIMISTIC = "optimistic"


class DispatchStatus(StrEnum):
    """How a dispatch went, in the words of the specification."""

    SUCCESS = "success"
    #: Stored, but not all of it is queued: recovery queues the rest, or somebody canceled it.
    PARTIAL_SUCCESS = "partial_success"
    #: All of it is queued; marking it so failed, and recovery repeats that.
    SUCCESS_WITH_WARNING = "success_with_warning"
    #: Stored, nothing is queued; recovery queues all of it.
    FAILED_NEEDS_RECOVERY = "failed_needs_recovery"


class BatchOptions(TypedDict, total=False):
    """What may be said of a batch at its creation; `CommandBus.create_batch` explains each."""

    name: str | None
    custom_data: dict[str, Any] | None
    on_complete: BatchCompletionCallback | None
    on_complete_command: BatchCommand | TypedCommand | None
    created_by: str | None
    max_attempts: int | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class BatchCancel:
    """How many commands of a batch were canceled, and of how many workers were asked to end."""

    canceled: int = 0
    requested: int = 0


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is. Rate and time left are None until something has ended."""

    total: int
    ended: int
    in_troubleshooting: int
    per_second: float | None
    seconds_left: float | None
    has_ended: bool = False

    @property
    def fraction(self) -> float:
        """From 0 to 1, which is for a batch that has ended: while it is loaded, its total grows."""
        if self.has_ended:
            return 1.0
        return min(self.ended / self.total, 0.99) if self.total else 0.0

    @property
    def open(self) -> int:
        """Commands that workers have still to do."""
        return self.total - self.ended - self.in_troubleshooting


def progress_of(batch: BatchMetadata, now: datetime | None = None) -> BatchProgress:
    """Work out how fast a batch goes and how long it still needs at that rate."""
    ended = batch.completed_count + batch.failed_count + batch.canceled_count
    until = batch.completed_at or now or datetime.now(UTC)
    elapsed = (until - batch.started_at).total_seconds() if batch.started_at else 0.0
    rate = ended / elapsed if ended and elapsed > 0 else None
    open_count = batch.total_count - ended - batch.in_troubleshooting_count
    return BatchProgress(
        total=batch.total_count,
        ended=ended,
        in_troubleshooting=batch.in_troubleshooting_count,
        per_second=rate,
        seconds_left=None if rate is None else open_count / rate,
        has_ended=batch.completed_at is not None,
    )


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """What became of a dispatch. Whatever the status, the batch exists with all its commands."""

    batch_id: UUID
    status: DispatchStatus
    database_tasks: int
    queued_tasks: int
    retry_needed: bool
    error: str | None = None
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the specification prints it: only what is there."""
        return {
            name: str(value) if isinstance(value, DispatchStatus | UUID) else value
            for name, value in asdict(self).items()
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class CreationMetric:
    """How long the creation of a batch took, in the words of the specification."""

    pattern: DispatchMode
    batch_size: int
    db_insert_ms: float
    queue_send_ms: float
    status_update_ms: float
    total_ms: float
    retry_needed: bool


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a round of recovery did. `overdue` of them had waited more than half an hour.

    `unconfirmed` were accepted by a queue in another database, which did not bring them back.
    """

    queued: int = 0
    failed: int = 0
    given_up: int = 0
    overdue: int = 0
    unconfirmed: int = 0

    def __add__(self, other: RecoveryReport) -> RecoveryReport:
        return RecoveryReport(*map(add, astuple(self), astuple(other)))

"""Loads in values: how a row is read, how far a load is, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID


class LoadStart(StrEnum):
    """When the commands of a load are given to workers."""

    SEALED = "sealed"  # once the whole source is in: a bad row half-way has started nothing
    AS_IT_LOADS = "as_it_loads"  # with their checkpoint: the first ones run while the rest loads


class LoadStatus(StrEnum):
    """Where a load stands."""

    LOADING = "loading"  # also when its process was killed: resume it
    SEALED = "sealed"  # everything is in
    CANCELED = "canceled"  # for good: nothing more can be loaded; last_error has the reason
    FAILED = "failed"  # stopped at a row or an error; last_error says why; resume it


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How a row becomes a command.

    With `command_type` or `type_column` a row is the data of its command; with neither it is an
    object with `command_type` (or `type`), `data` and optionally `command_id`.
    """

    command_type: str | None = None
    id_column: str | None = None
    type_column: str | None = None
    #: Between the columns of a CSV file; None: its header tells.
    delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class LoadMetadata:
    """How far a load is, as the database has it."""

    batch_id: UUID
    domain: str
    source: str
    row_format: RowFormat
    start: LoadStart
    status: LoadStatus
    checkpoint_size: int | None
    rows_committed: int
    checkpoints_done: int
    rows_dispatched: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    #: First row and digest of the last checkpoint; 1 and None before there is one.
    last_first_row: int
    last_digest: bytes | None
    #: What holds for all rows that do not say it themselves: deliver_at, priority and the like.
    options: dict[str, Any] | None = None

    @property
    def is_sealed(self) -> bool:
        """All rows are in, so that its batch may end."""
        return self.status is LoadStatus.SEALED

    @property
    def is_open(self) -> bool:
        """More rows may come; it can be resumed, sealed or canceled."""
        return self.status in {LoadStatus.LOADING, LoadStatus.FAILED}

    @property
    def has_failed(self) -> bool:
        """It stopped because of an error, and can be resumed."""
        return self.status is LoadStatus.FAILED


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a running load is. `total` and `seconds_left` are None for a source without length.

    A load that starts when sealed goes through the rows twice: it stores them, then queues them.
    """

    stage: Literal["loading", "dispatching"]
    rows: int
    checkpoints: int
    per_second: float
    total: int | None
    seconds_left: float | None


OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """How a load ended. On partial_success the batch stays open, to be resumed, sealed or canceled.

    `tasks_failed` is the rest of the source if its length is known, else the rows that were read
    for the failed checkpoint. `line` is where in the source the error is, if it is there.
    """

    status: Literal["success", "partial_success"]
    batch_id: UUID
    checkpoints: int
    tasks_committed: int
    failed_checkpoint: int | None = None
    tasks_failed: int = 0
    recovery_possible: bool = False
    error: str | None = None
    line: int | None = None

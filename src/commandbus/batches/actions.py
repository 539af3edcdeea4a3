"""What can be done with a batch now, and what it waits for: decided here, shown by the faces."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from commandbus.batches.model import progress_of
from commandbus.errors import InvalidOperationError
from commandbus.models import BatchMetadata

if TYPE_CHECKING:
    from commandbus.loads.model import LoadMetadata


class BatchAction(StrEnum):
    """What can be done with a batch: each a verb of the command line, HTTP and Python."""

    RESUME = "resume"  # its load: the rest of its source
    SEAL = "seal"  # its load: what is there is the whole
    CANCEL = "cancel"
    RETRY = "retry"


class BatchWait(StrEnum):
    """Why a batch does not end although its workers have nothing to do."""

    LOAD = "load"  # its load is not complete; if the process that loads has ended, resume or end it
    FAILED_LOAD = "failed_load"  # its load stopped; resume, seal or cancel it
    OPERATOR = "operator"  # all that is left is in troubleshooting


def waits_for(batch: BatchMetadata, load: LoadMetadata | None = None) -> BatchWait | None:
    """What has to happen before the batch can end; None: it has ended, or workers are at it."""
    if batch.completed_at is not None:
        return None
    if load is not None and load.is_open:
        return BatchWait.FAILED_LOAD if load.has_failed else BatchWait.LOAD
    if batch.in_troubleshooting_count and progress_of(batch).open == 0:
        return BatchWait.OPERATOR
    return None


@dataclass(frozen=True, slots=True)
class BatchActions:
    """What can be done with a batch. `in_progress` counts commands that a worker has."""

    batch: BatchMetadata
    in_progress: int
    load: LoadMetadata | None = None

    @property
    def allowed(self) -> list[BatchAction]:
        """What would do something now."""
        found = [BatchAction.RESUME, BatchAction.SEAL] if self.is_loading else []
        if self.is_loading or self.cancelable:
            found.append(BatchAction.CANCEL)
        return [*found, BatchAction.RETRY] if self.retryable else found

    @property
    def is_loading(self) -> bool:
        """Its load is not complete, whether a process is at it or not."""
        return self.load is not None and self.load.is_open

    @property
    def cancelable(self) -> int:
        """Commands that a cancel would end: those that are open and that no worker has."""
        if self.batch.completed_at is not None:
            return 0
        return max(progress_of(self.batch).open - self.in_progress, 0)

    @property
    def retryable(self) -> int:
        """Commands that a retry would send again: those that failed or are in troubleshooting."""
        if self.batch.history_since is not None:
            return 0
        return self.batch.failed_count + self.batch.in_troubleshooting_count

    def require_cancelable(self, *, with_running: bool = False) -> None:
        """Raise InvalidOperationError, with the reason, if a cancel would do nothing."""
        batch = self.batch
        if batch.completed_at is not None:
            raise InvalidOperationError(
                f"batch {batch.batch_id} has ended ({batch.status}); there is nothing to cancel"
            )
        if with_running and self.in_progress:
            return
        if self.cancelable == 0 and not self.is_loading:
            raise InvalidOperationError(
                f"batch {batch.batch_id} has nothing to cancel: {progress_of(batch).open:,} "
                f"commands are being worked on, and {batch.in_troubleshooting_count:,} wait in "
                "troubleshooting, where `commandbus tsq cancel` ends them one by one"
            )

    def require_retryable(self) -> None:
        """Raise InvalidOperationError if the batch has ended and a retry would do nothing."""
        batch = self.batch
        if batch.completed_at is not None and self.retryable == 0:
            raise InvalidOperationError(
                f"batch {batch.batch_id} has ended ({batch.status}) and nothing of it failed; what "
                "was canceled is not sent again, create a new batch for it"
            )

"""Batches: many commands created together, counted exactly, ending once."""

from commandbus.batches.actions import BatchAction, BatchActions, BatchWait, waits_for
from commandbus.batches.batch import Batches
from commandbus.batches.model import (
    BatchCancel,
    BatchOptions,
    BatchProgress,
    DispatchMode,
    DispatchResult,
    DispatchStatus,
    RecoveryReport,
    progress_of,
)
from commandbus.batches.queues import MessageQueue

__all__ = [
    "BatchAction",
    "BatchActions",
    "BatchCancel",
    "BatchOptions",
    "BatchProgress",
    "BatchWait",
    "Batches",
    "DispatchMode",
    "DispatchResult",
    "DispatchStatus",
    "MessageQueue",
    "RecoveryReport",
    "progress_of",
    "waits_for",
]

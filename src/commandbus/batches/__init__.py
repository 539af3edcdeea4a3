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
from commandbus.batches.standing import (
    BatchEnding,
    BatchError,
    BatchErrors,
    BatchFacts,
    BatchPace,
    batch_sentence,
    pace_of,
)

__all__ = [
    "BatchAction",
    "BatchActions",
    "BatchCancel",
    "BatchEnding",
    "BatchError",
    "BatchErrors",
    "BatchFacts",
    "BatchOptions",
    "BatchPace",
    "BatchProgress",
    "BatchWait",
    "Batches",
    "DispatchMode",
    "DispatchResult",
    "DispatchStatus",
    "RecoveryReport",
    "batch_sentence",
    "pace_of",
    "progress_of",
    "waits_for",
]

"""Loads: batches of any size, in checkpoints that resume."""

from commandbus.loads.listing import LoadOverview
from commandbus.loads.load import Loads
from commandbus.loads.model import (
    LoadMetadata,
    LoadProgress,
    LoadResult,
    LoadStart,
    LoadStatus,
    RowFormat,
)

__all__ = [
    "LoadMetadata",
    "LoadOverview",
    "LoadProgress",
    "LoadResult",
    "LoadStart",
    "LoadStatus",
    "Loads",
    "RowFormat",
]

"""Medians, spreads and paired ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median with its lowest and highest."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        digits = 0 if self.low >= 100 else 1 if self.low >= 10 else 2
        if self.count == 1:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """The median of what was measured, and its spread."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def paired(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    """Ratios of neighbours: a round in which one of the two failed is left out."""
    return [
        a / b for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None and b
    ]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

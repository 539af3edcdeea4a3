"""Totals: what a worker has ended and not told the database yet. Heartbeats carry it, for rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from commandbus.database.model import Outcome, OutcomeKind

_NAMES = {
    OutcomeKind.COMPLETE: "completed",
    OutcomeKind.FAIL: "failed",
    OutcomeKind.PARK: "parked",
    OutcomeKind.RETRY: "retried",
}


class Totals:
    """Counts of outcomes since the last heartbeat."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, group: Sequence[Outcome], lost: Collection[UUID] = ()) -> None:
        """These were committed, but for those whose lease was lost."""
        if lost:
            group = [each for each in group if each.lease.command_id not in lost]
        # Nearly all outcomes are of one kind, and this runs for each of them.
        others = [each.kind for each in group if each.kind is not OutcomeKind.COMPLETE]
        self._counts["completed"] += len(group) - len(others)
        for kind in others:
            if kind in _NAMES:
                self._counts[_NAMES[kind]] += 1

    def completed_one(self, is_own: bool = True) -> None:
        """One has ended without an outcome; `is_own`: its handler's transaction completed it."""
        self._counts["completed"] += is_own

    def take(self) -> dict[str, int]:
        """What a heartbeat says; the next one begins at 0."""
        taken, self._counts = self._counts, Counter()
        return {name: count for name, count in taken.items() if count}

    def give_back(self, taken: Mapping[str, Any]) -> None:
        """That heartbeat did not arrive."""
        self._counts.update({name: taken[name] for name in _NAMES.values() if name in taken})

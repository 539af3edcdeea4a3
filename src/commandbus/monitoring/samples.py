"""Samples: what was measured, at one moment, in a form that can be added up, sent and printed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from commandbus.monitoring.catalogue import FAMILIES, Family

#: The values of the labels of a family, in its order.
Labels = tuple[str, ...]


class Histogram:
    """Counts of observations by their size."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        #: One more than there are bounds: the last is for what is above all of them.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def sample(self) -> list[float]:
        """The counts, then the sum of all values."""
        return [*self.counts, self.total]


#: A number, or of a histogram its counts and its sum.
Value = float | list[float]


class Snapshot:
    """All series of one moment."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Labels], Value] = {}

    def __iter__(self) -> Iterator[tuple[Family, Labels, Value]]:
        """Those of one family together, in the order of the catalogue."""
        order = {name: number for number, name in enumerate(FAMILIES)}
        for name, labels in sorted(self._series, key=lambda key: (order[key[0]], key[1])):
            yield FAMILIES[name], labels, self._series[name, labels]

    def add(self, family: Family, labels: Labels, value: Value) -> None:
        """Add to a series: the sum, or the highest if that is how the family is put together."""
        key = (family.name, labels)
        known = self._series.get(key)
        if known is None:
            self._series[key] = value
        elif isinstance(known, list) and isinstance(value, list):
            self._series[key] = [a + b for a, b in zip(known, value, strict=True)]
        elif not isinstance(known, list) and not isinstance(value, list):
            self._series[key] = max(known, value) if family.merge == "max" else known + value

    def add_all(self, other: Snapshot, *, only_growing: bool = False) -> None:
        """Add another one; `only_growing`: not its gauges."""
        for family, labels, value in other:
            if family.kind != "gauge" or not only_growing:
                self.add(family, labels, value)

    def get(self, family: Family, *labels: str) -> Value | None:
        """One series, or None."""
        return self._series.get((family.name, labels))

    # -- on their way to another process

    def document(self) -> list[Any]:
        """As JSON can have it."""
        return [[name, labels, value] for (name, labels), value in self._series.items()]

    @classmethod
    def of_document(cls, document: Iterable[Any]) -> Snapshot:
        """What `document` made; a family that is not known here is left out."""
        made = cls()
        for name, labels, value in document:
            if name in FAMILIES:
                made.add(FAMILIES[name], tuple(labels), value)
        return made


class Totals:
    """The sum of what several processes report. What one has counted stays when it ends: a counter
    that goes down looks like a restart, and like a burst of everything that was counted before.
    """

    def __init__(self) -> None:
        self._ended = Snapshot()
        self._last: dict[object, Snapshot] = {}

    def report(self, key: object, snapshot: Snapshot) -> None:
        """What this process says now, in place of what it said before."""
        self._last[key] = snapshot

    def end(self, key: object) -> None:
        """This process has ended: its counters stay, its gauges go."""
        last = self._last.pop(key, None)
        if last is not None:
            self._ended.add_all(last, only_growing=True)

    def sum(self) -> Snapshot:
        """All of them together."""
        total = Snapshot()
        total.add_all(self._ended)
        for snapshot in self._last.values():
            total.add_all(snapshot)
        return total

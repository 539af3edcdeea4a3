"""Samples: what was measured, at one moment, in a form that can be added up and printed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

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

    def observe(self, value: float, count: int = 1) -> None:
        """Count one value, once or more often."""
        self.counts[bisect_left(self._bounds, value)] += count
        self.total += value * count

    def observe_all(self, values: list[float]) -> None:
        """Count many, which are sorted for that: to look for each bound costs less."""
        values.sort()
        below = 0
        for number, bound in enumerate(self._bounds):
            here = bisect_right(values, bound, below)
            self.counts[number] += here - below
            below = here
            if below == len(values):
                break
        self.counts[-1] += len(values) - below
        self.total += sum(values)

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

    def __len__(self) -> int:
        """How many series there are."""
        return len(self._series)

    def join(self, other: Snapshot, *, counters_only: bool = False) -> None:
        """Add all of another, or what is counted and does not end with the process alone."""
        for (name, labels), value in other._series.items():
            family = FAMILIES[name]
            if not (counters_only and family.kind == "gauge"):
                self.add(family, labels, value)

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

    def get(self, family: Family, *labels: str) -> Value | None:
        """One series, or None."""
        return self._series.get((family.name, labels))

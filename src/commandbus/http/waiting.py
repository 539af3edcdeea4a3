"""Long polls: `Prefer: wait=N` (RFC 7240), and so many of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from commandbus.http.problems import unavailable

_WAIT = re.compile(r"(?:\A|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?", re.I)


def wait_of(prefer: str | None, longest: float) -> float:
    """The seconds that a client wants to wait, cut to what it may; 0: not at all."""
    match = _WAIT.search(prefer or "")
    return 0.0 if match is None else min(float(match[1]), longest)


class LongPolls:
    """Places for requests that wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for the length of a block; 503 if there is none."""
        if self.held >= self._limit:
            raise unavailable(f"{self._limit} requests are waiting already; ask without waiting")
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

"""Event logs: one append-only file for each process, one JSON document in a line.

Each line goes to the kernel before the process goes on, so that a kill loses nothing that was
said. Times are those of the database's clock, carried over by the monotonic one, which all
processes of a machine share: the wall clock of a worker may be wrong on purpose.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg


def clock_difference(dsn: str) -> float:
    """Seconds from the monotonic clock of this machine to the clock of the database."""
    best: tuple[float, float] | None = None
    with psycopg.connect(dsn, autocommit=True) as conn:
        for _ in range(5):
            began = time.monotonic()
            row = conn.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
            took = time.monotonic() - began
            assert row is not None
            # The quickest answer is the most exact one.
            if best is None or took < best[0]:
                best = (took, row[0] - (began + took / 2))
    assert best is not None
    return best[1]


class EventLog:
    """The log of this process."""

    def __init__(self, path: Path, clock: float) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._clock = clock
        self._pid = os.getpid()

    def now(self) -> float:
        """The time of the database, in seconds."""
        return time.monotonic() + self._clock

    def write(self, event: str, **details: Any) -> float:
        """Append one event; returns its time."""
        at = self.now()
        line = {"event": event, "pid": self._pid, "at": at, "mono": time.monotonic(), **details}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        return at

    def close(self) -> None:
        """Nothing more will be said."""
        os.close(self._descriptor)


def read_logs(folder: Path) -> Iterator[dict[str, Any]]:
    """All events of all processes; a last line that a kill has cut is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)

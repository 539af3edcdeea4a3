"""Counts: what a process has counted since it told the database, added there with a heartbeat.

Nothing is done for a command: the metrics of the process are compared with what was told.
"""

from __future__ import annotations

import asyncio
from typing import Any, LiteralString

from commandbus.database import encoding
from commandbus.database.store import Store
from commandbus.monitoring.metrics import Metrics

_ADD: LiteralString = "select {schema}.add_worker_counts(cast(%s as jsonb))"


class Counts:
    """What the metrics of one process have gained."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._lock = asyncio.Lock()

    async def tell(self, store: Store) -> None:
        """Add it to the database; what does not arrive is told the next time.

        A commit whose answer was lost is told twice: a counter that is a little too high.
        """
        if not store.has_gateway:
            return  # in memory nobody reads it
        async with self._lock:
            now = self._metrics.totals()
            if items := self._gained(now):
                await store.gateway.rows(_ADD, (encoding.dump(items),))
                self._told = now

    def _gained(self, now: dict[tuple[str, str, str], tuple[int, float]]) -> list[dict[str, Any]]:
        items = []
        for key, (count, seconds) in now.items():
            before = self._told.get(key, (0, 0.0))
            if count > before[0]:
                domain, command_type, outcome = key
                items.append(
                    {
                        "domain": domain,
                        "command_type": command_type,
                        "outcome": outcome,
                        "count": count - before[0],
                        "seconds": max(seconds - before[1], 0.0),
                    }
                )
        return items

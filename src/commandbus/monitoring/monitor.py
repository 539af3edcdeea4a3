"""Monitor: the metrics and the health of one process, and the turns of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from commandbus.monitoring.catalogue import LOOP_LAG, Family
from commandbus.monitoring.health import TICK_SECONDS, Health
from commandbus.monitoring.metrics import Metrics
from commandbus.monitoring.samples import Labels, Value


class Monitor:
    """What a process tells of itself."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.health = Health()
        self.metrics.collect(self._lag)

    def _lag(self) -> Iterator[tuple[Family, Labels, Value]]:
        yield LOOP_LAG, (), self.health.loop_lag

    async def watch_loop(self) -> None:
        """Note the turns of this event loop until cancelled."""
        self.health.begin()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.health.tick()

"""Monitor: the metrics and the health of one process, and the turns of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from commandbus.monitoring.catalogue import LOOP_LAG, Family
from commandbus.monitoring.health import TICK_SECONDS, Health
from commandbus.monitoring.metrics import Metrics
from commandbus.monitoring.samples import Labels, Value
from commandbus.monitoring.server import Pages


class Monitor:
    """What a process tells of itself."""

    def __init__(self) -> None:
        #: Whether workers add what they have counted to the database, with their heartbeats.
        self.tells_counts = False
        self.metrics = Metrics()
        self.health = Health()
        self.metrics.collect(self._lag)

    def _lag(self) -> Iterator[tuple[Family, Labels, Value]]:
        yield LOOP_LAG, (), self.health.loop_lag

    def pages(self) -> Pages:
        """What a server shows of it."""
        health = self.health
        checks = {
            "/livez": health.not_live,
            "/readyz": health.not_ready,
            "/startupz": health.not_started,
        }
        return Pages(self.metrics.text, checks)

    async def watch_loop(self) -> None:
        """Note the turns of this event loop until cancelled."""
        self.health.begin()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.health.tick()

"""Scheduler: a process without handlers that fires schedules and does the chores of workers."""

from __future__ import annotations

import asyncio
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.loops import Loop
from commandbus.schedules.keepers import keepers_of
from commandbus.settings import Settings
from commandbus.worker.maintenance import Maintenance

#: Seconds between two looks for domains that are new.
DOMAINS_SECONDS = 30.0
#: Connections: one fires while the other does a chore.
POOL_SIZE = 2

_DOMAINS: LiteralString = "select * from {schema}.doctor_domains(null)"


class Scheduler(Loop):
    """Runs the loops, and keeps the list of domains that maintenance looks after."""

    name = "scheduler"

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__()
        self._store = store
        self._settings = settings
        self._domains: list[str] = []

    async def step(self) -> float | None:
        """Look which domains there are."""
        self._domains = [domain for (domain,) in await self._store.gateway.rows(_DOMAINS)]
        return DOMAINS_SECONDS

    async def serve(self) -> None:
        """Run until it is cancelled."""
        async with self._store.dedicated("control", POOL_SIZE) as control:
            chores = Maintenance(control, lambda: self._domains, self._settings)
            loops = (self, *keepers_of(control), chores)
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop.run())

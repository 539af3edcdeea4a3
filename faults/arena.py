"""The arena: the server, the fleet of workers and the log, as the nemeses see them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from faults.facts_flow import FlowFacts
from faults.logs import EventLog
from faults.nursery import Nursery
from faults.proxy import Proxy
from faults.servers import Pair, Server
from faults.sites import Site

DOMAIN = "storm"
PATIENCE_SECONDS = 30.0


class Nemesis(Protocol):
    """Somebody who breaks things, by a schedule that the seed decides."""

    @property
    def name(self) -> str:
        """Its random numbers depend on the seed and on this."""

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Break things until the quota is reached."""

    async def heal(self, arena: Arena) -> None:
        """Leave everything as it was found."""


class Watcher(Protocol):
    """Somebody who looks on, or decides, beside the faults."""

    @property
    def name(self) -> str:
        """Its random numbers depend on the seed and on this."""

    async def watch(self, arena: Arena, chance: random.Random) -> None:
        """Until it is cancelled. While the database is away it raises, and is called again."""


class Fleet:
    """Worker processes: as many as wanted, replaced when they die."""

    def __init__(self, nursery: Nursery, config: dict[str, Any], wanted: int) -> None:
        self._nursery = nursery
        self._config = config
        self._wanted = wanted
        self._is_closed = False
        self._keepers: set[asyncio.Task[None]] = set()
        self.alive: set[int] = set()
        self.paused: set[int] = set()
        self.hired = 0

    async def start(self) -> None:
        """Hire all."""
        for _ in range(self._wanted):
            await self.hire()

    async def hire(self) -> int:
        """One more worker; when it dies another takes its place."""
        options = self._config
        # With several variants the workers take turns.
        if variants := options.get("variants"):
            options = {**options, **variants[self.hired % len(variants)]}
        pid = await self._nursery.fork(options)
        self.hired += 1
        self.alive.add(pid)
        keeper = asyncio.create_task(self._keep(pid))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)
        return pid

    async def _keep(self, pid: int) -> None:
        await asyncio.shield(self._nursery.exit_of(pid))
        self.alive.discard(pid)
        self.paused.discard(pid)
        if not self._is_closed and len(self.alive) < self._wanted:
            await self.hire()

    def pick(self, chance: random.Random) -> int | None:
        """Some worker that runs."""
        running = sorted(self.alive - self.paused)
        return chance.choice(running) if running else None

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal one of them; one that is gone is not an error."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    async def exit_of(self, pid: int, timeout_seconds: float) -> int | None:
        """How a worker ended; None if it did not."""
        with suppress(TimeoutError):
            exit_of = asyncio.shield(self._nursery.exit_of(pid))
            return await asyncio.wait_for(exit_of, timeout_seconds)
        return None

    async def stop(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """SIGTERM to all; returns how many had to be killed."""
        self._is_closed = True
        stubborn = 0
        pids = sorted(self.alive)
        for pid in pids:
            self.signal(pid, signal.SIGCONT)
            self.signal(pid, signal.SIGTERM)
        for pid in pids:
            if await self.exit_of(pid, patience_seconds) is None:
                stubborn += 1
                self.signal(pid, signal.SIGKILL)
                await self.exit_of(pid, PATIENCE_SECONDS)
        for keeper in list(self._keepers):
            keeper.cancel()
        return stubborn


@dataclass
class Arena:
    """Everything a nemesis can lay hands on."""

    seed: str
    log: EventLog
    log_folder: Path
    nursery: Nursery
    fleet: Fleet
    #: What the parties connect to; through the proxy or the pooler, if there is one.
    dsn: str
    #: The database itself, past them.
    direct_dsn: Callable[[], str]
    superuser_dsn: Callable[[], str]
    vt_seconds: int
    site: Site
    server: Server | None = None
    pair: Pair | None = None
    proxy: Proxy | None = None
    #: What has happened how often, by name; part of the report.
    counts: Counter[str] = field(default_factory=Counter)
    #: The largest value of something, by name.
    peaks: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: What nemeses and watchers saw of limits, keys, pauses and schedules.
    flow: FlowFacts = field(default_factory=FlowFacts)

    def tell_death(self, pid: int, kind: str) -> None:
        """Write down that a worker was killed or paused."""
        self.log.write("death", pid=pid, kind=kind)

    def tell_outage(self, began: float, ready: float) -> None:
        """Write down an outage, from monotonic times."""
        shift = self.log.now() - time.monotonic()
        self.log.write("outage", began=began + shift, ready=ready + shift)
        self.counts["outages"] += 1

    def peak(self, name: str, value: float) -> None:
        """Keep the largest."""
        self.peaks[name] = max(value, self.peaks.get(name, 0.0))

    async def query(self, text: str, *params: object) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        async with await psycopg.AsyncConnection.connect(
            self.direct_dsn(), autocommit=True
        ) as conn:
            cursor = await conn.execute(text.encode(), params or None)
            return await cursor.fetchall() if cursor.description else []

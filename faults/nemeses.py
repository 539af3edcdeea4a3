"""Nemeses of processes and of the database: kills, pauses, restarts, failovers, ended sessions."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass

import psycopg

from faults.arena import Arena

#: A worker that is told to stop may take its grace and this.
STOP_MARGIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """SIGKILL a worker, again and again; the fleet replaces it."""

    kills: int
    pace: tuple[float, float] = (1.0, 4.0)
    name: str = "kill workers"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Kill as many as wanted."""
        for _ in range(self.kills):
            await asyncio.sleep(chance.uniform(*self.pace))
            pid = arena.fleet.pick(chance)
            if pid is not None:
                arena.tell_death(pid, "kill")
                arena.fleet.signal(pid, signal.SIGKILL)
                arena.counts["worker_kills"] += 1

    async def heal(self, arena: Arena) -> None:
        """The fleet has replaced them."""


@dataclass(frozen=True, slots=True)
class PauseWorkers:
    """SIGSTOP workers for twice their lease, then SIGCONT: they wake up as zombies."""

    rounds: int
    at_once: int = 2
    pace: tuple[float, float] = (0.5, 1.5)
    name: str = "pause workers"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Pause some, wait until others have their commands, and let them go on."""
        for _ in range(self.rounds):
            await asyncio.sleep(chance.uniform(*self.pace))
            victims = []
            for _ in range(self.at_once):
                pid = arena.fleet.pick(chance)
                if pid is not None:
                    arena.tell_death(pid, "pause")
                    arena.fleet.signal(pid, signal.SIGSTOP)
                    arena.fleet.paused.add(pid)
                    arena.counts["worker_pauses"] += 1
                    victims.append(pid)
            await asyncio.sleep(2 * arena.vt_seconds)
            for pid in victims:
                arena.fleet.signal(pid, signal.SIGCONT)
                arena.fleet.paused.discard(pid)

    async def heal(self, arena: Arena) -> None:
        """Resume every process that is still paused."""
        for pid in list(arena.fleet.paused):
            arena.fleet.signal(pid, signal.SIGCONT)
        arena.fleet.paused.clear()


@dataclass(frozen=True, slots=True)
class RollingTerm:
    """Stop workers gracefully, one by one; now and then with a second signal, or SIGINT."""

    stops: int
    grace_seconds: float
    pace: tuple[float, float] = (0.3, 1.0)
    name: str = "rolling stops"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Stop, and see that it ends in time."""
        for _ in range(self.stops):
            await asyncio.sleep(chance.uniform(*self.pace))
            pid = arena.fleet.pick(chance)
            if pid is None:
                continue
            number = chance.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
            began = time.monotonic()
            arena.fleet.signal(pid, number)
            if chance.random() < 0.3:
                await asyncio.sleep(0.01)
                arena.fleet.signal(pid, number)
            status = await arena.fleet.exit_of(pid, self.grace_seconds + 10)
            arena.counts["worker_stops"] += 1
            arena.counts["bad_stops"] += status != 0
            arena.peak("stop_seconds", time.monotonic() - began)

    async def heal(self, arena: Arena) -> None:
        """The fleet has replaced them."""


@dataclass(frozen=True, slots=True)
class KillPostmaster:
    """SIGKILL the server with all its children, and start it again, as after a crash."""

    kills: int
    pace: tuple[float, float] = (2.0, 4.0)
    #: What is done to the pid file in between: nothing, "truncate" or "foreign".
    mischief: tuple[str, ...] = ("",)
    #: Seconds that it stays away before it is started again.
    down_seconds: tuple[float, float] = (0.0, 0.0)
    name: str = "kill postmaster"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Crash and recover as often as wanted."""
        assert arena.server is not None
        for number in range(self.kills):
            await asyncio.sleep(chance.uniform(*self.pace))
            began = time.monotonic()
            await asyncio.to_thread(arena.server.kill)
            await self._meddle(arena, self.mischief[number % len(self.mischief)])
            await asyncio.sleep(chance.uniform(*self.down_seconds))
            await asyncio.to_thread(arena.server.start)
            ready = time.monotonic()
            arena.counts["postmaster_kills"] += 1
            arena.peak("recovery_seconds", ready - began)
            arena.tell_outage(began, ready)

    async def _meddle(self, arena: Arena, mischief: str) -> None:
        assert arena.server is not None
        pid_file = arena.server.folder / "cluster" / "postmaster.pid"
        if mischief == "truncate":
            pid_file.write_text("")
        elif mischief == "foreign" and pid_file.exists():
            # A pid that lives, but is somebody else: this very process.
            lines = pid_file.read_text().splitlines()
            lines[0] = str(os.getpid())
            pid_file.write_text("\n".join(lines) + "\n")

    async def heal(self, arena: Arena) -> None:
        """See that it runs."""
        assert arena.server is not None
        await asyncio.to_thread(arena.server.start)


@dataclass(frozen=True, slots=True)
class Failover:
    """Kill the primary, promote the standby, give it a new standby."""

    rounds: int
    pace: tuple[float, float] = (1.5, 3.0)
    name: str = "failover"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Fail over as often as wanted."""
        assert arena.pair is not None
        for number in range(self.rounds):
            await asyncio.sleep(chance.uniform(*self.pace))
            began, ready = await asyncio.to_thread(arena.pair.fail_over)
            arena.counts["failovers"] += 1
            arena.peak("promotion_seconds", ready - began)
            arena.tell_outage(began, ready)
            if number + 1 < self.rounds:
                await asyncio.to_thread(arena.pair.add_standby)

    async def heal(self, arena: Arena) -> None:
        """The last primary stays alone."""


@dataclass(frozen=True, slots=True)
class KillBackends:
    """pg_terminate_backend on random sessions of the database."""

    kills: int
    pace: tuple[float, float] = (0.1, 0.3)
    name: str = "kill backends"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """End one session after the other."""
        async with await psycopg.AsyncConnection.connect(
            arena.superuser_dsn(), autocommit=True
        ) as conn:
            for _ in range(self.kills):
                await asyncio.sleep(chance.uniform(*self.pace))
                cursor = await conn.execute(
                    "select pid from pg_stat_activity where datname = current_database()"
                    " and backend_type = 'client backend' and pid <> pg_backend_pid()"
                    " and application_name <> 'faults' order by pid"
                )
                pids = [row[0] for row in await cursor.fetchall()]
                if pids:
                    await conn.execute("select pg_terminate_backend(%s)", (chance.choice(pids),))
                    arena.counts["backend_kills"] += 1

    async def heal(self, arena: Arena) -> None:
        """Everybody reconnects by himself."""


@dataclass(frozen=True, slots=True)
class HoldPool:
    """Open connections that do nothing and hold their places."""

    connections: int = 300
    seconds: float = 5.0
    name: str = "hold the pool"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Open, wait, close."""
        held = []
        try:
            for _ in range(self.connections):
                held.append(  # noqa: PERF401  (what is open must be closed, whatever happens)
                    await psycopg.AsyncConnection.connect(arena.direct_dsn(), autocommit=True)
                )
            arena.counts["held_connections"] += len(held)
            await asyncio.sleep(self.seconds)
        finally:
            for conn in held:
                await conn.close()

    async def heal(self, arena: Arena) -> None:
        """They are closed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """No fault: the load itself is the trouble."""

    seconds: float
    name: str = "wait"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Let time pass."""
        await asyncio.sleep(self.seconds)

    async def heal(self, arena: Arena) -> None:
        """Nothing to heal."""

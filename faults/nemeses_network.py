"""Nemeses of the network: what can happen between a client and the server."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace

from faults.arena import Arena
from faults.proxy import Weather


@dataclass(frozen=True, slots=True)
class CutCommits:
    """Cut lines right after a commit, before the client hears of it, until there were enough."""

    cuts: int
    chance_of_cut: float = 0.3
    patience_seconds: float = 300.0
    name: str = "cut commits"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Let the proxy cut."""
        assert arena.proxy is not None
        deadline = time.monotonic() + self.patience_seconds
        arena.proxy.weather = replace(arena.proxy.weather, cut_commits=self.chance_of_cut)
        began = arena.proxy.cuts
        while arena.proxy.cuts - began < self.cuts and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        arena.counts["cut_commits"] += arena.proxy.cuts - began

    async def heal(self, arena: Arena) -> None:
        """Cut no more."""
        assert arena.proxy is not None
        arena.proxy.weather = Weather()


@dataclass(frozen=True, slots=True)
class BadWeather:
    """Silence, resets, delay, dripping, half-closed lines, one after the other."""

    #: (kind, seconds): silence, deaf, mute, reset, slow, drip, half_close.
    spells: tuple[tuple[str, float], ...]
    #: Calm between two spells.
    pause_seconds: float = 2.0
    name: str = "bad weather"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """All spells, in an order that the seed decides."""
        assert arena.proxy is not None
        for kind, seconds in chance.sample(self.spells, len(self.spells)):
            began = time.monotonic()
            arena.counts[f"spell_{kind}"] += 1
            arena.log.write("spell", kind=kind, seconds=seconds)
            await self._spell(arena, kind, seconds, chance)
            arena.proxy.weather = Weather()
            if kind in {"silence", "deaf", "mute"}:
                # What was held may come after all, or the line is dead.
                arena.proxy.reset_all(chance.choice([0.0, 0.5, 1.0]))
                arena.tell_outage(began, time.monotonic())
            await asyncio.sleep(self.pause_seconds)

    async def _spell(self, arena: Arena, kind: str, seconds: float, chance: random.Random) -> None:
        assert arena.proxy is not None
        if kind == "reset":
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                arena.counts["connections_reset"] += arena.proxy.reset_all(0.3)
                await asyncio.sleep(chance.uniform(0.2, 0.5))
            return
        if kind == "half_close":
            arena.counts["connections_half_closed"] += arena.proxy.half_close_all()
        arena.proxy.weather = {
            "silence": Weather(silent=frozenset({"up", "down"})),
            "deaf": Weather(silent=frozenset({"up"})),
            "mute": Weather(silent=frozenset({"down"})),
            "slow": Weather(latency=(0.1, 0.3)),
            "drip": Weather(drip=1024),
            "half_close": Weather(),
        }[kind]
        await asyncio.sleep(seconds)

    async def heal(self, arena: Arena) -> None:
        """The sun comes out."""
        assert arena.proxy is not None
        arena.proxy.weather = Weather()

"""Nemeses of time and flow: pauses, cancels of what runs, schedules while workers die."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

from commandbus import CommandBus, CommandBusError, Settings
from faults.arena import DOMAIN, Arena, Nemesis
from faults.facts_flow import PauseSeen

#: What was leased and not started must be back by then.
BACK_SECONDS = 2.0
NOW = "select extract(epoch from clock_timestamp())::float8"
HELD = (
    "select command_id::text, lease_epoch from commandbus.command_bus_command"
    " where domain = %s and leased_by is not null and command_type = coalesce(%s, command_type)"
)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several nemeses, one after the other."""

    nemeses: tuple[Nemesis, ...]
    name: str = "in turn"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Each to its end."""
        for nemesis in self.nemeses:
            await nemesis.rage(arena, chance)

    async def heal(self, arena: Arena) -> None:
        """Each heals what it has broken."""
        for nemesis in self.nemeses:
            await nemesis.heal(arena)


@dataclass(frozen=True, slots=True)
class WaitForCommands:
    """No fault: goes on until there are that many commands."""

    number: int
    patience_seconds: float
    name: str = "wait for commands"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Count them now and then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience_seconds):
                while arena.counts["commands_sent"] < self.number:
                    await asyncio.sleep(1.0)
                    [(number,)] = await arena.query(
                        "select count(*) from commandbus.command_bus_command"
                    )
                    arena.counts["commands_sent"] = number

    async def heal(self, arena: Arena) -> None:
        """Nothing to heal."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses the domain, or a type, in the middle of the work, and resumes it."""

    rounds: int
    #: Types that are paused in turn; None: the domain.
    types: tuple[str | None, ...] = (None,)
    #: Work between two pauses, in seconds.
    pace: tuple[float, float] = (0.3, 1.0)
    name: str = "pauses"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Pause, look what is still leased two seconds later, resume."""
        settings = Settings(maintenance=False)
        async with CommandBus.connect(arena.direct_dsn(), settings=settings) as bus:
            for number in range(self.rounds):
                await asyncio.sleep(chance.uniform(*self.pace))
                kind = self.types[number % len(self.types)]
                await bus.pause(DOMAIN, type=kind, reason="a fault run", operator="harness")
                [(committed,)] = await arena.query(NOW)
                await asyncio.sleep(BACK_SECONDS)
                held = await arena.query(HELD, DOMAIN, kind)
                [(held_at,)] = await arena.query(NOW)
                [(resuming,)] = await arena.query(NOW)
                await bus.resume(DOMAIN, type=kind, operator="harness")
                arena.flow.pauses.append(
                    PauseSeen(committed, resuming, kind, [(i, e) for i, e in held], held_at)
                )
                arena.counts["pauses"] += 1
                arena.peak("still_leased_after_pause", len(held))

    async def heal(self, arena: Arena) -> None:
        """The last one was resumed, unless something went wrong in between."""
        settings = Settings(maintenance=False)
        async with CommandBus.connect(arena.direct_dsn(), settings=settings) as bus:
            for kind in self.types:
                await bus.resume(DOMAIN, type=kind, operator="harness")


@dataclass(frozen=True, slots=True)
class CancelRunning:
    """Asks for the end of commands that workers have, at any moment of their lives."""

    requests: int
    patience_seconds: float = 120.0
    name: str = "cancel running"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Some of what is leased, again and again."""
        settings = Settings(maintenance=False)
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self.patience_seconds),
                CommandBus.connect(arena.direct_dsn(), settings=settings) as bus,
            ):
                while arena.counts["cancel_requests"] < self.requests:
                    await self._ask(arena, bus, chance)
                    await asyncio.sleep(chance.uniform(0.01, 0.1))

    async def _ask(self, arena: Arena, bus: CommandBus, chance: random.Random) -> None:
        running = await arena.query(
            "select command_id from commandbus.command_bus_command"
            " where domain = %s and leased_by is not null and cancel_requested_at is null"
            " order by command_id limit 50", DOMAIN,
        )  # fmt: skip
        for (command_id,) in chance.sample(running, min(len(running), 4)):
            with suppress(CommandBusError):  # it has ended since
                answer = await bus.cancel(
                    DOMAIN, command_id, "a fault run", running="request", operator="harness"
                )
                arena.counts[f"cancels_{answer}"] += 1
                arena.counts["cancel_requests"] += 1

    async def heal(self, arena: Arena) -> None:
        """They end by themselves."""
        ends = await arena.query(
            "select status, count(*) from commandbus.command_bus_command"
            " where cancel_requested_at is not null group by 1"
        )
        for status, number in ends:
            arena.counts[f"asked_and_{status.lower()}"] += number

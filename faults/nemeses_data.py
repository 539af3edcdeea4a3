"""Nemeses of data and people: poison, clocks, old snapshots, operators, crossing senders."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg

from commandbus import BatchCommand, CommandBus, CommandBusError, Settings
from faults.arena import DOMAIN, Arena

#: Numbers and depths that jsonb takes and Python does not.
UNREADABLE = ('{"n": 1e5000}', '{"deep": ' + "[" * 6000 + "]" * 6000 + "}")
#: Messages that are no commands at all.
RUBBISH = ('"text"', "{}", '{"command_id": 5}', '{"command_id": "x"}', "[1, 2]", "null")


@dataclass(frozen=True, slots=True)
class Poison:
    """Commands that kill or break their worker, and rows put straight into the queue."""

    kills: int
    memory: int = 1
    recursion: int = 1
    patience_seconds: float = 120.0
    name: str = "poison"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Send all of it, and wait until it is parked."""
        kinds = ["kill"] * self.kills + ["memory"] * self.memory + ["recursion"] * self.recursion
        chance.shuffle(kinds)
        poisoned: list[UUID] = []
        async with CommandBus.connect(arena.dsn, settings=Settings(maintenance=False)) as bus:
            for kind in kinds:
                command_id = UUID(int=chance.getrandbits(128), version=4)
                await bus.send(DOMAIN, "Poison", command_id, {"how": kind}, max_attempts=3)
                arena.log.write("send", ids=[str(command_id)], outcome="ok")
                poisoned.append(command_id)
                await asyncio.sleep(chance.uniform(0.1, 0.5))
        for text in UNREADABLE:
            command_id = UUID(int=chance.getrandbits(128), version=4)
            await arena.query(
                "select commandbus.send_command(%s, 'Work', %s, %s::jsonb)",
                DOMAIN,
                command_id,
                text,
            )
            arena.log.write("send", ids=[str(command_id)], outcome="ok")
            poisoned.append(command_id)
        for text in RUBBISH:
            await arena.query(
                "select commandbus.put_messages(%s, array[%s::jsonb])", f"{DOMAIN}.commands", text
            )
        arena.counts["poison"] += len(poisoned)
        await self._wait_for(arena, poisoned)

    async def _wait_for(self, arena: Arena, poisoned: list[UUID]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience_seconds):
                while True:
                    row = await arena.query(
                        "select count(*), max(c.lease_epoch) from commandbus.command_bus_command c"
                        " where c.domain = %s and c.command_id = any(%s)"
                        " and c.status = 'IN_TROUBLESHOOTING_QUEUE'",
                        DOMAIN, poisoned,
                    )  # fmt: skip
                    if row[0][0] == len(poisoned):
                        break
                    await asyncio.sleep(0.1)
        arena.counts["poison_parked"] += row[0][0]

    async def heal(self, arena: Arena) -> None:
        """It is parked, and stays so."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Handlers that hang, on the event loop and in threads: always `at_once` of them."""

    rounds: int
    at_once: int = 8
    #: So long each keeps its slot; see working.register_hung.
    seconds: float = 7.0
    name: str = "hang"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Send them anew whenever the last ones have timed out."""
        kinds = ("Hang", "HangOn", "HangThread")
        hung: list[UUID] = []
        async with CommandBus.connect(arena.dsn, settings=Settings(maintenance=False)) as bus:
            for _ in range(self.rounds):
                for number in range(self.at_once):
                    command_id = UUID(int=chance.getrandbits(128), version=4)
                    kind = kinds[number % len(kinds)]
                    await bus.send(DOMAIN, kind, command_id, {}, max_attempts=1)
                    arena.log.write("send", ids=[str(command_id)], outcome="ok")
                    hung.append(command_id)
                await asyncio.sleep(self.seconds)
        arena.counts["hung"] += len(hung)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while await self._timed_out(arena, hung) < len(hung):
                    await asyncio.sleep(0.1)
        arena.counts["timed_out"] += await self._timed_out(arena, hung)

    async def _timed_out(self, arena: Arena, hung: list[UUID]) -> int:
        [row] = await arena.query(
            "select count(*) from commandbus.command_bus_command c where c.domain = %s"
            " and c.command_id = any(%s) and c.status = 'IN_TROUBLESHOOTING_QUEUE'"
            " and c.last_error_code = 'HANDLER_TIMEOUT' and c.attempts = 1", DOMAIN, hung,
        )  # fmt: skip
        return int(row[0])

    async def heal(self, arena: Arena) -> None:
        """Those that cannot be cancelled end by themselves."""
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class ClockSteps:
    """The clock of the database jumps, back and forth: all that is due moves against it."""

    steps: int
    skew_seconds: float = 3600.0
    hold_seconds: float = 2.0
    name: str = "clock steps"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Each step is undone after a while: then the clock jumps the other way."""
        for _ in range(self.steps):
            skew = chance.choice([-1, 1]) * self.skew_seconds
            for shift in (skew, -skew):
                await self._step(arena, shift)
                arena.counts["clock_steps"] += 1
                await asyncio.sleep(self.hold_seconds)

    async def _step(self, arena: Arena, shift: float) -> None:
        # One commit, as one clock is behind both; messages first and sorted, as everybody does.
        async with await psycopg.AsyncConnection.connect(arena.direct_dsn()) as conn:
            await conn.execute("select 1 from pgmq.q_storm__commands order by msg_id for update")
            await conn.execute(
                "update pgmq.q_storm__commands set vt = vt + make_interval(secs => %s)", (shift,)
            )
            await conn.execute(
                "update commandbus.command_bus_command"
                "   set lease_expires_at = lease_expires_at + make_interval(secs => %s)"
                " where domain = %s and leased_by is not null",
                (shift, DOMAIN),
            )
            await conn.commit()

    async def heal(self, arena: Arena) -> None:
        """What was sent while the clock was ahead is due at once."""
        await arena.query(
            "update pgmq.q_storm__commands set vt = clock_timestamp()"
            " where vt > clock_timestamp() + interval '1 minute'"
        )


@dataclass(frozen=True, slots=True)
class HoldSnapshot:
    """Many delayed commands, and a snapshot that keeps vacuum from removing anything."""

    delayed: int
    seconds: float
    name: str = "hold a snapshot"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Put the delayed ones there, hold the snapshot, let go."""
        async with CommandBus.connect(arena.dsn, settings=Settings(maintenance=False)) as bus:
            left = self.delayed
            while left > 0:
                commands = [
                    BatchCommand("Work", UUID(int=chance.getrandbits(128), version=4), {"ms": 0})
                    for _ in range(min(left, 5_000))
                ]
                await self._send_delayed(arena, bus, commands)
                left -= len(commands)
        arena.counts["delayed"] += self.delayed
        async with await psycopg.AsyncConnection.connect(arena.direct_dsn()) as conn:
            await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await conn.execute("select count(*) from commandbus.command_bus_batch")
            arena.log.write("snapshot", held=True)
            await self._probe(arena)
            await conn.rollback()
        arena.log.write("snapshot", held=False)

    async def _probe(self, arena: Arena) -> None:
        """How long a receive takes meanwhile: the function itself, rolled back each time."""
        times: list[float] = []
        deadline = time.monotonic() + self.seconds
        async with await psycopg.AsyncConnection.connect(arena.direct_dsn()) as conn:
            while time.monotonic() < deadline:
                began = time.perf_counter()
                await conn.execute(
                    "select count(*) from commandbus.receive_commands(%s, 3, 10, 'probe')",
                    (DOMAIN,),
                    prepare=True,
                )
                times.append((time.perf_counter() - began) * 1000)
                await conn.rollback()
                await asyncio.sleep(0.1)
        arena.peak("probe_p99_ms", sorted(times)[int(len(times) * 0.99)])

    async def _send_delayed(
        self, arena: Arena, bus: CommandBus, commands: list[BatchCommand]
    ) -> None:
        ids = [command.command_id for command in commands]
        async with await psycopg.AsyncConnection.connect(arena.direct_dsn()) as conn:
            await bus.send_many(DOMAIN, commands, conn=conn)
            await conn.execute(
                "update pgmq.q_storm__commands q set vt = vt + interval '1 day'"
                "  from commandbus.command_bus_command c"
                " where c.domain = %s and c.command_id = any(%s) and q.msg_id = c.msg_id",
                (DOMAIN, ids),
            )
            await conn.commit()
        arena.log.write("send", ids=[str(command_id) for command_id in ids], outcome="ok")

    async def heal(self, arena: Arena) -> None:
        """Cancel what would be due tomorrow, as an operator would; a few are made due instead."""
        await arena.query(
            "update pgmq.q_storm__commands set vt = clock_timestamp() where msg_id in ("
            " select msg_id from pgmq.q_storm__commands"
            "  where vt > clock_timestamp() + interval '1 hour' order by msg_id limit 500)"
        )
        while True:
            moved = await arena.query(
                "select commandbus.cancel_commands(%s, array(select c.command_id"
                "   from pgmq.q_storm__commands q join commandbus.command_bus_command c"
                "     on c.domain = %s and c.msg_id = q.msg_id"
                "  where q.vt > clock_timestamp() + interval '1 hour' order by 1 limit 2000),"
                " 'not needed', 'harness', false)",
                DOMAIN, DOMAIN,
            )  # fmt: skip
            if not moved:
                return


@dataclass(frozen=True, slots=True)
class Operators:
    """Somebody who retries, cancels or completes whatever is parked, at random."""

    decisions: int
    patience_seconds: float = 120.0
    name: str = "operators"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Decide, some twenty a second."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self.patience_seconds),
                CommandBus.connect(arena.dsn, settings=Settings(maintenance=False)) as bus,
            ):
                while arena.counts["decisions"] < self.decisions:
                    with suppress(CommandBusError):  # the database is away for a moment
                        await self._decide_some(arena, bus, chance)
                    await asyncio.sleep(0.25)

    async def _decide_some(self, arena: Arena, bus: CommandBus, chance: random.Random) -> None:
        waiting = await bus.list_troubleshooting(DOMAIN, limit=50)
        for item in chance.sample(waiting, min(len(waiting), 10)):
            act = chance.choice(["retry", "cancel", "complete"])
            with suppress(CommandBusError):  # somebody else was quicker
                if act == "retry":
                    await bus.operator_retry(DOMAIN, item.command_id, operator="harness")
                elif act == "cancel":
                    await bus.operator_cancel(DOMAIN, item.command_id, "no", operator="harness")
                else:
                    await bus.operator_complete(DOMAIN, item.command_id, operator="harness")
                arena.counts["decisions"] += 1

    async def heal(self, arena: Arena) -> None:
        """What is parked stays so."""


@dataclass(frozen=True, slots=True)
class Senders:
    """A process of another role: crossing producers, or many sends of one id."""

    role: str
    options: dict[str, object]
    patience_seconds: float = 120.0
    #: Seconds that one transaction with sends in it stays open beside them.
    open_seconds: float = 0.0
    name: str = "senders"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Run it to its end."""
        pid = await arena.nursery.fork(
            {
                "role": self.role,
                "dsn": arena.dsn,
                "domain": DOMAIN,
                "other_domain": f"{DOMAIN}_two",
                "seed": f"{arena.seed}:{self.name}",
                "log_folder": str(arena.log_folder),
                "clock": arena.log.now() - asyncio.get_running_loop().time(),
                "work_ms": 1,
                **self.options,
            }
        )
        ended = asyncio.shield(arena.nursery.exit_of(pid))
        if self.open_seconds:
            await self._leave_open(arena, chance)
        status: int | None = None
        with suppress(TimeoutError):
            status = await asyncio.wait_for(ended, self.patience_seconds)
        arena.counts["bad_senders"] += status != 0

    async def _leave_open(self, arena: Arena, chance: random.Random) -> None:
        command_id = UUID(int=chance.getrandbits(128), version=4)
        async with (
            CommandBus.connect(arena.dsn, settings=Settings(maintenance=False)) as bus,
            await psycopg.AsyncConnection.connect(arena.direct_dsn()) as conn,
        ):
            await bus.send(DOMAIN, "Work", command_id, {"ms": 1}, conn=conn)
            await asyncio.sleep(self.open_seconds)
            await conn.commit()
            arena.log.write("send", ids=[str(command_id)], outcome="ok")

    async def heal(self, arena: Arena) -> None:
        """It has ended."""

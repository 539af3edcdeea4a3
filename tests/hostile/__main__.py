"""`make hostile`: the service with 1,000 hostile sockets, and what another user notices of them.

    python -m tests.hostile --sockets 1000 --seconds 60

Prints a report, and ends with 1 if a bar is missed: the other user's p99 under attack, with slow
sockets alone against its calm p99, /readyz throughout, and the memory of the service afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from commandbus import BatchCommand, CommandBus, Settings
from commandbus.access.model import Scope
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database

#: Requests of the other user in a second: within its own budget, with two tokens.
RATE = 8
EXPORTED = 3_000


@dataclass
class Phase:
    """What the other user saw for a while."""

    name: str
    seconds: list[float] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    unready: int = 0
    attack: dict[str, Any] = field(default_factory=dict)
    #: How much of one core the service used.
    busy: float = 0.0

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.answers.items() if status >= 400 or not status)

    def __str__(self) -> str:
        p50, p99, worst = (self.quantile(share) * 1000 for share in (0.5, 0.99, 1.0))
        return (
            f"{self.name:14} {len(self.seconds):5} requests  p50 {p50:7.1f} ms  p99 {p99:7.1f} ms"
            f"  max {worst:7.1f} ms  refused {self.refused}  not ready {self.unready}"
            f"  service {self.busy:4.0%} of a core"
        )


@dataclass
class Arena:
    """The service, and who uses it."""

    url: str
    pid: int
    tokens: list[str]
    hostile: str
    batch: str

    def cpu(self) -> float:
        """Seconds of CPU that the service has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Kilobytes of the service."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]


async def prepare(dsn: str) -> tuple[list[str], str, str]:
    async with CommandBus.connect(dsn) as bus:
        commands = [BatchCommand("Work", uuid4(), {"n": n}) for n in range(EXPORTED)]
        batch = await bus.create_batch("shop", commands)
        victim = [await bus.tokens.create("vera", [Scope.READ, Scope.SEND]) for _ in range(2)]
        eve = await bus.tokens.create("eve", [Scope.READ, Scope.SEND])
    return [made.text for made in victim], eve.text, f"/api/v1/command-batches/shop/{batch}"


@contextlib.asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[tuple[str, int]]:
    """`commandbus serve`, with the settings that everybody has."""
    program = str(Path(sys.executable).with_name("commandbus"))
    kept = "COMMANDBUS_KEYS_FOLDER"  # the pepper of the tokens that were made here
    environ = {
        name: value
        for name, value in os.environ.items()
        if "COMMANDBUS" not in name or name == kept
    }
    process = await asyncio.create_subprocess_exec(
        program, "serve", "--port", "0", "--dsn", dsn, "--log-level", "error",
        stdout=asyncio.subprocess.PIPE, env=environ,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        text = ""
        while "Ctrl-C" not in text:
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            assert line, "the service did not start"
            text += line
        yield re.search(r"http://127\.0\.0\.1:\d+", text)[0], process.pid  # type: ignore[index]
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def use(arena: Arena, phase: Phase, seconds: float) -> None:
    """The other user: reads and sends, on connections that it keeps and sometimes opens anew."""
    until = time.monotonic() + seconds
    limits = httpx2.Limits(max_keepalive_connections=4)
    async with httpx2.AsyncClient(base_url=arena.url, limits=limits, timeout=30) as client:
        running: set[asyncio.Task[None]] = set()
        number = 0
        while time.monotonic() < until:
            running.add(asyncio.create_task(_ask(arena, phase, client, number)))
            number += 1
            await asyncio.sleep(1 / RATE)
            running = {task for task in running if not task.done()}
        await asyncio.gather(*running)


async def crowd(arena: Arena, friends: int) -> None:
    """A busy moment with as many friendly clients: the size of a service that is in use, so that
    the attack is compared with it and not with a process that was just started.
    """
    headers = {"Authorization": f"Bearer {arena.tokens[0]}"}
    limits = httpx2.Limits(max_connections=friends)
    async with httpx2.AsyncClient(base_url=arena.url, limits=limits, timeout=60) as client:
        asking = [client.get("/livez") for _ in range(friends)]
        exports = [client.get("/api/v1/exports/commands", headers=headers) for _ in range(8)]
        await asyncio.gather(*asking, *exports)


async def _ask(arena: Arena, phase: Phase, client: httpx2.AsyncClient, number: int) -> None:
    headers = {"Authorization": f"Bearer {arena.tokens[number % 2]}"}
    if number % 10 == 0:
        headers["Connection"] = "close"  # the next one comes on a new connection
    one = {"domain": "shop", "command_type": "Work", "data": {"n": number}}
    several = {"commands": [{"command_type": "Work", "data": {"n": n}} for n in range(5)]}
    began = time.perf_counter()
    try:
        match number % 5:
            case 0 | 1:
                answer = await client.post("/api/v1/commands", json=one, headers=headers)
            case 2:
                answer = await client.get("/api/v1/commands?domain=shop", headers=headers)
            case 3:
                answer = await client.get(arena.batch, headers=headers)
            case _:
                batches = arena.batch.rpartition("/")[0]
                answer = await client.post(batches, json=several, headers=headers)
        phase.answers[answer.status_code] += 1
    except httpx2.HTTPError:
        phase.answers[0] += 1
    phase.seconds.append(time.perf_counter() - began)


async def watch(arena: Arena, phase: Phase, seconds: float) -> None:
    """What a load balancer sees."""
    until = time.monotonic() + seconds
    async with httpx2.AsyncClient(base_url=arena.url, timeout=10) as client:
        while time.monotonic() < until:
            try:
                answer = await client.get("/readyz")
                phase.unready += answer.status_code != 200
            except httpx2.HTTPError:
                phase.unready += 1
            await asyncio.sleep(0.5)


async def attack(arena: Arena, phase: Phase, kinds: str, sockets: int, seconds: float) -> None:
    plan = {
        "port": int(arena.url.rpartition(":")[2]), "token": arena.hostile, "batch": arena.batch,
        "seconds": seconds, "kinds": kinds, "sockets": sockets,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hostile.attackers", json.dumps(plan),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await process.communicate()
    phase.attack = json.loads(told)


async def during(
    arena: Arena, name: str, seconds: float, kinds: str = "", sockets: int = 0
) -> Phase:
    phase = Phase(name)
    work = [use(arena, phase, seconds), watch(arena, phase, seconds)]
    if kinds:
        work.append(attack(arena, phase, kinds, sockets, seconds))
    began, used = time.monotonic(), arena.cpu()
    await asyncio.gather(*work)
    phase.busy = (arena.cpu() - used) / (time.monotonic() - began)
    print(phase, flush=True)
    if phase.refused:
        print(f"  the other user's answers: {dict(phase.answers)} (0: none)", flush=True)
    if phase.attack:
        print(f"  {phase.attack['opened']} hostile sockets: {phase.attack['answers']}", flush=True)
    return phase


async def run(dsn: str, options: argparse.Namespace) -> bool:
    tokens, hostile, batch = await prepare(dsn)
    async with serving(dsn) as (url, pid):
        arena = Arena(url, pid, tokens, hostile, batch)
        fresh = arena.memory()
        await crowd(arena, options.sockets)
        await during(arena, "warming up", options.calm / 4)
        calm = await during(arena, "calm", options.calm)
        before = arena.memory()
        slow = await during(arena, "slow sockets", options.seconds, "slow", options.sockets)
        hot = await during(arena, "all kinds", options.seconds, "all", options.sockets)
        top = arena.memory()
        after = await during(arena, "afterwards", options.calm)
        ended = await settled(arena, before)
    print(f"memory: fresh {fresh:,} kB, in use {before:,} kB", end=", ")
    print(f"under attack {top:,} kB, afterwards {ended:,} kB")
    limit = options.p99
    bars = {
        f"p99 under attack < {limit:g} s": hot.quantile(0.99) < limit,
        "p99 with slow sockets <= 5 x calm": slow.quantile(0.99)
        <= max(5 * calm.quantile(0.99), options.floor),
        "/readyz true throughout": not any(each.unready for each in (calm, slow, hot, after)),
        "nobody else was refused": not any(each.refused for each in (calm, slow, hot, after)),
        "memory back within 20 %": ended <= before * 1.2,
    }
    for text, is_met in bars.items():
        print(f"{'met   ' if is_met else 'MISSED'} {text}")
    return all(bars.values())


async def settled(arena: Arena, before: int) -> int:
    """The memory once it has had time to come back."""
    for _ in range(20):
        if arena.memory() <= before * 1.2:
            break
        await asyncio.sleep(0.5)
    return arena.memory()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--sockets", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--calm", type=float, default=20.0, help="of each other phase")
    parser.add_argument("--p99", type=float, default=1.0, help="seconds of the bar under attack")
    parser.add_argument("--floor", type=float, default=0.0, help="slow sockets: always good enough")
    parser.add_argument("--dsn", help="a database to use, instead of a server of its own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as keys:
        os.environ["COMMANDBUS_KEYS_FOLDER"] = keys
        sys.exit(not play(options))


def play(options: argparse.Namespace) -> bool:
    """The whole of it, on a server of its own unless there is a database to use."""
    if options.dsn:
        return asyncio.run(run(options.dsn, options))
    # Not below the folder of a user: the server may run as another account.
    folder = Path(tempfile.gettempdir()) / f"commandbus-hostile-{os.getpid()}"
    server = EmbeddedPostgres(folder, settings={"fsync": "off"})
    try:
        server.start()
        asyncio.run(migrate_database(server.dsn, Settings()))
        return asyncio.run(run(server.dsn, options))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

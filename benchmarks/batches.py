"""python -m benchmarks.batches [--commands N] [--pairs N] [--load ROWS]

Two questions about batches, each answered within one run:
- what does belonging to one batch cost a drain? (pairs of the same commands with and without)
- does a load of very many rows survive being killed, at which rate and in how much memory?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import secrets
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.systems import PAYLOAD, CommandBusSystem
from commandbus import BatchCommand, CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres

KILLS = 5


async def fresh_database(dsn: str) -> str:
    """A database of its own for one measurement."""
    name = f"bench_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        await admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)


async def drain(dsn: str, count: int, *, in_batch: bool) -> float:
    """Commands per second of one worker at concurrency 100."""
    settings = Settings(max_batch_size=100_000)
    async with CommandBusSystem(settings).opened(await fresh_database(dsn)) as system:
        commands = [BatchCommand("Work", uuid4(), PAYLOAD) for _ in range(count)]
        if in_batch:
            await system.bus.create_batch("bench", commands)
        else:
            await system.bus.send_many("bench", commands)
        began = time.perf_counter()
        await system.drain(count, 100)
        return count / (time.perf_counter() - began)


async def load(dsn: str, rows: int) -> None:
    """Load a JSON-lines file in a process that is killed on the way, and count."""
    address = await fresh_database(dsn)
    chance = random.Random(20261115)  # a seed, so that it can be repeated
    batch_id = uuid4()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as source:
        for number in range(rows):
            source.write(json.dumps({"n": number, **PAYLOAD}) + "\n")
        source.flush()
        began = time.perf_counter()
        kills = 0
        async with CommandBus.connect(address) as bus:
            points = sorted(chance.uniform(0.05, 0.95) for _ in range(KILLS))
            while True:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.batches", "--as-loader", address,
                    source.name, str(batch_id),
                )  # fmt: skip
                if kills == KILLS:
                    assert await process.wait() == 0
                    break
                while await _rows_committed(bus, batch_id) < points[kills] * rows:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                process.send_signal(signal.SIGKILL)
                await process.wait()
                kills += 1
        seconds = time.perf_counter() - began
        async with await psycopg.AsyncConnection.connect(address) as conn:
            cursor = await conn.execute(
                "select count(*), count(distinct command_id), max(sequence_no)"
                " from commandbus.command_bus_command"
            )
            found = await cursor.fetchone()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"load of {rows:,} rows, killed {kills} times: {found[0]:,} commands, {found[1]:,} ids, "
        f"last number {found[2]:,}; {rows / seconds:,.0f} rows/s, peak memory {peak:,.0f} MB"
        if found
        else "nothing found"
    )


async def _rows_committed(bus: CommandBus, batch_id: UUID) -> int:
    found = await bus.get_load("bench", batch_id)
    return 0 if found is None else found.rows_committed


async def be_loader(address: str, source: str, batch_id: str) -> None:
    """The process that is killed."""
    async with CommandBus.connect(address) as bus:
        result = await bus.load_batch(
            "bench", Path(source), command_type="Work", start="as_it_loads",
            batch_id=UUID(batch_id),
        )  # fmt: skip
    assert result.status == "success", result


async def run(dsn: str, commands: int, pairs: int, rows: int) -> None:
    """Measure and print."""
    ratios = []
    for pair in range(pairs):
        plain = await drain(dsn, commands, in_batch=False)
        batch = await drain(dsn, commands, in_batch=True)
        ratios.append(batch / plain)
        print(
            f"drain of {commands:,} [{pair + 1}/{pairs}]: without a batch {plain:,.0f}/s, "
            f"in one batch {batch:,.0f}/s, ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if rows:
        await load(dsn, rows)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__)
    parser.add_argument("--commands", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--load", type=int, default=0, metavar="ROWS")
    parser.add_argument("--as-loader", nargs=3, metavar=("DSN", "SOURCE", "BATCH_ID"))
    arguments = parser.parse_args()
    if arguments.as_loader:
        asyncio.run(be_loader(*arguments.as_loader))
        return
    with ExitStack() as stack:
        folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
        dsn = stack.enter_context(EmbeddedPostgres(folder)).dsn
        asyncio.run(run(dsn, arguments.commands, arguments.pairs, arguments.load))


if __name__ == "__main__":
    main()

"""python -m benchmarks.batches [--commands N] [--pairs N] [--deltas] [--load ROWS]

Questions about batches, each answered within one run:
- what does belonging to one batch cost a drain? (pairs of the same commands with and without, the
  order changing from pair to pair; with --deltas also with counters as append-only rows)
- does a load of very many rows survive being killed, at which rate and in how much memory?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
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
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.systems import PAYLOAD, CommandBusSystem
from commandbus import BatchCommand, CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.loads import LoadStart

KILLS = 5


#: What move_batch_counters would be with append-only deltas, and nobody who adds them up.
DELTAS = """
create table commandbus.bench_delta (batch_id uuid, moved_to text, n int);
create or replace function commandbus.move_batch_counters(
    p_batch_ids uuid[], p_from text, p_to text, p_actor text default null
) returns void language sql as $$
    insert into commandbus.bench_delta
    select id, p_to, count(*) from unnest(p_batch_ids) id where id is not null group by id
$$"""


async def fresh_database(dsn: str) -> str:
    """A database of its own for one measurement."""
    name = f"bench_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        await admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)


async def drain(server: EmbeddedPostgres, count: int, kind: str) -> float:
    """Commands per second of one worker at concurrency 250."""
    settings = Settings(max_batch_size=100_000)
    address = await fresh_database(server.dsn)
    async with CommandBusSystem(settings).opened(address) as system:
        commands = [BatchCommand("Work", uuid4(), PAYLOAD) for _ in range(count)]
        if kind == "none":
            await system.bus.send_many("bench", commands)
        else:
            await system.bus.create_batch("bench", commands)
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
            if kind == "deltas":
                await conn.execute(DELTAS)
        await settle(server)
        began = time.perf_counter()
        await system.drain(count, 250)
        rate = count / (time.perf_counter() - began)
    await drop(server, address)
    return rate


async def settle(server: EmbeddedPostgres) -> None:
    """Write what is dirty now, so that no checkpoint falls into one run and not into the other."""
    address = server.superuser_dsn_for("postgres")
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
        await conn.execute("checkpoint")


async def drop(server: EmbeddedPostgres, address: str) -> None:
    """Remove a database that has been measured; as superuser, who may end an autovacuum in it."""
    name = str(conninfo_to_dict(address)["dbname"])
    admin_address = server.superuser_dsn_for("postgres")
    async with await psycopg.AsyncConnection.connect(admin_address, autocommit=True) as admin:
        await admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


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
        kills = peak = 0
        async with CommandBus.connect(address) as bus:
            points = sorted(chance.uniform(0.05, 0.95) for _ in range(KILLS))
            while True:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.batches", "--as-loader", address,
                    source.name, str(batch_id),
                )  # fmt: skip
                if kills == KILLS:
                    while process.returncode is None:
                        peak = max(peak, _peak_kib(process.pid))
                        await asyncio.sleep(0.02)
                    assert process.returncode == 0
                    break
                while await _rows_committed(bus, batch_id) < points[kills] * rows:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                peak = max(peak, _peak_kib(process.pid))
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
    print(
        f"load of {rows:,} rows, killed {kills} times: {found[0]:,} commands, {found[1]:,} ids, "
        f"last number {found[2]:,}; {rows / seconds:,.0f} rows/s, peak memory {peak / 1024:,.0f} MB"
        if found
        else "nothing found"
    )


def _peak_kib(pid: int) -> int:
    """Most memory that a process ever had resident; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) if "VmHWM:" in status else 0


async def _rows_committed(bus: CommandBus, batch_id: UUID) -> int:
    found = await bus.loads.get("bench", batch_id)
    return 0 if found is None else found.rows_committed


async def be_loader(address: str, source: str, batch_id: str) -> None:
    """The process that is killed."""
    async with CommandBus.connect(address) as bus:
        result = await bus.loads.load(
            "bench", Path(source), command_type="Work", start=LoadStart.AS_IT_LOADS,
            batch_id=UUID(batch_id),
        )  # fmt: skip
    assert result.status == "success", result


async def compare(server: EmbeddedPostgres, commands: int, pairs: int, kinds: list[str]) -> None:
    """Drain the same commands in each way, pair by pair; the first one is what is compared with."""
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds[1:]}
    for pair in range(pairs):
        order = kinds if pair % 2 == 0 else kinds[::-1]
        rates = {kind: await drain(server, commands, kind) for kind in order}
        for kind, values in ratios.items():
            values.append(rates[kind] / rates[kinds[0]])
        told = ", ".join(f"{kind} {rates[kind]:,.0f}/s" for kind in kinds)
        print(f"drain of {commands:,} [{pair + 1}/{pairs}]: {told}", flush=True)
    for kind, values in ratios.items():
        print(
            f"{kind} / {kinds[0]}: {statistics.median(values):.2f} "
            f"({min(values):.2f} to {max(values):.2f})"
        )


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__)
    parser.add_argument("--commands", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--deltas", action="store_true", help="compare append-only counters too")
    parser.add_argument("--load", type=int, default=0, metavar="ROWS")
    parser.add_argument("--as-loader", nargs=3, metavar=("DSN", "SOURCE", "BATCH_ID"))
    arguments = parser.parse_args()
    if arguments.as_loader:
        asyncio.run(be_loader(*arguments.as_loader))
        return
    with ExitStack() as stack:
        folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
        server = stack.enter_context(EmbeddedPostgres(folder))
        kinds = ["none", "one row"] + ["deltas"] * arguments.deltas
        if arguments.pairs:
            asyncio.run(compare(server, arguments.commands, arguments.pairs, kinds))
        if arguments.load:
            asyncio.run(load(server.dsn, arguments.load))


if __name__ == "__main__":
    main()

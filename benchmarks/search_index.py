"""python -m benchmarks.search_index [--commands N] [--pairs N]

What the index on correlation_id costs (docs/adr/0022): pairs of sends of many commands, in calls of
a thousand, once with the index and once without it. The time is that of the database alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.batches import fresh_database
from commandbus import Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database

CALL = 1_000
SEND = (
    "select commandbus.send_commands('bench', (select jsonb_agg(jsonb_build_object("
    "'command_id', gen_random_uuid(), 'type', 'Work', 'data', '{}'::jsonb))"
    f" from generate_series(1, {CALL})))"
)


async def send(dsn: str, count: int, *, is_indexed: bool) -> float:
    """Commands per second."""
    address = await fresh_database(dsn)
    await migrate_database(address, Settings())
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
        if not is_indexed:
            await conn.execute("drop index commandbus.ix_command_bus_command_correlation")
        await conn.execute(SEND.encode())  # the queues are there from now on
        began = time.perf_counter()
        for _ in range(count // CALL):
            await conn.execute(SEND.encode())
        return count / (time.perf_counter() - began)


async def run(dsn: str, commands: int, pairs: int) -> None:
    """Measure and print; each pair in the other order than the one before."""
    ratios = []
    for pair in range(pairs):
        rates = {}
        for is_indexed in (True, False) if pair % 2 else (False, True):
            rates[is_indexed] = await send(dsn, commands, is_indexed=is_indexed)
        ratios.append(rates[True] / rates[False])
        print(
            f"[{pair + 1}/{pairs}] with the index {rates[True]:,.0f}/s, "
            f"without {rates[False]:,.0f}/s, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"ratio: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_index", description=__doc__)
    parser.add_argument("--commands", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
    with EmbeddedPostgres(folder) as server:
        asyncio.run(run(server.dsn, arguments.commands, arguments.pairs))


if __name__ == "__main__":
    main()

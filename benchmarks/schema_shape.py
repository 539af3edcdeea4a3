"""python -m benchmarks.schema_shape [--commands N] [--pairs N]

What the lean schema is worth (docs/adr/0002): pairs of drains, once on the schema as it is, once
with the indexes that the specification prints on columns that change, and without free space in
the pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks.batches import fresh_database
from benchmarks.systems import CommandBusSystem
from commandbus.embedded import EmbeddedPostgres

PRINTED = """
drop index commandbus.ix_command_bus_command_updated;
create index ix_command_bus_command_updated on commandbus.command_bus_command (updated_at);
create index ix_command_bus_command_status_type
    on commandbus.command_bus_command (status, command_type);
alter table commandbus.command_bus_command set (fillfactor = 100);
"""


async def drain(dsn: str, count: int, *, is_printed: bool) -> tuple[float, float]:
    """Commands per second, and the share of updates that were HOT."""
    address = await fresh_database(dsn)
    connecting = psycopg.AsyncConnection.connect(address, autocommit=True)
    async with CommandBusSystem().opened(address) as system, await connecting as conn:
        if is_printed:
            await conn.execute(PRINTED)
        await system.bulk_send(count)
        began = time.perf_counter()
        await system.drain(count, 100)
        rate = count / (time.perf_counter() - began)
        cursor = await conn.execute(
            "select n_tup_hot_upd::float / greatest(n_tup_upd, 1) from pg_stat_user_tables"
            " where relname = 'command_bus_command'"
        )
        row = await cursor.fetchone()
    return rate, float(row[0]) if row else 0.0


async def run(dsn: str, commands: int, pairs: int) -> None:
    """Measure and print."""
    ratios = []
    for pair in range(pairs):
        lean, lean_hot = await drain(dsn, commands, is_printed=False)
        printed, printed_hot = await drain(dsn, commands, is_printed=True)
        ratios.append(lean / printed)
        print(
            f"[{pair + 1}/{pairs}] lean {lean:,.0f}/s ({lean_hot:.0%} HOT), "
            f"printed {printed:,.0f}/s ({printed_hot:.0%} HOT), ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schema_shape", description=__doc__)
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
        dsn = stack.enter_context(EmbeddedPostgres(folder)).dsn
        asyncio.run(run(dsn, arguments.commands, arguments.pairs))


if __name__ == "__main__":
    main()

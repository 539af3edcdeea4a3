"""python -m benchmarks [--commands N] [--repeats N] [--dsn DSN] [--json FILE]

Interleaved: every repeat measures each system once, so that a busy moment of the machine hits all.
Figures compare within one run only; read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.systems import SYSTEMS, System
from benchmarks.workloads import WORKLOADS, Workload
from commandbus import __version__
from commandbus.embedded import EmbeddedPostgres

Figures = dict[tuple[str, str], list[float]]


async def measure(dsn: str, system: type[System], workload: Workload, commands: int) -> float:
    """One figure, on a fresh database."""
    name = f"bench_{secrets.token_hex(4)}"
    admin = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with admin:
        await admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            async with system().opened(make_conninfo(dsn, dbname=name)) as opened:
                return await workload.measure(opened, commands)
        finally:
            await admin.execute(
                sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            )


async def run(dsn: str, commands: int, repeats: int) -> Figures:
    """All figures, interleaved, with progress on stderr."""
    figures: Figures = defaultdict(list)
    for workload in WORKLOADS:
        for repeat in range(repeats):
            for system in SYSTEMS:
                value = await measure(dsn, system, workload, commands)
                figures[workload.name, system.name].append(value)
                print(
                    f"{workload.name}  [{repeat + 1}/{repeats}]  {system.name}: "
                    f"{value:,.1f} {workload.unit}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
    return figures


def table(figures: Figures) -> str:
    """A Markdown table: medians, the spread, and commandbus as a share of the floor."""
    lines = [
        "| workload | unit | commandbus | raw PGMQ (the floor) | ratio |",
        "|---|---|---|---|---|",
    ]
    for workload in WORKLOADS:
        ours, floor = (figures[workload.name, system.name] for system in SYSTEMS)
        pairs = [a / b for a, b in zip(ours, floor, strict=True)]
        lines.append(
            f"| {workload.name} | {workload.unit} | {_spread(ours)} | {_spread(floor)} "
            f"| {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f}) |"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    digits = 0 if min(values) >= 100 else 2
    return (
        f"{statistics.median(values):,.{digits}f} "
        f"({min(values):,.{digits}f} to {max(values):,.{digits}f})"
    )


async def settings_of(dsn: str) -> dict[str, Any]:
    """What a reader needs to know of machine and server."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        wanted = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        server = {}
        for name in wanted:
            row = await (await conn.execute("select current_setting(%s)", (name,))).fetchone()
            server[name] = row[0] if row else None
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commandbus": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **server,
    }


def main() -> None:
    """Measure, print the table, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dsn", help="a server to measure on; an embedded one by default")
    parser.add_argument("--json", type=Path, help="keep all figures in this file")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        dsn = arguments.dsn
        if dsn is None:
            folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
            dsn = stack.enter_context(EmbeddedPostgres(folder)).dsn
        figures = asyncio.run(run(dsn, arguments.commands, arguments.repeats))
        about = asyncio.run(settings_of(dsn))
    print(table(figures))
    print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
    if arguments.json:
        document = {
            "about": about,
            "figures": {f"{w} / {s}": values for (w, s), values in figures.items()},
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

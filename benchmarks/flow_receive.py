"""python -m benchmarks.flow_receive [--rounds N]: what receives under a limit cost the server.

Processor time of the one server process that does it, so that other programs on the machine matter
little: with a backlog that is due, with all of it waiting at the limit, and without a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.figures import quantile
from benchmarks.flow_lab import DOMAIN, FlowLab, Scale, commands, send
from benchmarks.server import Server
from commandbus import CommandBus, Settings

PLACES = 10
RECEIVE = (
    "select command_id, msg_id, lease_epoch from commandbus.receive_commands("
    "%s, 30, %s, 'bench', p_from_head => %s, p_places => %s)"
)
COMPLETE = "select * from commandbus.complete_commands(%s, cast(%s as jsonb))"


def processor_seconds(conn: psycopg.Connection[Any]) -> Callable[[], float]:
    """A clock that goes while the server process of a connection computes."""
    path = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    return lambda: int(path.read_text().split()[0]) / 1e9


async def costs(lab: FlowLab, case: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each receive, and of each end of what it got."""
    received, ended = [], []
    async with lab.database() as dsn:
        if case != "no limit":
            async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
                await bus.limits.set(DOMAIN, "Work", max_running=PLACES)
        await send(dsn, list(commands(rounds * 40)))
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=1) as conn:
            clock = processor_seconds(conn)
            while case == "waiting":
                before = waiting(conn)
                conn.execute(RECEIVE, (DOMAIN, 1_000, False, 0))
                if waiting(conn) == before:
                    break
            for number in range(rounds):
                quantity = PLACES if case == "no limit" else 2 * PLACES
                began = clock()
                found = conn.execute(RECEIVE, (DOMAIN, quantity, number % 20 == 0, PLACES))
                rows = found.fetchall()
                received.append(clock() - began)
                assert len(rows) == PLACES
                items = [
                    {"command_id": str(row[0]), "msg_id": row[1], "lease_epoch": row[2]}
                    for row in rows
                ]
                began = clock()
                conn.execute(COMPLETE, (DOMAIN, json.dumps(items)))
                ended.append(clock() - began)
    return received, ended


def waiting(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from commandbus.command_bus_waiting").fetchone()
    return 0 if row is None else int(row[0])


async def run(lab: FlowLab, rounds: int) -> None:
    print("| backlog | receive of ten, median (p90) | end of ten, median (p90) |")
    print("| --- | --- | --- |")
    for case in ("due", "waiting", "no limit"):
        cells = (
            f"{quantile(values, 0.5) * 1e3:.2f} ms ({quantile(values, 0.9) * 1e3:.2f})"
            for values in await costs(lab, case, rounds)
        )
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_receive")
    parser.add_argument("--rounds", type=int, default=150, help="receives of each case (150)")
    options = parser.parse_args()
    with Server.opened() as server:
        lab = FlowLab(server, Scale())
        try:
            asyncio.run(run(lab, options.rounds))
        finally:
            lab.close()


if __name__ == "__main__":
    main()

"""python -m benchmarks.one_command [--before FOLDER]: receive and complete of few commands.

Processor time of the server process that does it, so that other programs on the machine matter
little. One session, as a worker's: its pool, its prepared statements, its calls.

    git worktree add --detach ../before COMMIT
    python -m benchmarks.one_command --before ../before --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.flow_lab import DOMAIN, commands, send
from benchmarks.link import ROOT
from benchmarks.server import Server

#: Rounds in which the session makes its plans.
WARM_ROUNDS = 10
#: Rounds from one look at the head of the queue to the next, about that of a worker that is alone.
HEAD_ROUNDS = 500
#: Commands that stay behind, so that the queue is never short.
SPARE = 2_000


#: What is measured, in the order of Cost.
COSTS = ("receive", "complete", "both", "head", "empty")


@dataclass(frozen=True)
class Cost:
    """Microseconds of the server for one group, medians."""

    group: int
    receive: float
    complete: float
    #: Both in the way of a worker with few places: in one call, if the checkout has that.
    both: float
    #: A receive that looks at the head, and one that finds nothing.
    head: float
    empty: float


def processor_seconds(pid: int) -> Callable[[], float]:
    """A clock that goes while a process computes."""
    path = Path(f"/proc/{pid}/schedstat")
    return lambda: int(path.read_text().split()[0]) / 1e9


async def costs(dsn: str, group: int, rounds: int) -> Cost:
    """Of groups of one size, on a connection that does nothing else."""
    from commandbus import Settings  # noqa: PLC0415  (of the checkout that is measured)
    from commandbus.database.connections import ConnectionSource  # noqa: PLC0415
    from commandbus.database.model import Outcome, OutcomeKind  # noqa: PLC0415
    from commandbus.database.postgres import PostgresStore  # noqa: PLC0415
    from commandbus.database.sessions import Timeouts  # noqa: PLC0415

    await send(dsn, list(commands((rounds + WARM_ROUNDS) * 2 * group + SPARE)))
    with psycopg.connect(dsn, autocommit=True) as look:
        look.execute("vacuum analyze")
    pool: Any = await ConnectionSource(dsn, None).open_pool(
        "bench", 1, timeout_seconds=10.0, timeouts=Timeouts()
    )
    async with pool:
        store = PostgresStore(pool, Settings())
        async with pool.connection() as conn:
            clock = processor_seconds(conn.info.backend_pid)
        spent: dict[str, list[float]] = {name: [] for name in COSTS}

        async def timed(what: str, call: Any) -> Any:
            began = clock()
            found = await call
            # The server answers before it has done with the statement, its statistics for example.
            time.sleep(0.0002)  # noqa: ASYNC251  (nobody else runs here)
            spent[what].append(clock() - began)
            return found

        def asked(quantity: int, *, from_head: bool = False) -> Any:
            return {
                "vt_seconds": 30, "quantity": quantity, "worker": "bench", "limits": {"Work": 3},
                "from_head": from_head, "count_every": (), "except_types": (), "places": quantity,
            }  # fmt: skip

        def receive(what: str, domain: str, quantity: int, *, from_head: bool = False) -> Any:
            return timed(what, store.receive(domain, **asked(quantity, from_head=from_head)))

        async def go_on(leases: Any) -> Any:
            outcomes = [Outcome(lease, OutcomeKind.COMPLETE) for lease in leases]
            lost, found = await store.settle_and_receive(DOMAIN, outcomes, asked(group))
            assert not lost
            return found or await store.receive(DOMAIN, **asked(group))

        for number in range(rounds + WARM_ROUNDS):
            if number == WARM_ROUNDS:
                for values in spent.values():
                    values.clear()
            is_head = number % HEAD_ROUNDS == HEAD_ROUNDS - 1
            leases = await receive(
                "head" if is_head else "receive", DOMAIN, group, from_head=is_head
            )
            assert len(leases) == group
            outcomes = [Outcome(lease, OutcomeKind.COMPLETE) for lease in leases]
            lost = await timed("complete", store.settle(DOMAIN, outcomes))
            assert not lost
            if number % 10 == 0:
                assert not await receive("empty", "idle", group)
        leases = await receive("head", DOMAIN, group, from_head=True)
        if hasattr(store, "settle_and_receive"):
            for number in range(rounds + WARM_ROUNDS):
                if number == WARM_ROUNDS:
                    spent["both"].clear()
                leases = await timed("both", go_on(leases))
                assert len(leases) == group
    return Cost(group, *(statistics.median(spent[what] or [float("nan")]) * 1e6 for what in COSTS))


async def one(dsn: str, groups: Sequence[int], rounds: int) -> list[Cost]:
    from commandbus import CommandBus, Settings, new_id  # noqa: PLC0415

    async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
        command_id = new_id()
        await bus.send("idle", "Work", command_id, {})
        await bus.cancel("idle", command_id, "only for its queue")
    return [await costs(dsn, group, max(50, rounds // group)) for group in groups]


def run(source: Path, groups: Sequence[int], rounds: int) -> list[Cost]:
    """In a process of its own, with the code of a checkout, on a database of its own."""
    with Server.opened() as server, server.database() as dsn:
        found = subprocess.run(
            [
                sys.executable, "-m", "benchmarks.one_command", "--dsn", dsn,
                "--rounds", str(rounds), "--groups", ",".join(map(str, groups)),
            ],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(source)}, check=True, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
    return [Cost(**document) for document in json.loads(found.stdout)]


def table(found: dict[str, list[list[Cost]]], groups: Sequence[int]) -> str:
    """Medians of the repeats, microseconds for each group, and both together for each command."""
    lines = [
        "| group | checkout | receive | complete | both, a command | as few places do, a command"
        " | with a look at the head | nothing found |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for place, group in enumerate(groups):
        for label, repeats in found.items():
            cost = [
                statistics.median(asdict(repeat[place])[name] for repeat in repeats)
                for name in COSTS
            ]
            lines.append(
                f"| {group} | {label} | {cost[0]:.0f} µs | {cost[1]:.0f} µs |"
                f" {(cost[0] + cost[1]) / group:.0f} µs | {cost[2] / group:.0f} µs |"
                f" {cost[3]:.0f} µs | {cost[4]:.0f} µs |"
            )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_command")
    parser.add_argument("--before", type=Path, help="the folder of another checkout")
    parser.add_argument("--repeats", type=int, default=1, help="of both, in turn (1)")
    parser.add_argument("--rounds", type=int, default=1_000, help="of groups of one (1,000)")
    parser.add_argument("--groups", default="1,2,10,250", help="sizes, with commas (1,2,10,250)")
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    groups = [int(text) for text in options.groups.split(",")]
    if options.dsn:
        measured = asyncio.run(one(options.dsn, groups, options.rounds))
        print(json.dumps([asdict(cost) for cost in measured]))
        return
    sources = {"now": ROOT / "src"}
    if options.before is not None:
        sources["before"] = options.before.resolve() / "src"
    found: dict[str, list[list[Cost]]] = {label: [] for label in sources}
    for number in range(options.repeats):
        for label in list(sources) if number % 2 == 0 else list(sources)[::-1]:
            found[label].append(run(sources[label], groups, options.rounds))
    print(table(found, groups))


if __name__ == "__main__":
    main()

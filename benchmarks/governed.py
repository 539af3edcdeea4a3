"""python -m benchmarks.governed [--rounds N] [--children N]

What a governed submission over HTTP costs, against create_batch of the same commands in process,
turn and turn about, on one server and one kept connection. The bar: p50 at most 3 times.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from benchmarks.batches import drop, fresh_database
from benchmarks.systems import PAYLOAD
from commandbus import BatchCommand, CommandBus, Settings
from commandbus.access.model import Scope
from commandbus.embedded import EmbeddedPostgres
from commandbus.governance import BatchType
from commandbus.wiring import migrate_database

BAR = 3.0
PATH = "/api/v1/bench"
#: No limit that the benchmark could run into.
LIMITS = {
    "COMMANDBUS_MAX_GLOBAL_API_REQUESTS": "1000000",
    "COMMANDBUS_MAX_GLOBAL_PENDING_BATCHES": "1000000",
    "COMMANDBUS_MAX_USER_PENDING_BATCHES": "1000000",
    "COMMANDBUS_MAX_USER_PENDING_CHILDREN": "10000000",
    "COMMANDBUS_USER_COOLDOWN_SECONDS": "0",
    # Of the service itself; earlier versions do not have them.
    "COMMANDBUS_HTTP_MAX_USER_REQUESTS": "1000000",
    "COMMANDBUS_HTTP_MAX_USER_BODY_BYTES": "1000000000000",
    "COMMANDBUS_HTTP_USER_SHARE": "1",
    "COMMANDBUS_HTTP_TOKEN_SHARE": "1",
}
#: Submissions that only warm up.
WARM_UP = 10


def setup(bus: CommandBus) -> None:
    """The app that the service knows."""
    bus.governance.declare(
        BatchType(name="BENCH", domain="bench", command_type="Work", max_size=1_000, path=PATH)
    )


@contextmanager
def service(address: str) -> Iterator[http.client.HTTPConnection]:
    """`commandbus serve` in a process of its own, and a connection to it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "commandbus", "serve", "--app", "benchmarks.governed:setup",
         "--port", "0", "--log-level", "warning"],
        env={**os.environ, **LIMITS, "COMMANDBUS_DSN": address},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None, "the service did not start"
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        yield connection
        connection.close()
    finally:
        process.terminate()
        process.wait(30)


async def new_token(bus: CommandBus) -> str:
    """A token that may submit, in this version and in those before there was a scope for it."""
    scope = "submit" if "submit" in set(Scope) else "send"
    return (await bus.tokens.create("bench", [scope], actor="bench")).text


class Submitter:
    """Submits batches over one kept connection. It blocks."""

    def __init__(self, connection: http.client.HTTPConnection, token: str, children: int) -> None:
        self._connection = connection
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._body = json.dumps({"items": [PAYLOAD] * children}).encode()

    def submit(self) -> None:
        """One batch."""
        self._connection.request("POST", PATH, self._body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 202, text


def timed_submissions(address: str, token: str, count: int, children: int) -> list[float]:
    """The seconds that each submission took, one by one, at a service of this checkout."""
    spent: list[float] = []
    with service(address) as connection:
        submitter = Submitter(connection, token, children)
        for number in range(count + WARM_UP):
            began = time.perf_counter()
            submitter.submit()
            if number >= WARM_UP:
                spent.append(time.perf_counter() - began)
    return spent


async def compare(server: EmbeddedPostgres, rounds: int, children: int) -> None:
    """Measure, and print the medians."""
    address = await fresh_database(server.dsn)
    await migrate_database(address, Settings())
    async with CommandBus.connect(address) as bus:
        token = await new_token(bus)

        async def in_process() -> None:
            commands = [BatchCommand("Work", uuid4(), PAYLOAD) for _ in range(children)]
            await bus.create_batch("bench", commands)

        with service(address) as connection:
            submitter = Submitter(connection, token, children)

            async def over_http() -> None:
                submitter.submit()  # it blocks: nothing else runs here meanwhile

            ways = {"create_batch in process": in_process, "submission over HTTP": over_http}
            spent: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(rounds + WARM_UP):
                for name in list(ways) if number % 2 else list(ways)[::-1]:
                    began = time.perf_counter()
                    await ways[name]()
                    if number >= WARM_UP:
                        spent[name].append(time.perf_counter() - began)
    await drop(server, address)
    medians = {name: statistics.median(values) * 1000 for name, values in spent.items()}
    for name, median in medians.items():
        late = statistics.quantiles(spent[name], n=20)[-1] * 1000
        print(f"{name}, {children} children: p50 {median:.1f} ms, p95 {late:.1f} ms")
    ratio = medians["submission over HTTP"] / medians["create_batch in process"]
    print(f"ratio of the p50: {ratio:.2f} (bar: at most {BAR:g}), {rounds} rounds")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.governed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--children", type=int, default=50)
    arguments = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"commandbus-bench-{os.getuid()}"
    with EmbeddedPostgres(folder) as server:
        asyncio.run(compare(server, arguments.rounds, arguments.children))


if __name__ == "__main__":
    main()

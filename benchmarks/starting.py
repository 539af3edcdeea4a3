"""How quickly processes start, and what the stacks of failures cost: the bars that a probe feels.

    python -m benchmarks.starting

A worker is started beside a command that waits, and says when its handler was called and how much
processor time it had used; `health` asks a page that answers at once. The least of the runs counts
as processor time (neighbours make a run longer, never shorter), the median as what a clock shows.
Imports are compared in pairs, by their medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from benchmarks.server import Server
from commandbus import CommandBus, new_id
from commandbus.worker.stacks import stack_of

APP = """
import json, os, resource, time
from pathlib import Path

def setup(bus):
    @bus.handler("bench", "Work")
    async def work(command, ctx):
        used = resource.getrusage(resource.RUSAGE_SELF)
        told = {"at": time.time(), "cpu": used.ru_utime + used.ru_stime}
        Path("told.new").write_text(json.dumps(told))
        os.replace("told.new", "told")
"""
#: Frames between the worker and where a handler fails.
DEPTH = 12
STACKS = 2_000


@dataclass(frozen=True)
class Row:
    """One bar, and what was measured."""

    what: str
    bar: str
    cpu: str
    clock: str = "-"


def worker(server: Server, runs: int) -> Row:
    """From its start to its first lease, which is when the first handler is called."""
    spent: list[float] = []
    taken: list[float] = []
    conninfo = server.create()

    async def send() -> None:
        async with CommandBus.connect(conninfo) as bus:
            await bus.send("bench", "Work", new_id(), {})

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        for _ in range(runs):
            asyncio.run(send())
            told = Path(folder, "told")
            began = time.time()
            words = [sys.executable, "-m", "commandbus", "worker", "app:setup", "--until-empty"]
            with subprocess.Popen([*words, "--dsn", conninfo], cwd=folder) as process:
                process.wait(60)
            found = json.loads(told.read_text())
            spent.append(found["cpu"])
            taken.append(found["at"] - began)
    server.drop(conninfo)
    return _row("`commandbus worker` to its first lease", "0.8 s", spent, taken)


class _Well(BaseHTTPRequestHandler):
    """Answers that all is well, and logs nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def health(runs: int) -> Row:
    """One question of a probe."""
    with HTTPServer(("127.0.0.1", 0), _Well) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{answering.server_port}/readyz"
        spent: list[float] = []
        taken: list[float] = []
        for _ in range(runs):
            used, began = _of_children(), time.monotonic()
            words = [sys.executable, "-m", "commandbus", "health", "--url", url]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            taken.append(time.monotonic() - began)
            spent.append(_of_children() - used)
        answering.shutdown()
    return _row("`commandbus health`", "0.15 s", spent, taken)


def stacks() -> Row:
    """What is stored of the place of a failure, for a thousand failures in a second."""
    failures = [_failure(number) for number in range(STACKS)]
    least = min(_seconds(lambda: [stack_of(each) for each in failures]) for _ in range(5))
    share = least / STACKS * 1_000
    return Row("stacks of 1,000 failures a second", "5 % of a core", f"{share:.1%}")


def _failure(number: int) -> BaseException:
    def fail(depth: int) -> None:
        if depth:
            fail(depth - 1)
        raise ValueError(f"no {number}")

    try:
        fail(DEPTH)
    except ValueError as error:
        return error
    raise AssertionError


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(what: str, bar: str, spent: list[float], taken: list[float]) -> Row:
    return Row(what, bar, f"{min(spent):.2f} s", f"{statistics.median(taken):.2f} s")


def imports(runs: int) -> Row:
    """The import that every program begins with, in imports of asyncio, one after the other."""
    bus = "from commandbus import CommandBus, Command, HandlerContext"
    pairs = [(_import("import asyncio"), _import(bus)) for _ in range(4 * runs)]
    alone, whole = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Row(f"`{bus}`, against `import asyncio`", "2", f"{whole / alone:.2f}")


def _import(statement: str) -> float:
    before = _of_children()
    subprocess.run([sys.executable, "-I", "-c", statement], check=True)
    return _of_children() - before


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starting", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="starts of each program (7)")
    runs = parser.parse_args().runs
    with Server.opened() as server:
        rows = [worker(server, runs), health(runs), imports(runs), stacks()]
    print("| what | bar | CPU | by the clock (median) |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.what} | {row.bar} | {row.cpu} | {row.clock} |")
    print(f"\nLoad of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

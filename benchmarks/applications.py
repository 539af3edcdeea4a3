"""What the integrations cost those who use them: bars that one process can measure.

    python -m benchmarks.applications

Decoding, observations and imports are told in processor time, the least of several runs, since
neighbours only make a run longer; clones and drains by the clock, as the median. A clone is that
of the pytest plugin; the drain is that of `commandbus.django.test`, in a transaction.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from benchmarks.starting import Row
from commandbus import Command, HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.monitoring.metrics import Metrics
from commandbus.payload import decode_payload
from commandbus.testing.servers import PostgresServer, running_server
from commandbus.typed.codec import codec_of

LOOPS = 20_000
#: Outcomes of one commit of a busy worker.
GROUP = 250


@dataclass
class Debit:
    """Five fields, of the kinds that payloads have."""

    account: str
    amount: int
    currency: str
    note: str | None
    tags: list[str]


PAYLOAD = json.dumps(
    {"account": "4711", "amount": 1250, "currency": "EUR", "note": "x" * 20, "tags": ["a", "b"]}
)


def decoding() -> Row:
    """From the text of the message to the object that the handler is given."""
    read = codec_of(Debit).read
    assert read is not None
    assert read(decode_payload(PAYLOAD)) == Debit(**json.loads(PAYLOAD))
    cost = _each(lambda: read(decode_payload(PAYLOAD)), LOOPS)
    return Row("decoding a payload of five fields into a dataclass", "10 µs", f"{cost:.2f} µs")


def observation() -> Row:
    """What is measured of one handler, counted with the commit of its group."""
    metrics = Metrics()
    metrics.know("bench", ["Work"])
    times = metrics.times("bench")

    def group() -> None:
        for _ in range(GROUP):
            times.waited["Work"].append(0.003)
            times.handled["Work"].append(0.002)
        metrics.ended_together("bench", [("Work", "completed", 1, None)] * GROUP)

    # Three: the wait, the time of the handler, the outcome.
    cost = _each(group, LOOPS // GROUP) / GROUP / 3
    alone = _each(lambda: metrics.ended("bench", "Work", "completed", 1), LOOPS)
    return Row(
        "one observation of metrics, in a group; alone", "2 µs", f"{cost:.2f}; {alone:.2f} µs"
    )


def imports(runs: int) -> list[Row]:
    """The package, which loads what is used when it is, and what every program uses of it."""
    used = "from commandbus import CommandBus, Command, HandlerContext"
    empty, theirs, *ours = (
        min(_started(code) for _ in range(runs))
        for code in ("pass", "import asyncio", "import commandbus", used)
    )
    return [
        Row(
            f"`{code}` against `import asyncio`", "2",
            f"{(each - empty) / (theirs - empty):.2f} "
            f"({(each - empty) * 1e3:.0f} and {(theirs - empty) * 1e3:.0f} ms)",
        )
        for code, each in zip(("import commandbus", used), ours, strict=True)
    ]  # fmt: skip


def clones(server: PostgresServer, template: str, runs: int) -> Row:
    """A database for one test: made; and dropped, which the next test does not wait for."""
    made: list[float] = []
    for _ in range(runs):
        began = time.monotonic()
        with server.clone(template):
            made.append(time.monotonic() - began)
    return Row("clone of a database by the pytest plugin", "150 ms", "-", _clock(made))


def django_drain(server: PostgresServer, template: str, runs: int) -> Row:
    """One command that was sent in the transaction of a test, run there."""
    import django  # noqa: PLC0415  (an extra)
    from django.conf import settings  # noqa: PLC0415

    drained: list[float] = []
    with server.clone(template) as name:
        parts = conninfo_to_dict(server.dsn_for(name))
        settings.configure(
            DATABASES={"default": {
                "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"],
                "HOST": parts["host"], "PORT": parts.get("port", ""), "USER": parts["user"],
                "PASSWORD": parts.get("password", ""),
            }},
            INSTALLED_APPS=["commandbus.django", "benchmarks"], USE_TZ=True,
            COMMANDBUS={"HANDLERS_MODULE": "applications"},  # this one, as that of an app
        )  # fmt: skip
        django.setup()
        from django.db import connections, transaction  # noqa: PLC0415

        from commandbus.django import bus  # noqa: PLC0415
        from commandbus.django.test import drain  # noqa: PLC0415

        with transaction.atomic():
            for _ in range(runs + 1):
                bus.send("shop", "Pay", uuid.uuid4(), {"number": 1})
                began = time.monotonic()
                done = drain("shop")
                drained.append(time.monotonic() - began)
                assert len(done) == 1
            transaction.set_rollback(True)
        connections.close_all()
    return Row("`drain()` of one command in a Django test", "20 ms", "-", _clock(drained[1:]))


shop = Handlers("shop")


@shop.handle("Pay")
def _pay(command: Command, ctx: HandlerContext) -> None:
    del command, ctx


def _each(work: Callable[[], Any], count: int) -> float:
    """The microseconds of one call."""
    found: list[float] = []
    for _ in range(7):
        began = time.thread_time()
        for _ in range(count):
            work()
        found.append((time.thread_time() - began) / count * 1e6)
    return min(found)


def _started(code: str) -> float:
    used = _of_children()
    subprocess.run([sys.executable, "-c", code], check=True)
    return _of_children() - used


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _clock(taken: list[float]) -> str:
    return f"{statistics.median(taken) * 1e3:.0f} ms ({min(taken) * 1e3:.0f} at least)"


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.applications", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=15, help="of what is not in a loop (15)")
    runs = parser.parse_args().runs
    rows = [decoding(), observation(), *imports(runs)]
    with running_server() as server, server.template() as template:
        rows += [clones(server, template, runs), django_drain(server, template, runs)]
    print("| what | bar | CPU | by the clock (median) |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.what} | {row.bar} | {row.cpu} | {row.clock} |")
    print(f"\nLoad of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

"""Where the bars of time and flow are measured: databases, drains, and workers as processes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

# Otherwise the first worker loads it, in the time that is measured.
import commandbus.worker.worker  # noqa: F401
from benchmarks.adapters.base import PAYLOAD
from benchmarks.figures import spread
from benchmarks.server import Server
from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    SendOptions,
    Settings,
    new_id,
)

DOMAIN = "bench"
CONCURRENCY = 250
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Scale:
    """How much is done."""

    pairs: int = 10
    drain: int = 15_000
    delayed: int = 1_000_000
    waiting: int = 100_000
    rate_seconds: float = 60.0
    rounds: int = 100


QUICK = Scale(3, 2_000, 50_000, 10_000, 10.0, 20)


@dataclass(frozen=True)
class Measured:
    """What a bar came to."""

    text: str
    is_met: bool
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """One line of the table."""

    key: str
    title: str
    bar: str
    measure: Callable[[FlowLab], Awaitable[Measured]]


class FlowLab:
    """Makes databases, and drains them."""

    def __init__(self, server: Server, scale: Scale) -> None:
        self.server = server
        self.scale = scale
        self._template: str | None = None

    @asynccontextmanager
    async def database(self, *, counts_statements: bool = False) -> AsyncIterator[str]:
        """A fresh one with all tables, and the domain."""
        if self._template is None:
            self._template = self.server.create()
            settings = Settings(maintenance=False)
            async with CommandBus.connect(self._template, settings=settings) as bus:
                command_id = new_id()
                await bus.send(DOMAIN, "Setup", command_id, {})  # the first use creates queues
                await bus.cancel(DOMAIN, command_id, "only for its queue")
        with self.server.database(self._template, counts_statements=counts_statements) as dsn:
            yield dsn

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self.server.drop(self._template)


@contextmanager
def looking(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for looks at the tables."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def commands(
    count: int, command_type: str = "Work", **options: Callable[[int], Any]
) -> Iterator[BatchCommand]:
    """Commands whose options are functions of their number."""
    for number in range(count):
        chosen: SendOptions = {name: make(number) for name, make in options.items()}  # type: ignore[assignment]
        yield BatchCommand(command_type, new_id(), PAYLOAD, **chosen)


async def send(dsn: str, given: Sequence[BatchCommand]) -> None:
    """In groups of ten thousand."""
    async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
        for place in range(0, len(given), 10_000):
            await bus.send_many(DOMAIN, given[place : place + 10_000])


async def drain(lab: FlowLab, dsn: str, given: Sequence[BatchCommand]) -> float:
    """Send, then drain by one worker: commands a second, to the last committed outcome."""
    await send(dsn, given)
    lab.server.checkpoint()
    first: list[float] = []
    left = len(given)
    is_done = asyncio.Event()
    async with CommandBus.connect(dsn) as bus:

        @bus.handler(DOMAIN, "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            nonlocal left
            if not first:
                first.append(time.perf_counter())
            left -= 1
            if not left:
                is_done.set()

        worker = asyncio.create_task(bus.run_worker(DOMAIN, concurrency=CONCURRENCY))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_done.wait()
            # stop() returns when every outcome is committed.
            await bus.stop()
            await worker
        return len(given) / (time.perf_counter() - first[0])


async def paired_drains(
    lab: FlowLab,
    base: Callable[[], Awaitable[float]],
    other: Callable[[], Awaitable[float]],
) -> tuple[list[float], list[float], list[float]]:
    """Ratios of neighbours, the order changing from pair to pair; and both rates."""
    ratios, ours, theirs = [], [], []
    for number in range(lab.scale.pairs):
        if number % 2:
            changed, plain = await other(), await base()
        else:
            plain, changed = await base(), await other()
        ratios.append(changed / plain)
        ours.append(changed)
        theirs.append(plain)
    return ratios, ours, theirs


def judged(ratios: list[float], ours: list[float], theirs: list[float], least: float) -> Measured:
    """The median of ratios against its bar."""
    found = spread(ratios)
    return Measured(
        f"{found} of {spread(theirs).median:,.0f}/s",
        found.median >= least,
        {"ratios": ratios, "rates": ours, "base_rates": theirs},
    )


@asynccontextmanager
async def serving(
    dsn: str,
    handler: Callable[[Command, HandlerContext], Awaitable[Any]],
    *,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[CommandBus]:
    """A worker in this process, with one handler for the types Work and Other."""
    async with CommandBus.connect(dsn, settings=settings or Settings()) as bus:
        for name in ("Work", "Other"):
            bus.register_handler(DOMAIN, name, handler)
        worker = asyncio.create_task(bus.run_worker(DOMAIN, **options))
        try:
            await asyncio.sleep(0.5)  # it has looked, and waits
            yield bus
        finally:
            await bus.stop()
            await worker


@asynccontextmanager
async def worker_processes(
    dsn: str, number: int, **config: Any
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Workers as processes of their own, all of which serve when the block begins."""
    document = json.dumps({"dsn": dsn, **config})
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.flow_worker", document,
            stdout=asyncio.subprocess.DEVNULL,
        )
        for _ in range(number)
    ]  # fmt: skip
    try:
        with looking(dsn) as conn:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                row = conn.execute("select count(*) from commandbus.command_bus_worker").fetchone()
                if row and row[0] >= number:
                    break
                await asyncio.sleep(0.05)
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()

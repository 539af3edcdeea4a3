"""The adapter's side of the protocol: one JSON document a line, in on stdin, out on stdout.

Standard library only: this file is imported in our environment and in that of the peers.

    {"do": "open", "dsn": ..., "settings": {...}, "tally": [path, slot], "setup": true}
    {"do": "bulk_send", "count": 1000}                   -> {"seconds": 0.1}
    {"do": "senders", "parallel": 10, "count": 1000}     -> {"seconds": 0.1, "latencies": [...]}
    {"do": "send_one"}                                   -> {"before": ..., "after": ...}
    {"do": "submissions", "count": 100, "children": 50}  -> {"latencies": [...]}
    {"do": "start_worker"}, {"do": "stop_worker"}, {"do": "close"}

An answer is {"ok": {...}} or {"error": "..."}. Times are seconds of the monotonic clock, which all
processes of one machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import json
import mmap
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

PAYLOAD: dict[str, Any] = {
    "account": "4711", "amount": 1250, "currency": "EUR", "note": "x" * 120,
}  # fmt: skip

#: Numbers that each worker process keeps: handlers started, first start, last start.
TALLY_FIELDS = 3
TALLY_SLOTS = 24


class Tally:
    """Counts started handlers in memory that is shared with the runner: no query, no lock."""

    def __init__(self, path: str, slot: int) -> None:
        with Path(path).open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self._base = slot * TALLY_FIELDS

    def hit(self) -> None:
        """A handler starts. The stamps come first: who sees the count sees them too."""
        numbers, base = self._numbers, self._base
        now = time.monotonic()
        if not numbers[base]:
            numbers[base + 1] = now
        numbers[base + 2] = now
        numbers[base] += 1


class Adapter(ABC):
    """What every system can do. `settings` are the system's own, plus `handler_ms`."""

    #: Distributions whose versions the report names.
    packages: ClassVar[tuple[str, ...]] = ()
    #: SQL: a row for each command that is not recorded as finished.
    unfinished: ClassVar[str] = ""
    #: Or, where that is not to be had, SQL: how many are recorded as finished.
    finished: ClassVar[str] = ""

    def __init__(self, dsn: dict[str, str], settings: dict[str, Any], tally: Tally) -> None:
        self.dsn = dsn
        self.settings = settings
        self.tally = tally
        self.handler_seconds = settings.get("handler_ms", 0) / 1_000

    @property
    def conninfo(self) -> str:
        """The address as key=value pairs, for libpq."""
        return self.dsn["conninfo"]

    @property
    def url(self) -> str:
        """The same as a URL."""
        return self.dsn["url"]

    async def handle(self) -> None:
        """What every handler does."""
        self.tally.hit()
        if self.handler_seconds:
            await asyncio.sleep(self.handler_seconds)

    async def setup(self) -> None:  # noqa: B027  (not all need it)
        """Create tables and queues in a fresh database."""

    @abstractmethod
    async def open(self) -> None:
        """Open connections."""

    @abstractmethod
    async def close(self) -> None:
        """Close them."""

    def make_ready(self, count: int) -> None:
        """Make what the next bulk send is given; the time for it is not measured."""
        raise NotImplementedError

    @abstractmethod
    async def bulk_send(self, count: int) -> None:
        """Queue `count` commands, all or none."""

    @abstractmethod
    async def send(self) -> None:
        """Queue one."""

    async def submissions(self, count: int, children: int) -> list[float]:
        """Submit governed batches to the system's own HTTP service; the seconds of each."""
        raise NotImplementedError

    @abstractmethod
    async def start_worker(self) -> None:
        """Start to process; returns when the worker was started, it goes on by itself."""

    @abstractmethod
    async def stop_worker(self) -> None:
        """Stop it."""


class Server:
    """Answers requests until the runner closes the line."""

    def __init__(self, kind: type[Adapter]) -> None:
        self._kind = kind
        self._adapter: Adapter | None = None
        self._verbs: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
            "open": self._open,
            "bulk_send": self._bulk_send,
            "senders": self._senders,
            "send_one": self._send_one,
            "submissions": self._submissions,
            "start_worker": self._start_worker,
            "stop_worker": self._stop_worker,
            "close": self._close,
        }

    @property
    def adapter(self) -> Adapter:
        """What `open` made."""
        assert self._adapter is not None
        return self._adapter

    async def run(self, answers: int) -> None:
        """Read, do, answer; `answers` is the file descriptor for the last."""
        reader = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := await reader.readline():
            request = json.loads(line)
            verb = request.pop("do")
            answer: dict[str, Any]
            try:
                answer = {"ok": await self._verbs[verb](**request)}
            except Exception as error:  # noqa: BLE001  (the runner decides what it means)
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            os.write(answers, json.dumps(answer).encode() + b"\n")
            if verb == "close":
                return

    async def _open(
        self, dsn: dict[str, str], settings: dict[str, Any], tally: list[Any], setup: bool
    ) -> dict[str, Any]:
        self._adapter = self._kind(dsn, settings, Tally(*tally))
        if setup:
            await self._adapter.setup()
        await self._adapter.open()
        versions = {name: importlib.metadata.version(name) for name in self._kind.packages}
        return {
            "versions": versions,
            "unfinished": self._kind.unfinished,
            "finished": self._kind.finished,
        }

    async def _bulk_send(self, count: int) -> dict[str, Any]:
        if self.adapter.settings.get("ready"):
            self.adapter.make_ready(count)
            gc.collect()
        began = time.monotonic()
        await self.adapter.bulk_send(count)
        return {"seconds": time.monotonic() - began}

    async def _senders(self, parallel: int, count: int) -> dict[str, Any]:
        latencies: list[float] = []

        async def sender() -> None:
            for _ in range(count // parallel):
                before = time.monotonic()
                await self.adapter.send()
                latencies.append(time.monotonic() - before)

        began = time.monotonic()
        await asyncio.gather(*(sender() for _ in range(parallel)))
        return {"seconds": time.monotonic() - began, "latencies": latencies}

    async def _send_one(self) -> dict[str, Any]:
        before = time.monotonic()
        await self.adapter.send()
        return {"before": before, "after": time.monotonic()}

    async def _submissions(self, count: int, children: int) -> dict[str, Any]:
        return {"latencies": await self.adapter.submissions(count, children)}

    async def _start_worker(self) -> dict[str, Any]:
        await self.adapter.start_worker()
        return {}

    async def _stop_worker(self) -> dict[str, Any]:
        await self.adapter.stop_worker()
        return {}

    async def _close(self) -> dict[str, Any]:
        await self.adapter.close()
        return {}


def serve(kind: type[Adapter]) -> None:
    """Run an adapter. What a library prints must not mix with the answers."""
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):
        if os.environ.get("BENCH_LOOP") == "uvloop":
            import uvloop  # noqa: PLC0415  (only where it was asked for)

            uvloop.run(Server(kind).run(answers))
        else:
            asyncio.run(Server(kind).run(answers))
    # Some libraries leave threads behind that would hold the process.
    sys.stderr.flush()
    os._exit(0)

"""One measurement: a fresh database, one system, its processes, and what is done with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.entrants import Entrant
from benchmarks.link import AdapterError, Board, Link, address
from benchmarks.server import Reading, Server

#: Between two looks at the tally, or at the system's own table.
LOOK_SECONDS = 0.002
#: The same, when single commands are timed.
CLOSE_LOOK_SECONDS = 0.0005
#: Rounds of the idle latency end after so long, for a system that takes seconds for each.
ROUNDS_SECONDS = 10.0
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Drained:
    """What a drain took."""

    seconds: float
    startup_seconds: float
    #: Postgres and Python CPU, in microseconds a command; WAL in bytes a command; statements, row
    #: versions made dead, share of HOT updates.
    cost: dict[str, float]


class Trial:
    """One system on one database."""

    def __init__(
        self,
        server: Server,
        conninfo: str,
        entrant: Entrant,
        settings: Mapping[str, Any],
        log: Path,
        stack: ExitStack,
    ) -> None:
        self.server = server
        self.conninfo = conninfo
        self.entrant = entrant
        self.settings = dict(settings)
        self._log = log
        self._stack = stack
        self._board = Board()
        self._links: list[Link] = []
        self._is_set_up = False
        self.sent = 0
        self.versions: dict[str, str] = {}
        self._looking = stack.enter_context(psycopg.connect(conninfo, autocommit=True))

    @classmethod
    @contextmanager
    def begun(
        cls,
        server: Server,
        entrant: Entrant,
        settings: Mapping[str, Any],
        log: Path,
        *,
        template: str | None = None,
        counts_statements: bool = False,
    ) -> Iterator[Trial]:
        """A trial on a fresh database; with a template, tables and rows are there already."""
        with ExitStack() as stack:
            conninfo = stack.enter_context(
                server.database(template, counts_statements=counts_statements)
            )
            trial = cls(server, conninfo, entrant, settings, log, stack)
            trial._is_set_up = template is not None
            yield trial

    def process(self, **settings: Any) -> Link:
        """One more adapter process, opened."""
        link = self._stack.enter_context(
            Link(
                self.entrant.module,
                is_peer=self.entrant.is_peer,
                log=self._log,
                loop=self.entrant.loop,
            )
        )
        opened = link.ask(
            "open",
            dsn=address(self.conninfo),
            settings={**self.settings, **settings},
            tally=[self._board.path, len(self._links)],
            setup=not self._is_set_up,
        )
        self._is_set_up = True
        self._links.append(link)
        self.versions = opened["versions"]
        self._unfinished, self._finished = opened["unfinished"], opened["finished"]
        return link

    def bulk_send(self, link: Link, count: int) -> float:
        """Queue so many at once; returns the seconds."""
        answer = link.ask("bulk_send", count=count, timeout=300)
        self.sent += count
        return float(answer["seconds"])

    def fill(self, count: int) -> None:
        """Queue so many by a process that is not measured."""
        with self.process() as link:
            self.bulk_send(link, count)

    def is_finished(self, remaining: int = 0) -> bool:
        """Whether the system's own tables say that all but so many are done."""
        if self._finished:
            row = self._looking.execute(self._finished).fetchone()  # type: ignore[call-overload]
            return bool(row[0] >= self.sent - remaining)
        query = f"select count(*) from ({self._unfinished} limit {remaining + 1}) found"
        row = self._looking.execute(query).fetchone()  # type: ignore[call-overload]
        return bool(row[0] <= remaining)

    def drain(
        self, workers: list[Link], count: int, *, remaining: int = 0, timeout: float = 180
    ) -> Drained:
        """Process what is queued: from the first handler's start to the last recorded end."""
        self._board.clear()
        deadline = time.monotonic() + timeout
        before = self.server.read(self.conninfo)
        python = sum(link.cpu_seconds() for link in workers)
        began = time.monotonic()
        for link in workers:
            link.post("start_worker")
        for link in workers:
            link.answer()
        ended = self._wait(count, remaining, deadline)
        python = sum(link.cpu_seconds() for link in workers) - python
        for link in workers:
            link.ask("stop_worker")
        first = self._board.first_start
        # Backends report their counters when they are idle, at the latest when they end.
        time.sleep(0.05)
        after = self.server.read(self.conninfo)
        return Drained(ended - first, first - began, costs(before, after, python, count))

    def _wait(self, count: int, remaining: int, deadline: float) -> float:
        """Until so many handlers have started, then until their ends are recorded."""
        while self._board.started < count:
            time.sleep(LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise AdapterError(f"only {self._board.started} of {count} started in time")
        while not self.is_finished(remaining):
            time.sleep(LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise AdapterError(f"{count} started, but not all were recorded in time")
        return time.monotonic()

    def rounds(self, sender: Link, count: int) -> tuple[list[float], list[float]]:
        """Send one, see it start, see it recorded, so many times; seconds from the send.

        The table is looked at only once the handler has started, so that looking does not slow
        down what is timed.
        """
        starts: list[float] = []
        ends: list[float] = []
        until = time.monotonic() + ROUNDS_SECONDS
        for _ in range(count):
            if len(starts) >= FEWEST_ROUNDS and time.monotonic() > until:
                break
            time.sleep(0.02)  # the worker is idle again
            seen = self._board.started
            deadline = time.monotonic() + 30
            sender.post("send_one")
            while self._board.started == seen:
                time.sleep(CLOSE_LOOK_SECONDS / 2)
                if time.monotonic() > deadline:
                    raise AdapterError("a command that was sent did not start within 30 s")
            self.sent += 1
            while not self.is_finished():
                time.sleep(CLOSE_LOOK_SECONDS)
                if time.monotonic() > deadline:
                    raise AdapterError("a command that ran was not recorded within 30 s")
            ended = time.monotonic()
            before = sender.answer()["before"]
            starts.append(self._board.last_start - before)
            ends.append(ended - before)
        return starts, ends

    @property
    def started(self) -> int:
        """Handlers that have started since the last clearing."""
        return self._board.started

    def wait_all(self, count: int, timeout: float = 120) -> float:
        """Until so many were handled and recorded; returns the moment."""
        return self._wait(count, 0, time.monotonic() + timeout)


def costs(before: Reading, after: Reading, python: float, count: int) -> dict[str, float]:
    """What one command cost."""
    a, b = asdict(after), asdict(before)
    spent = {name: a[name] - b[name] for name in a}
    return {
        "postgres_us": spent["cpu_seconds"] / count * 1e6,
        "python_us": python / count * 1e6,
        "wal_bytes": spent["wal_bytes"] / count,
        "statements": spent["statements"] / count,
        "dead_rows": (spent["updates"] + spent["deletes"]) / count,
        "hot_share": spent["hot_updates"] / spent["updates"] if spent["updates"] else 0.0,
    }

"""One measurement: a fresh database, one system, its processes, and what is done with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.entrants import Entrant
from benchmarks.link import AdapterError, Board, Link, address, machine_seconds
from benchmarks.server import Reading, Server

#: Between two looks at the tally, or at the system's own table.
LOOK_SECONDS = 0.002
#: The same, when single commands are timed.
CLOSE_LOOK_SECONDS = 0.0005
#: A worker has begun when it has started this number. Its connections have planned what they run
#: by then, and what they read of the catalogue is in their caches.
WARM = 100
#: Rounds of the idle latency end after so long, for a system that takes seconds for each.
ROUNDS_SECONDS = 6.0
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Drained:
    """What a drain took."""

    seconds: float
    startup_seconds: float
    #: Postgres and Python CPU, in microseconds a command; WAL in bytes a command; statements, row
    #: versions made dead, share of HOT updates.
    cost: dict[str, float]
    #: Of the largest worker process, at the end.
    resident_bytes: int
    #: Cores that were busy with anything: at as many as there are, more processes gain nothing.
    machine_cores: float
    #: Commands that the figures are of, if not all.
    count: int = 0


@dataclass(frozen=True)
class Mark:
    """A moment in a drain."""

    started: int
    at: float
    machine: float
    python: float
    server: Reading


def _cost(began: Mark, ended: Mark) -> dict[str, float]:
    """What a command cost between two moments."""
    return costs(began.server, ended.server, ended.python - began.python,
                 ended.started - began.started)  # fmt: skip


class Trial:
    """One system on one database."""

    def __init__(
        self,
        server: Server,
        conninfo: str,
        entrant: Entrant,
        settings: Mapping[str, Any],
        spawned: list[Link],
        stack: ExitStack,
    ) -> None:
        self.server = server
        self.conninfo = conninfo
        self.entrant = entrant
        self.settings = dict(settings)
        self._spawned = spawned
        self._board = Board()
        self._opened = 0
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
        template: str,
        processes: int = 2,
        counts_statements: bool = False,
    ) -> Iterator[Trial]:
        """A trial on a copy of a database in which the system's tables are.

        The processes start first: they import their libraries while the database is copied.
        """
        with ExitStack() as stack:
            spawned = [
                stack.enter_context(spawn(entrant, log, settings.get("loop")))
                for _ in range(processes)
            ]
            conninfo = stack.enter_context(
                server.database(template, counts_statements=counts_statements)
            )
            yield cls(server, conninfo, entrant, settings, spawned, stack)

    def process(self, **settings: Any) -> Link:
        """One more adapter process, opened."""
        link = self._spawned.pop(0)
        opened = link.ask(
            "open",
            dsn=address(self.conninfo),
            settings={**self.settings, **settings},
            tally=[self._board.path, self._opened],
            setup=False,
        )
        self._opened += 1
        self.versions = opened["versions"]
        self._unfinished, self._finished = opened["unfinished"], opened["finished"]
        return link

    def bulk_send(self, link: Link, count: int) -> float:
        """Queue that many at once; returns the seconds."""
        answer = link.ask("bulk_send", count=count, timeout=300)
        self.sent += count
        return float(answer["seconds"])

    def fill(self, count: int) -> None:
        """Queue that many by a process that is not measured."""
        with self.process() as link:
            self.bulk_send(link, count)

    def analyze(self) -> None:
        """Do now what autovacuum would do in some drains and not in others."""
        with psycopg.connect(self.server.superuser_dsn_of(self.conninfo), autocommit=True) as conn:
            conn.execute("analyze")

    def is_finished(self, remaining: int = 0) -> bool:
        """Whether the system's own tables say that at most that many are not done."""
        if self._finished:
            return self._count(sql.SQL(self._finished)) >= self.sent - remaining
        # Counted no further than needed: looking must stay cheap.
        query = sql.SQL("select count(*) from ({} limit {}) found").format(
            sql.SQL(self._unfinished), remaining + 1
        )
        return self._count(query) <= remaining

    def _count(self, query: sql.SQL | sql.Composed) -> int:
        row = self._looking.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def drain(
        self, workers: list[Link], count: int, *, remaining: int = 0, timeout: float = 180
    ) -> Drained:
        """Process what is queued: from the first handler's start to the last recorded end."""
        self._board.clear()
        deadline = time.monotonic() + timeout
        before = self.server.read(self.conninfo)
        python = sum(link.cpu_seconds() for link in workers)
        began, machine = time.monotonic(), machine_seconds()
        for link in workers:
            link.post("start_worker")
        for link in workers:
            link.answer()
        ended = self._wait(count, remaining, deadline)
        machine_cores = (machine_seconds() - machine) / (ended - began)
        python = sum(link.cpu_seconds() for link in workers) - python
        after_cpu, after_wal = self.server.cpu_seconds(), self.server.wal_bytes()
        resident = max(link.resident_bytes() for link in workers)
        for link in workers:
            link.close()
        # Backends report their counters of rows when they are idle, at the latest when they end.
        time.sleep(0.1)
        after = replace(self.server.read(self.conninfo), cpu_seconds=after_cpu, wal_bytes=after_wal)
        first = self._board.first_start
        cost = costs(before, after, python, count)
        return Drained(ended - first, first - began, cost, resident, machine_cores)

    def steady(
        self, workers: list[Link], count: int, *, timeout: float = 180
    ) -> tuple[Drained, dict[str, float]]:
        """Process what is queued, measured once all processes are at work, to nine tenths of it.

        What a process costs when it starts, its connections and its first plans, is no part of
        that: with many processes and few commands for each it would be most of it. The second
        figure is the cost of a command with that beginning.
        """
        self._board.clear()
        deadline = time.monotonic() + timeout
        first = self._mark(workers)
        for link in workers:
            link.post("start_worker")
        # An equal share of a fifth would be WARM for each, or more.
        while not self._board.have_started(len(workers), WARM):
            self._look_again(count, deadline)
        began = self._mark(workers)
        if began.started > count // 2:
            raise AdapterError(f"{began.started} of {count} were done before all had begun")
        while self._board.started < count * 9 // 10:
            self._look_again(count, deadline)
        ended = self._mark(workers)
        for link in workers:
            link.answer()
        self._wait(count, 0, deadline)
        resident = max(link.resident_bytes() for link in workers)
        for link in workers:
            link.close()
        seconds = ended.at - began.at
        cores = (ended.machine - began.machine) / seconds
        done = ended.started - began.started
        drained = Drained(seconds, 0.0, _cost(began, ended), resident, cores, done)
        return drained, _cost(first, ended)

    def _mark(self, workers: list[Link]) -> Mark:
        """The counters as they are now."""
        python = sum(link.cpu_seconds() for link in workers)
        reading = self.server.read(self.conninfo)
        return Mark(self._board.started, time.monotonic(), machine_seconds(), python, reading)

    def _look_again(self, count: int, deadline: float) -> None:
        time.sleep(LOOK_SECONDS)
        if time.monotonic() > deadline:
            raise AdapterError(f"only {self._board.started} of {count} started in time")

    def _wait(self, count: int, remaining: int, deadline: float) -> float:
        """Until that many handlers have started, then until their ends are recorded."""
        while self._board.started < count:
            self._look_again(count, deadline)
        while not self.is_finished(remaining):
            time.sleep(LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise AdapterError(f"{count} started, but not all were recorded in time")
        return time.monotonic()

    def rounds(self, sender: Link, count: int) -> tuple[list[float], list[float]]:
        """Send one, see it start, see it recorded, several times; seconds from the send.

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
        """Until that many were handled and recorded; returns the moment."""
        return self._wait(count, 0, time.monotonic() + timeout)


def spawn(entrant: Entrant, log: Path, loop: str | None = None) -> Link:
    """A process of this system, not opened yet; `loop` may be "uvloop"."""
    return Link(entrant.module, is_peer=entrant.is_peer, log=log, loop=loop, source=entrant.source)


def set_up(conninfo: str, entrant: Entrant, log: Path) -> None:
    """Create the tables and queues of a system in an empty database."""
    board = Board()
    with spawn(entrant, log) as link:
        link.ask("open", dsn=address(conninfo), settings={}, tally=[board.path, 0], setup=True)
        link.ask("close")


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

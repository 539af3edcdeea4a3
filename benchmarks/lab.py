"""Where measurements are made: the server, its template databases, and how large everything is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.entrants import Entrant
from benchmarks.history import FILLS
from benchmarks.server import Server
from benchmarks.trial import Trial, set_up


@dataclass(frozen=True)
class Case:
    """One column of a workload: a system, its settings, and what is special about the run."""

    label: str
    entrant: Entrant
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """How much is done in one measurement."""

    #: Commands of a drain, before a slow system's share.
    drain: int = 15_000
    #: Single sends with one sender, and with many.
    sends: int = 600
    many_sends: int = 3_000
    #: Rounds of the idle latency.
    rounds: int = 60

    def commands(self, case: Case) -> int:
        """Commands of a drain for this case."""
        if "count" in case.options:
            return int(case.options["count"])
        share = case.entrant.share * case.options.get("share", 1.0)
        return max(100, int(self.drain * share))


class Lab:
    """Makes trials."""

    def __init__(self, server: Server, size: Size, log: Path | None = None) -> None:
        self.server = server
        self.size = size
        self.log = log or Path(tempfile.gettempdir()) / "commandbus-benchmarks.log"
        self.versions: dict[str, str] = {}
        self._templates: dict[str, str] = {}

    @contextmanager
    def trial(self, case: Case, **settings: Any) -> Iterator[Trial]:
        """A fresh database for this case."""
        fill, rows = case.options.get("behind", (None, 0))
        template = self.template(case.entrant, fill, rows)
        with Trial.begun(
            self.server,
            case.entrant,
            {**case.settings, **settings},
            self.log,
            template=template,
            processes=1 + case.options.get("workers", 1),
            counts_statements=bool(case.options.get("counts_statements")),
        ) as trial, ExitStack() as stack:  # fmt: skip
            if case.options.get("snapshot"):
                stack.enter_context(held_snapshot(trial.conninfo))
            yield trial
            self.versions.update(trial.versions)

    def template(self, entrant: Entrant, fill: str | None = None, rows: int = 0) -> str:
        """A database with the tables of a system, and rows; made once, copied often."""
        key = f"{entrant.module} {entrant.source} {fill} {rows}"
        if key not in self._templates:
            conninfo = self.server.create()
            set_up(conninfo, entrant, self.log)
            if fill is not None:
                with psycopg.connect(conninfo, autocommit=True) as conn:
                    for statement in FILLS[fill]:
                        conn.execute(statement, {"rows": rows})
                    conn.execute("vacuum analyze")
            self._templates[key] = conninfo
        return self._templates[key]

    def close(self) -> None:
        """Drop the templates."""
        for conninfo in self._templates.values():
            self.server.drop(conninfo)
        self._templates.clear()


@contextmanager
def held_snapshot(conninfo: str) -> Iterator[None]:
    """Another connection that looks at the database as it is now, and does not let go."""
    with psycopg.connect(conninfo) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from pg_class")
        yield
        conn.rollback()

"""Where mutants are tried: one server, one template database, one forked pytest for each mutant.

The tests find this server and this template by themselves: all processes of a test run share the
data folder that is named after the run, and we name the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from commandbus import Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.store.migrations import FUNCTION_FILES
from commandbus.store.postgres_doctor import PostgresDoctor
from commandbus.wiring import migrate_database
from tests.conftest import data_folder
from tests.mutants.sql_sites import Mutant, function_source, statements
from tests.mutants.washing import OneDatabase

ROOT = Path(__file__).parents[2]
TEMPLATE = "commandbus_template"
#: Those of tests/conftest.py, so that its fixture takes this server for its own.
SERVER_SETTINGS = {
    "fsync": "off", "max_connections": "300", "autovacuum": "off", "track_functions": "all",
    # A mutant that waits in a circle, or for ever, must not take longer than it needs.
    "deadlock_timeout": "200ms",
}  # fmt: skip


#: A run that took so long may have met a time-out, in seconds.
LATE = 12.0
#: Plugins of pytest that a mutant's tests do without.
LEFT_OUT = (
    "randomly", "cacheprovider", "pytest_cov", "xdist", "xdist.looponfail", "schemathesis",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant."""

    outcome: str  # killed, survived, invalid
    seconds: float
    tests: int
    #: The first test that failed, or what went wrong.
    by: str = ""

    @property
    def is_killed(self) -> bool:
        return self.outcome == "killed"


class Lab:
    """A server with a template database in which functions can be exchanged."""

    def __init__(self) -> None:
        self.run_id = secrets.token_hex(8)
        self._folder = data_folder(self.run_id)
        self._server = EmbeddedPostgres(self._folder, settings=SERVER_SETTINGS)
        self._trusted: dict[str, bool] = {}
        self._killers: set[str] = set()
        self._originals = {
            name: text
            for file in FUNCTION_FILES
            for name, _, text in statements(function_source(file))
        }

    def __enter__(self) -> Self:
        warm_up()
        self._server.start()
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
            asyncio.run(migrate_database(self._dsn(TEMPLATE), Settings()))
            admin.execute(
                sql.SQL("alter database {} is_template true").format(sql.Identifier(TEMPLATE))
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dsn(self, database: str) -> str:
        return make_conninfo(self._server.dsn, dbname=database)

    def _install(self, statement: str) -> None:
        with psycopg.connect(self._dsn(TEMPLATE)) as conn:
            conn.execute(statement.encode())

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The template has this mutant inside the block."""
        self._install(mutant.statement)
        try:
            yield
        finally:
            self._install(self._originals[mutant.function])

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> Verdict:
        """Run the tests against the mutant until one fails that can be trusted."""
        left = [test for test in tests if self._trusted.get(test, True)]
        while True:
            try:
                with self.mutated(mutant):
                    verdict = self.run(left, seconds)
                    # A busy machine fails once, by being late.
                    is_sure = (
                        verdict.by not in left
                        or (verdict.by in self._killers and verdict.seconds < LATE)
                        or self.run([verdict.by], seconds).is_killed
                    )
            except psycopg.Error as error:
                return Verdict("invalid", 0, 0, " ".join(str(error).split())[:200])
            if not verdict.is_killed:
                return verdict
            if is_sure and self._is_trusted(verdict.by):
                self._killers.add(verdict.by)
                return verdict
            left.remove(verdict.by)

    def _is_trusted(self, test: str) -> bool:
        """Whether the test passes without a mutant, in the conditions of the laboratory."""
        if test not in self._trusted:
            runs = (self.run([test], 60).outcome for _ in range(2))  # once more if it fails
            self._trusted[test] = any(outcome == "survived" for outcome in runs)
        return self._trusted[test]

    def run(self, tests: Sequence[str], seconds: float) -> Verdict:
        """Run tests in a fork until one fails."""
        environment = {"PYTEST_XDIST_TESTRUNUID": self.run_id}
        try:
            return run_tests(tests, seconds, environment=environment, plugin=OneDatabase())
        finally:
            self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """The databases of the fork, which may have been killed."""
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as admin:
            rows = admin.execute("select datname from pg_database where datname like 'test_%'")
            for (name,) in rows.fetchall():
                admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def warm_up() -> None:
    """Import what every fork would import again: the plugins of pytest."""
    for plugin in entry_points(group="pytest11"):
        if plugin.name not in LEFT_OUT:
            plugin.load()


def run_tests(
    tests: Sequence[str],
    seconds: float,
    *,
    environment: dict[str, str],
    plugin: Any = None,
    stops_at_failure: bool = True,
) -> Verdict:
    """pytest in a forked process, which has everything imported already."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        report = Path(folder) / "report"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            arguments = [*(["-x"] if stops_at_failure else []), *tests]
            _child(arguments, report, environment, plugin)
        code = _wait(pid, began + seconds)
        spent = time.monotonic() - began
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    ran = sum(not line.startswith("FAILED ") for line in lines)
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if failed:
        return Verdict("killed", spent, ran, failed[0])
    if code is None and ran:
        # A test that hangs fails by its own time-out: here there were only too many.
        return Verdict("survived", spent, ran, f"{ran} of {len(tests)} tests in {seconds:g} s")
    if code == 0 and ran:
        return Verdict("survived", spent, ran)
    return Verdict("invalid", spent, ran, f"pytest ended with {code}")


class _Reporter:
    """Writes a line for each test that ran, and for each that failed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._file.write(f"{report.nodeid}\n")
        if report.failed:
            self._file.write(f"FAILED {report.nodeid}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._file.write(f"FAILED {report.nodeid} (import)\n")


async def _no_symptoms(*_: object) -> list[Any]:
    return []


def _child(
    wanted: Sequence[str], report: Path, environment: dict[str, str], plugin: Any
) -> None:  # pragma: no cover - runs in a fork, and ends it
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.chdir(ROOT)
        os.environ.update(environment)
        # The doctor knows a changed function by its text: that would be too easy.
        PostgresDoctor._schema = _no_symptoms  # type: ignore[method-assign, assignment]
        arguments = [
            "-q", *(word for name in LEFT_OUT for word in ("-p", f"no:{name}")),
            "--assert=plain", "--timeout=20", "--no-header", *wanted,
        ]  # fmt: skip
        plugins = [_Reporter(report), *([plugin] if plugin else [])]
        code = int(pytest.main(arguments, plugins=plugins))
    finally:
        os._exit(code)


def _wait(pid: int, deadline: float) -> int | None:
    """The exit code of a child; None if it had to be killed."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None

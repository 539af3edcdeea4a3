"""Where mutants are tried: one server, one database, and the tests collected once.

The tests find this server and its template by themselves: all processes of a test run share the
data folder that is named after the run, and we name the run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from commandbus import Settings
from commandbus.database.migrations import FUNCTION_FILES
from commandbus.embedded import EmbeddedPostgres
from commandbus.upkeep import doctor
from commandbus.wiring import migrate_database
from tests.conftest import data_folder
from tests.mutants.bench import Bench, Ran, collect
from tests.mutants.forks import Verdict, warm_up
from tests.mutants.sql_sites import Mutant, function_source, statements
from tests.mutants.washing import OneDatabase

TEMPLATE = "commandbus_template"
#: Those of tests/conftest.py, so that its fixture takes this server for its own.
SERVER_SETTINGS = {
    "fsync": "off", "full_page_writes": "off", "max_connections": "300", "autovacuum": "off",
    "track_functions": "all",
    # A mutant that waits in a circle, or for ever, must not take longer than it needs.
    "deadlock_timeout": "200ms",
}  # fmt: skip

#: A test may take so many times what it took before, and so much more, in seconds: the machine may
#: be busy.
TIMES, MORE = 8.0, 5.0
#: The same by pytest's clock, for those of which nothing is known.
TIMEOUT = 30.0


class Lab:
    """A server with a database in which functions can be exchanged, and the tests that are tried.

    `took` says of tests how long they take, in seconds.
    """

    def __init__(self) -> None:
        self.took: Mapping[str, float] = {}
        self._run_id = secrets.token_hex(8)
        self._folder = data_folder(self._run_id)
        self._server = EmbeddedPostgres(self._folder, settings=SERVER_SETTINGS)
        self._database = OneDatabase(self._new_database)
        self._trusted: dict[str, bool] = {}
        self._bench: Bench | None = None
        self._originals = {
            name: text
            for file in FUNCTION_FILES
            for name, _, text in statements(function_source(file))
        }

    def __enter__(self) -> Self:
        warm_up()
        self._server.start()
        with self._admin() as admin:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
            asyncio.run(migrate_database(self._dsn(TEMPLATE), Settings()))
            admin.execute(
                sql.SQL("alter database {} is_template true").format(sql.Identifier(TEMPLATE))
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def with_tests(self, files: Sequence[str], work: Callable[[], None]) -> None:
        """Collect the tests of these files, and do the work while they are there."""

        def begin(bench: Bench) -> None:
            self._bench = bench
            bench.warm_up()
            work()

        # The doctor knows a changed function by its text: that would be too easy.
        doctor._schema_findings = _no_findings  # type: ignore[assignment]
        os.environ["PYTEST_XDIST_TESTRUNUID"] = self._run_id
        code = collect(files, [self._database], begin, TIMEOUT)
        if self._bench is None:
            raise SystemExit(f"the tests cannot be collected: pytest ended with {code}")

    @property
    def tests(self) -> list[str]:
        """All that are collected."""
        assert self._bench is not None
        return list(self._bench.items)

    def record(self, tests: Sequence[str]) -> Ran:
        """Run all of these tests, and note which functions they call."""

        def watch(tell: Callable[[str, list[str]], None]) -> None:
            self._database.recorder = tell

        assert self._bench is not None
        try:
            return self._bench.run(
                tests, 900, patience=lambda _: TIMEOUT + MORE, stops_at_failure=False, watch=watch
            )
        finally:
            self._drop_leftovers()

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> Verdict:
        """Run the tests against the mutant until one fails that can be trusted."""
        left = [test for test in tests if self._trusted.get(test, True)]
        ran = 0
        try:
            while left:
                try:
                    self._database.exchange(mutant.function, mutant.statement)
                except psycopg.Error as error:
                    return Verdict("invalid", 0, 0, " ".join(str(error).split())[:200])
                verdict = self._run(left, seconds)
                ran += verdict.tests
                # A busy machine fails once, by being late.
                if verdict.is_killed and not self._run([verdict.by], seconds).is_killed:
                    left = left[left.index(verdict.by) + 1 :]
                    continue
                if not verdict.is_killed:
                    return Verdict(verdict.outcome, verdict.seconds, ran, verdict.by)
                self._database.restore(mutant.function, self._originals[mutant.function])
                if self._is_trusted(verdict.by):
                    return Verdict("killed", verdict.seconds, ran, verdict.by)
                left = left[left.index(verdict.by) + 1 :]
            return Verdict("survived", 0, ran)
        finally:
            self._database.restore(mutant.function, self._originals[mutant.function])

    def _is_trusted(self, test: str) -> bool:
        """Whether the test passes without a mutant, in the conditions of the laboratory."""
        if test not in self._trusted:
            runs = (self._run([test], 60).outcome for _ in range(2))  # once more if it fails
            self._trusted[test] = any(outcome == "survived" for outcome in runs)
        return self._trusted[test]

    def _run(self, tests: Sequence[str], seconds: float) -> Verdict:
        assert self._bench is not None
        try:
            return self._bench.run(tests, seconds, patience=self._patience).verdict
        finally:
            self._drop_leftovers()

    def _patience(self, test: str) -> float:
        return MORE + TIMES * self.took.get(test, TIMEOUT / TIMES)

    # -- databases

    def _dsn(self, database: str) -> str:
        return make_conninfo(self._server.dsn, dbname=database)

    def _admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._dsn("postgres"), autocommit=True)

    def _new_database(self) -> str:
        name = f"test_{secrets.token_hex(6)}"
        with self._admin() as admin:
            admin.execute(
                sql.SQL("create database {} template {} strategy file_copy").format(
                    sql.Identifier(name), sql.Identifier(TEMPLATE)
                )
            )
        return self._dsn(name)

    def _drop_leftovers(self) -> None:
        """The databases of a fork, which may have been killed."""
        with self._admin() as admin:
            rows = admin.execute(
                "select datname from pg_database where datname like 'test_%%' and datname <> %s",
                (self._database.name,),
            )
            for (name,) in rows.fetchall():
                admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def _no_findings(*_: object) -> list[Any]:
    return []

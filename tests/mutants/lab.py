"""Where mutants are tried: one server, one template database, one forked pytest for each mutant.

The tests find this server and this template by themselves: all processes of a test run share the
data folder that is named after the run, and we name the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
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
from tests.mutants.forks import Verdict, run_tests, warm_up
from tests.mutants.sql_sites import Mutant, function_source, statements
from tests.mutants.washing import OneDatabase

TEMPLATE = "commandbus_template"
#: Those of tests/conftest.py, so that its fixture takes this server for its own.
SERVER_SETTINGS = {
    "fsync": "off", "max_connections": "300", "autovacuum": "off", "track_functions": "all",
    # A mutant that waits in a circle, or for ever, must not take longer than it needs.
    "deadlock_timeout": "200ms",
}  # fmt: skip


#: A run that took so long may have met a time-out, in seconds.
LATE = 12.0


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
            # Loading a function takes its planner settings away.
            conn.execute(function_source("planner").encode())

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
            return run_tests(
                tests, seconds, environment=environment, plugins=[OneDatabase()],
                prepare=_blind_doctor,
            )  # fmt: skip
        finally:
            self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """The databases of the fork, which may have been killed."""
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as admin:
            rows = admin.execute("select datname from pg_database where datname like 'test_%'")
            for (name,) in rows.fetchall():
                admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def _no_findings(*_: object) -> list[Any]:
    return []


def _blind_doctor() -> None:  # pragma: no cover - runs in a fork
    # The doctor knows a changed function by its text: that would be too easy.
    doctor._schema_findings = _no_findings  # type: ignore[assignment]

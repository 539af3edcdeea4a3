"""Which test calls which SQL function, as the server counted it (`track_functions`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest


class CallRecorder:
    """A pytest plugin: before a test's database is dropped, asks it what was called in it."""

    def __init__(self) -> None:
        self.calls: dict[str, list[str]] = {}
        self.failed: set[str] = set()
        self._current = ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        conftest: Any = sys.modules["tests.conftest"]
        conftest._new_database = self._watched(conftest._new_database)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._current = item.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def _watched(self, new_database: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def watched(server: Any, template: str | None) -> Iterator[str]:
            generator = new_database(server, template)
            dsn = next(generator)
            nodeid = self._current
            yield dsn
            if template is not None:
                self.calls[nodeid] = called_functions(dsn)
            next(generator, None)

        return watched


def called_functions(dsn: str) -> list[str]:
    """The functions of ours that were called in this database; ends all other sessions in it.

    Sessions hand in their counts when they end, so they are made to.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        others = (
            "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        conn.execute(f"select pg_terminate_backend(pid, 5000) {others}".encode())
        rows = conn.execute(
            "select funcname from pg_stat_user_functions where schemaname = 'commandbus'"
            " and calls > 0 order by 1"
        ).fetchall()
    return [str(row[0]) for row in rows]

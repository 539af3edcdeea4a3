"""The database of the laboratory: like new for each test, with the function that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.conftest import Server, _new_database
from tests.mutants.sql_sites import function_source, statements
from tests.mutants.washing import OneDatabase

SENT = "select count(*) from commandbus.command_bus_command"
SETTINGS = "select prosecdef, proconfig from pg_proc where proname = 'send_command'"


class Made:
    """Makes databases, and knows how many."""

    def __init__(self, server: Server, template: str) -> None:
        self._server, self._template = server, template
        self._open: list[Iterator[str]] = []

    def __call__(self) -> str:
        self._open.append(_new_database(self._server, self._template))
        return next(self._open[-1])

    def __len__(self) -> int:
        return len(self._open)

    def drop(self) -> None:
        for made in self._open:
            next(made, None)


@pytest.fixture
def made(server: Server, template: str) -> Iterator[Made]:
    made = Made(server, template)
    yield made
    made.drop()


@contextmanager
def lent(database: OneDatabase) -> Iterator[psycopg.Connection[Any]]:
    """A connection to what a test would get."""
    lending = database.lending(_new_database)(None, "template")
    with psycopg.connect(next(lending), autocommit=True) as conn:
        yield conn
    next(lending, None)


def value(conn: psycopg.Connection[Any], query: str, *params: object) -> Any:
    row = conn.execute(query.encode(), params).fetchone()
    return row and row[0]


def test_tests_that_send_get_the_same_database_and_find_it_empty(made: Made) -> None:
    database = OneDatabase(made)
    for _ in range(3):
        with lent(database) as conn:
            assert value(conn, SENT) == 0
            assert value(conn, "select count(*) from pgmq.meta") == 0
            conn.execute("select commandbus.send_command('payments', 'Debit', %s)", [uuid4()])
    assert len(made) == 1


def test_a_test_that_changes_the_schema_is_followed_by_another_database(made: Made) -> None:
    database = OneDatabase(made)
    with lent(database) as conn:
        conn.execute("drop function commandbus.nobody() cascade")
    with lent(database) as conn:
        assert value(conn, "select commandbus.nobody()") is not None
    assert len(made) == 2


def test_a_function_is_another_one_until_it_is_restored_and_keeps_its_settings(made: Made) -> None:
    original = next(
        text for name, _, text in statements(function_source("sending")) if name == "send_command"
    )
    database = OneDatabase(made)
    with lent(database) as conn:
        before = conn.execute(SETTINGS).fetchone()
    database.exchange("send_command", original.replace("begin", "begin return null;", 1))
    for _ in range(2):
        with lent(database) as conn:
            conn.execute("select commandbus.send_command('payments', 'Debit', %s)", [uuid4()])
            assert value(conn, SENT) == 0
            assert conn.execute(SETTINGS).fetchone() == before
            conn.execute("create table commandbus.left_behind ()")  # and so another database
    database.restore("send_command", original)
    with lent(database) as conn:
        conn.execute("select commandbus.send_command('payments', 'Debit', %s)", [uuid4()])
        assert value(conn, SENT) == 1
        assert conn.execute(SETTINGS).fetchone() == before


@pytest.mark.parametrize(
    ("file", "name"), [("shards", "close_domains"), ("moving_parts", "put_moved_rows")]
)
def test_settings_that_need_quotes_come_back_as_they_were(made: Made, file: str, name: str) -> None:
    settings = "select proconfig from pg_proc where proname = %s"
    original = next(text for known, _, text in statements(function_source(file)) if known == name)
    database = OneDatabase(made)
    with lent(database) as conn:
        before = value(conn, settings, name)
    database.exchange(name, original)
    database.restore(name, original)
    with lent(database) as conn:
        assert value(conn, settings, name) == before
    assert len(made) == 1

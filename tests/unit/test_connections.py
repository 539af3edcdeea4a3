"""Statements in the style of each driver, where connections come from, and DSNs without secrets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from commandbus.database.connections import ConnectionSource, Statement
from commandbus.database.foreign import run_on_foreign
from commandbus.errors import InvalidInputError
from commandbus.privacy.redaction import redact_text
from tests.statements import statements

CANARY = "cAnArY-55"
STATEMENTS = statements()


def test_a_statement_is_written_for_each_driver() -> None:
    statement = Statement("select {schema}.f(%s, cast(%s as jsonb))", "my_schema")
    assert statement.psycopg == b'select "my_schema".f(%s, cast(%s as jsonb))'
    assert statement.asyncpg == 'select "my_schema".f($1, cast(cast($2 as text) as jsonb))'
    assert statement.sqlalchemy == 'select "my_schema".f(:p1, cast(:p2 as jsonb))'


def test_a_statement_without_parameters_has_no_placeholders() -> None:
    statement = Statement("select 1", "x")
    assert (statement.psycopg, statement.asyncpg, statement.sqlalchemy) == (
        b"select 1", "select 1", "select 1",
    )  # fmt: skip


def test_the_statements_of_all_folders_are_found() -> None:
    folders = {name.split(".")[1] for name in STATEMENTS}
    assert {"database", "batches", "loads", "troubleshooting", "governance", "upkeep"} <= folders
    assert len(STATEMENTS) > 60


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_can_be_said_in_every_style(name: str) -> None:
    text = STATEMENTS[name]
    statement = Statement(text, "other")
    count = text.count("%s")
    assert re.findall(r"\$(\d+)", statement.asyncpg) == [str(n) for n in range(1, count + 1)]
    assert re.findall(r":p(\d+)", statement.sqlalchemy) == [str(n) for n in range(1, count + 1)]
    # `::` would be read as a parameter by SQLAlchemy; the default schema must not be built in.
    assert "::" not in text
    assert "commandbus." not in statement.asyncpg


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://app:{CANARY}@db:5432/x",
        f"postgresql://app:p@ss{CANARY}@db/x",
        f"postgresql://:{CANARY}@db/x",
        f"postgresql://app@db/x?password={CANARY}&sslmode=require",
        f"host=db password={CANARY} user=app",
        f"host=db password = {CANARY}",
        f"host=db password='{CANARY} with \\' and spaces' user=app",
        f"host=db password=a\\ {CANARY} user=app",
        f"host=db PASSWORD={CANARY}",
        f"host=db sslpassword={CANARY}",
        f"host=db password='{CANARY} not closed",
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn: str) -> None:
    shown = redact_text(dsn)
    assert CANARY not in shown
    assert "[REDACTED]" in shown
    assert "db" in shown


@pytest.mark.parametrize(
    "dsn", ["postgresql://app@db:5432/x", "host=db user=app port=5432", "", "dbname=x"]
)
def test_a_dsn_without_a_password_is_shown_as_it_is(dsn: str) -> None:
    assert redact_text(dsn) == dsn


def test_what_stands_around_the_password_is_kept() -> None:
    assert redact_text(f"host=db password={CANARY} user=app") == (
        "host=db password=[REDACTED] user=app"
    )
    assert redact_text(f"postgresql://app:{CANARY}@db:5432/x") == (
        "postgresql://app:[REDACTED]@db:5432/x"
    )


class Psycopg:
    """Stands for an object of psycopg that is no connection."""

    __module__ = "psycopg.cursor"


class SqlAlchemyEngine:
    __module__ = "sqlalchemy.engine.base"


class AsyncpgPool:
    __module__ = "asyncpg.pool"

    async def fetch(self, *args: Any) -> list[Any]:
        raise AssertionError("a pool has no transaction to join")


@pytest.mark.parametrize(
    "conn", [object(), "postgresql://x", 5, Psycopg(), SqlAlchemyEngine(), AsyncpgPool(), object]
)
async def test_a_connection_is_refused_by_name_when_there_is_no_transaction_to_join(
    conn: object,
) -> None:
    with pytest.raises(
        InvalidInputError, match=r"conn is a \S+; use a psycopg, SQLAlchemy or asyncpg connection"
    ):
        await run_on_foreign(conn, Statement("select 1", "x"), ())


async def test_a_source_asks_anew_each_time_because_passwords_rotate() -> None:
    passwords = iter(["one", "two"])

    async def conninfo() -> str:
        return f"host=db password={next(passwords)}"

    source = ConnectionSource(conninfo, lambda: {"application_name": "app"})
    assert (await source.resolve())[0].endswith("one")
    address, options = await source.resolve()
    assert address.endswith("two")
    assert options["application_name"] == "app"


async def test_a_source_opens_autocommit_connections_whatever_the_pool_says() -> None:
    source = ConnectionSource("", {"autocommit": False, "connect_timeout": 9})
    _, options = await source.resolve()
    assert options["autocommit"] is True
    assert options["connect_timeout"] == 9


async def test_a_source_finds_dead_peers_by_itself() -> None:
    _, options = await ConnectionSource("", None).resolve()
    assert {"connect_timeout", "keepalives_idle", "tcp_user_timeout"} <= set(options)

"""`db`, and which database a command uses."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)


@pytest.fixture
def run(dsn: str) -> Any:
    """Run the program on the test's database."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


def test_db_status_knows_current_missing_and_pending(dsn: str, empty_dsn: str, run: Any) -> None:
    current = run("db", "status")
    missing = CliRunner().invoke(app, ["db", "status", "--dsn", empty_dsn])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "update commandbus.command_bus_setting set value = 'old'"
            " where name = 'functions_checksum'"
        )
    pending = run("db", "status")
    document = run("db", "status", "--json")

    assert current.exit_code == 0
    assert "The database is up to date." in current.stdout
    assert missing.exit_code == 3
    assert "run `commandbus db init`" in missing.stdout
    assert pending.exit_code == 3
    assert "Run `commandbus db migrate`." in pending.stdout
    assert document.exit_code == 3
    assert json.loads(document.stdout)["is_current"] is False


def test_db_status_of_a_newer_database_is_no_reason_to_migrate(run: Any, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into commandbus.command_bus_migration (version, name, checksum)"
            " values (9999, 'future', 'x')"
        )

    result = run("db", "status")

    assert result.exit_code == 0
    assert "newer than this package" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("db", "status"), ("db", "status", "--json"), ("db", "migrate"), ("db", "init"),
        ("doctor",), ("list",), ("db", "prune"),
    ],
)  # fmt: skip
def test_a_database_that_every_process_refuses_has_its_own_exit_code_and_advice(
    run: Any, dsn: str, words: tuple[str, ...]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into commandbus.command_bus_migration (version, name, checksum, is_breaking)"
            " values (9999, 'future', 'x', true)"
        )

    result = run(*words)

    assert result.exit_code == 5
    assert "version 9999 needs newer code than this package" in result.stderr
    assert "upgrade commandbus" in result.stderr
    if "--json" in words:
        document = json.loads(result.stdout)
        assert document["is_current"] is False
        assert "upgrade commandbus" in document["refusal"]


def test_db_status_is_not_well_where_processes_refuse_the_scope_of_ids(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_COMMAND_ID_SCOPE", "global")

    result = run("db", "status")

    assert result.exit_code == 2
    assert "command_id_scope is 'global' here but 'domain' in the database" in result.stderr


def test_db_init_sets_up_and_migrate_brings_up_to_date(empty_dsn: str) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["db", *arguments, "--dsn", empty_dsn])
        assert result.exit_code == 0
        return result.stdout

    assert run("init").startswith("Applied 0001_initial")
    assert run("init").startswith("The database is set up already, at version ")
    assert run("migrate") == "Nothing to do: the database is up to date.\n"
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("delete from commandbus.command_bus_setting where name ~ 'checksum'")
    assert run("migrate") == "Reloaded the functions; the tables were up to date.\n"


def test_a_look_at_the_wrong_database_leaves_nothing_there(empty_dsn: str) -> None:
    result = CliRunner().invoke(app, ["list", "--dsn", empty_dsn])

    assert result.exit_code == 3
    assert "run `commandbus db init`" in result.stderr
    with psycopg.connect(empty_dsn) as connection:
        row = connection.execute("select to_regnamespace('commandbus')").fetchone()
    assert row == (None,)


def test_the_address_may_come_from_the_environment(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_DSN", dsn)

    assert CliRunner().invoke(app, ["list"]).stdout == "No commands.\n"


def test_a_server_that_is_not_there_ends_with_exit_code_4() -> None:
    dsn = "host=127.0.0.1 port=1 user=x password=geheim"

    result = CliRunner().invoke(app, ["list", "--dsn", dsn])

    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")
    assert "geheim" not in result.output

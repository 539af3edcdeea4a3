"""The demo on a database that was given, in this process; its workers are real all the same."""

from __future__ import annotations

import json

import psycopg
import pytest
from typer.testing import CliRunner

from commandbus.cli.main import app
from commandbus.demo import run as demo_run

pytestmark = pytest.mark.long


def test_the_demo_runs_on_a_database_that_was_given(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_DSN", "host=127.0.0.1 port=1")

    result = CliRunner().invoke(app, ["demo", "--json", "-n", "200", "--dsn", dsn])

    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["sent"], figures["completed"], figures["lost"]) == (200, 188, 0)
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from commandbus_demo.effect").fetchone()
    # One more than completed: the operator's.
    assert row == (189,)


def test_a_run_that_makes_no_progress_is_given_up_and_counted_as_lost(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "STALL_SECONDS", 0.0)

    result = CliRunner().invoke(app, ["demo", "--json", "-n", "5000", "--no-kill", "--dsn", dsn])

    assert result.exit_code == 1
    figures = json.loads(result.stdout)
    assert figures["lost"] > 0
    assert figures["ok"] is False
    assert "lost or had two effects" in result.stderr

"""`priority …` against a real database."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LOGNAME", "bob")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


def test_the_level_of_what_waits_is_changed_and_audited(run: Run) -> None:
    first, second = (run("send", "shop", "Charge").stdout.strip() for _ in range(2))
    changed = run("priority", "set", first, second, "--to", "2")
    assert changed.exit_code == 0, changed.output
    assert "2 commands have priority 2" in changed.stdout
    answer = json.loads(run("priority", "set", first, "--to", "-1", "--json").stdout)
    assert answer == {"commands": 1, "priority": -1}

    trail = run("show", first, "--json").stdout
    assert "PRIORITY_CHANGED" in trail
    assert "bob" in trail


def test_a_level_that_is_none_and_an_unknown_id_are_refused(run: Run) -> None:
    sent = run("send", "shop", "Charge").stdout.strip()
    assert run("priority", "set", sent, "--to", "3").exit_code == 2
    assert run("priority", "set", "5b6f4c3e-0000-4000-8000-000000000000", "--to", "1").exit_code


def test_what_a_level_is_worth_is_changed(run: Run) -> None:
    run("send", "shop", "Charge")
    assert "worth 300 s" in run("priority", "worth", "shop", "300").stdout
    answer = json.loads(run("priority", "worth", "shop", "0", "--json").stdout)
    assert answer == {"domain": "shop", "level_seconds": 0.0}
    assert run("priority", "worth", "shop", "-1").exit_code == 2

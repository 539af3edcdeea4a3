"""`limits …` and the pause of a type, against a real database."""

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


def test_a_limit_is_set_shown_and_cleared(run: Run) -> None:
    assert "No limits" in run("limits", "show").stdout
    made = run("limits", "set", "shop", "--type", "Work", "--max-running", "3", "--rate", "10",
               "--reason", "slow", "--json")  # fmt: skip
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert (found["max_running"], found["rate"], found["burst"]) == (3, 10, 2)
    assert found["updated_by"] == "bob"
    table = run("limits", "show", "--domain", "shop").stdout
    assert "0 of 3" in table
    (listed,) = json.loads(run("limits", "show", "--json").stdout)["limits"]
    assert listed["type"] == "Work"
    keys = run("limits", "show", "--domain", "shop", "--keys", "Work", "--json")
    assert json.loads(keys.stdout) == {"keys": []}
    of_all = run("limits", "show", "--keys", "Work")
    assert of_all.exit_code == 2
    assert "--domain" in of_all.stderr
    assert "is removed" in run("limits", "clear", "shop", "--type", "Work").stdout
    assert "no such limit" in run("limits", "clear", "shop", "--type", "Work").stdout


@pytest.mark.parametrize("wrong", [["--max-running", "0"], ["--rate", "-1"], []])
def test_a_limit_that_cannot_be_is_refused(run: Run, wrong: list[str]) -> None:
    refused = run("limits", "set", "shop", *wrong)
    assert refused.exit_code != 0
    assert "No limits" in run("limits", "show").stdout


def test_a_type_is_paused_and_resumed(run: Run) -> None:
    assert run("send", "shop", "Work").exit_code == 0
    paused = run("pause", "shop", "--type", "Work", "--reason", "wrong template")
    assert "Work of shop is paused" in paused.stdout
    assert "wrong template" in paused.stdout
    assert "paused" in run("limits", "show").stdout
    assert "is resumed" in run("resume", "shop", "--type", "Work").stdout
    assert "was not paused" in run("resume", "shop", "--type", "Work").stdout

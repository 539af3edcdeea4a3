"""`schedule …` against a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

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


@pytest.fixture
def nightly(run: Run) -> dict[str, Any]:
    """A schedule, as --json prints it."""
    made = run(
        "schedule", "put", "reports", "nightly", "Build", "--data", '{"password": "hunter2"}',
        "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--jitter", "30s",
        "--expires-in", "1h", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def test_a_schedule_is_put_listed_and_shown(run: Run, nightly: dict[str, Any]) -> None:
    assert (nightly["cron"], nightly["timezone"]) == ("30 2 * * *", "Europe/Berlin")
    assert (nightly["jitter_seconds"], nightly["expires_in_seconds"]) == (30, 3600)
    assert (nightly["status"], nightly["created_by"]) == ("active", "bob")
    listed = json.loads(run("schedule", "list", "--json").stdout)["schedules"]
    assert [each["name"] for each in listed] == ["nightly"]
    table = run("schedule", "list", "--domain", "reports").stdout
    assert "30 2 * * * (Europe/Berlin)" in table
    shown = run("schedule", "show", "reports", "nightly", "--payload").stdout
    assert "Build" in shown
    assert "after that" in shown
    document = json.loads(run("schedule", "show", "reports", "nightly", "--json").stdout)
    assert len(document["next_ticks"]) == 3
    assert "data" not in document
    with_payload = run("schedule", "show", "reports", "nightly", "--payload", "--json").stdout
    assert "data" in json.loads(with_payload)
    assert "hunter2" not in shown + with_payload
    assert "No schedules" in run("schedule", "list", "--domain", "elsewhere").stdout


def test_a_schedule_is_paused_resumed_triggered_and_deleted(
    run: Run, nightly: dict[str, Any]
) -> None:
    place = ("reports", "nightly")
    assert "is paused" in run("schedule", "pause", *place, "--reason", "holidays").stdout
    assert "bob: holidays" in run("schedule", "show", *place).stdout
    wanted = str(uuid4())
    for _ in range(2):
        assert run("schedule", "trigger", *place, "--id", wanted).stdout.strip() == wanted
    assert "is active; next" in run("schedule", "resume", *place, "--catch-up").stdout
    trail = run("audit", nightly["schedule_id"]).stdout
    for event in ("SCHEDULE_PUT", "SCHEDULE_PAUSED", "SCHEDULE_TRIGGERED", "SCHEDULE_RESUMED"):
        assert event in trail
    assert "is deleted" in run("schedule", "delete", *place).stdout
    gone = run("schedule", "delete", *place)
    assert gone.exit_code == 1
    assert "schedule list" in gone.stderr
    assert run("schedule", "show", *place).exit_code == 1


def test_a_preview_prints_the_next_ticks(run: Run, nightly: dict[str, Any]) -> None:
    del nightly
    ticks = json.loads(run("schedule", "preview", "--every", "10m", "-n", "3", "--json").stdout)
    assert len(ticks["ticks"]) == 3
    lines = run("schedule", "preview", "reports", "nightly").stdout.splitlines()
    assert len(lines) == 10
    past = run("schedule", "preview", "--at", "2020-01-01T00:00")
    assert "No tick is left" in past.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give one of cron, every and at"),
        (("--cron", "0 0 30 2 *"), "not understood"),
        (("--cron", "* * * * *", "--timezone", "Mars/Olympus"), "no time zone"),
        (("--every", "soon"), "--every is 'soon'; write 30s"),
        (("--every", "10m", "--cron", "* * * * *"), "there is cron and every"),
        (("--at", "tomorrow"), "--at is 'tomorrow'"),
        (("--every", "10m", "--data", "["), "is not JSON"),
        (("--every", "10m", "--jitter", "x"), "--jitter is 'x'"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    run: Run, options: tuple[str, ...], message: str
) -> None:
    result = run("schedule", "put", "reports", "x", "Build", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "No schedules" in run("schedule", "list").stdout

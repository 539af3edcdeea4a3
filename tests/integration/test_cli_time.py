"""`send --in`, `reschedule`, `pause`, `resume` and `list --scheduled` against a real database."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the program on the test's database."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sent(run: Any, *options: str) -> str:
    command_id: str = document(run("send", "shop", "Sell", *options, "--json"))["command_id"]
    return command_id


def shown(run: Any, command_id: str) -> Any:
    return document(run("show", command_id, "--json"))["command"]


def test_a_command_is_sent_for_later(run: Any) -> None:
    delayed = shown(run, sent(run, "--in", "10m", "--expires-in", "1h", "--priority", "1"))
    seconds = datetime.fromisoformat(delayed["due_at"]) - datetime.fromisoformat(
        delayed["created_at"]
    )
    assert seconds == timedelta(minutes=10)
    assert (delayed["priority"], delayed["expires_at"] > delayed["due_at"]) == (1, True)
    at = (datetime.now().astimezone() + timedelta(days=1)).isoformat(timespec="minutes")
    tomorrow = shown(run, sent(run, "--at", at, "--limit-key", "c"))
    assert datetime.fromisoformat(tomorrow["due_at"]) == datetime.fromisoformat(at)
    text = run("show", tomorrow["command_id"]).stdout
    assert "due" in text
    assert "limit key" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--in", "soon"], "write a duration"),
        (["--in", "10"], "write a duration"),
        (["--in", "999999999w"], "--in is"),
        (["--in", "400d"], "delay is"),
        (["--at", "noon"], "2026-05-01T10:00"),
        (["--in", "1m", "--at", "2126-01-01"], "use one of them"),
        (["--expires-in", "1m", "--expires-at", "2126-01-01"], "use one of them"),
        (["--in", "2m", "--expires-in", "1m"], "longer than delay"),
        (["--expires-at", "2001-01-01T00:00Z"], "in the past"),
        (["--priority", "9"], "priority is 9"),
        (["--ordering-key", "k", "--in", "1m"], "cannot be delayed"),
    ],
)
def test_a_time_that_cannot_be_is_a_usage_error(run: Any, options: list[str], says: str) -> None:
    result = run("send", "shop", "Sell", *options)
    assert result.exit_code == 2, result.output
    assert says in result.stderr


def test_commands_are_rescheduled_and_listed(run: Any) -> None:
    first, second = sent(run, "--in", "2h"), sent(run, "--in", "1h")
    listed = document(run("list", "--scheduled", "-d", "shop", "--json"))["commands"]
    assert [each["command_id"] for each in listed] == [second, first]
    assert second in run("list", "--scheduled", "-d", "shop").stdout

    moved = document(run("reschedule", first, second, "--in", "3h", "--operator", "ann", "--json"))
    assert [each["command_id"] for each in moved["commands"]] == [first, second]
    assert "is due now" in run("reschedule", first, "--now").stdout
    assert shown(run, first)["due_at"] is None
    assert "is due at" in run("reschedule", second, "--at", "2026-12-31T10:00Z").stdout
    assert document(run("list", "--waiting", "-d", "shop", "--json"))["commands"] == []


@pytest.mark.parametrize(
    "options", [[], ["--now", "--in", "1m"], ["--in", "1m", "--at", "2126-01-01"]]
)
def test_a_reschedule_needs_one_time(run: Any, options: list[str]) -> None:
    result = run("reschedule", sent(run), *options)
    assert (result.exit_code, "say when" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "options", [["--scheduled"], ["--scheduled", "--waiting", "-d", "shop"],
                ["--waiting", "-d", "shop", "--status", "PENDING"]]
)  # fmt: skip
def test_a_timetable_is_of_one_domain(run: Any, options: list[str]) -> None:
    result = run("list", *options)
    assert (result.exit_code, "list one domain" in result.stderr) == (2, True)


def test_a_domain_is_paused_and_resumed(run: Any) -> None:
    sent(run)
    paused = run("pause", "shop", "--reason", "stocktaking", "--for", "2h", "--operator", "ann")
    assert paused.exit_code == 0, paused.output
    assert "shop is paused since" in paused.stdout
    assert "by ann: stocktaking" in paused.stdout
    assert document(run("resume", "shop", "--json"))["was_paused"]
    assert "was not paused" in run("resume", "shop").stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--reason", " "],
        ["--reason", "x", "--until", "2001-01-01"],
        ["--reason", "x", "--for", "2h", "--until", "2126-01-01"],
        ["--reason", "x", "--for", "0s"],
        [],
    ],
)
def test_a_pause_that_cannot_be_is_a_usage_error(run: Any, options: list[str]) -> None:
    sent(run)
    assert run("pause", "shop", *options).exit_code == 2


def test_rows_of_a_file_have_times_or_get_those_of_all(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"command_type": "Sell", "data": {}, "delay_seconds": 7_200},
        {"command_type": "Sell", "data": {}},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    for verb in (["batch", "create"], ["batch", "load"]):
        made = document(run(*verb, "shop", str(file), "--in", "1h", "--priority", "-1", "--json"))
        found = document(run("list", "--batch", made["batch_id"], "--json"))["commands"]
        hours = [
            round((_time(c["deliver_at"]) - _time(c["created_at"])) / timedelta(hours=1))
            for c in found
        ]
        assert sorted(hours) == [1, 2], verb
        assert {c["priority"] for c in found} == {-1}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)

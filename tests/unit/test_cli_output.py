"""Tables, JSON, times and log lines."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from commandbus import ParkReason, ReplyError
from commandbus.cli import output
from commandbus.cli.output import Column, Table

FRUITS = Table[tuple[str, int, str]](
    Column("NAME", lambda fruit: fruit[0]),
    Column("COUNT", lambda fruit: fruit[1], is_number=True),
    Column("NOTE", lambda fruit: fruit[2], may_fold=True),
)
ROWS = [("[red]apples[/]", 7, ""), ("figs", 1_200, "ripe")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_in(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of stdout. Called in the test: pytest changes stdout after fixtures."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    return screen


def test_a_table_is_plain_and_aligned_when_nobody_watches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    FRUITS.print(ROWS)

    assert capsys.readouterr().out == (
        "NAME    COUNT  NOTE\n"
        "apples      7\n"
        "figs    1,200  ripe\n"
    )  # fmt: skip


def test_a_table_has_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_in(monkeypatch)

    FRUITS.print(ROWS)

    assert "\x1b[31mapples" in terminal.getvalue()


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_in(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")

    output.say("[red]alarm[/]")

    assert terminal.getvalue() == "alarm\n"


def test_a_dumb_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_in(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")

    FRUITS.print(ROWS)

    assert "\x1b" not in terminal.getvalue()


def test_json_has_stable_keys_iso_times_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    output.print_json(
        {
            "at": when.astimezone(tz=None),
            "id": UUID(int=1),
            "where": Path("/x"),
            "error": ReplyError("C", None, "K"),
            "many": (ParkReason.PERMANENT, 1),
            3: None,
        }
    )

    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-01-02T03:04:05+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "where": "/x",
        "error": {"code": "C", "message": None, "error_class": "K"},
        "many": ["PERMANENT", 1],
        "3": None,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0012, "1.2 ms"),
        (0.0999, "0.10 s"),
        (59.5, "59.50 s"),
        (180, "3 min"),
        (7_200, "2.0 h"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_a_time_of_today_has_no_date() -> None:
    now = datetime.now(UTC)

    assert len(output.moment(now)) == len("12:34:56")
    assert output.moment(now - timedelta(days=400)).startswith("20")


def test_markup_in_a_value_is_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(output.text_of("[red]x[/]"))

    assert capsys.readouterr().out == "[red]x[/]\n"


def test_a_status_without_a_colour_stays_as_it_is() -> None:
    assert output.styled_status("PENDING") == "PENDING"
    assert output.styled_status("COMPLETED") == "[green]COMPLETED[/]"

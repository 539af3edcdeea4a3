"""How values are written on pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from commandbus.http.console import formats
from commandbus.http.console.forms import MAX_FIELDS, Form
from commandbus.http.problems import Problem


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.NOTHING),
        (0.0123, "12 ms"),
        (1.25, "1.2 s"),
        (75, "1 min 15 s"),
        (3_600, "1 h"),
        (timedelta(days=3, hours=4, minutes=5), "3 d 4 h"),
        (-75, "-1 min 15 s"),
    ],
)
def test_durations_have_their_unit(value: float | timedelta | None, text: str) -> None:
    assert formats.duration(value) == text


def test_numbers_are_grouped_and_whole_ones_never_rounded() -> None:
    assert formats.number(1_234_567) == "1,234,567"
    assert formats.number(12.345) == "12.3"
    assert formats.number(1234.5) == "1,234"
    assert formats.number(None) == formats.NOTHING
    assert formats.rate(0.25) == "0.25/s"
    assert formats.rate(120.0) == "120/s"
    assert formats.rate(None) == formats.NOTHING
    assert formats.plural(1, "command") == "1 command"
    assert formats.plural(1204, "batch", "batches") == "1,204 batches"


def test_times_are_in_utc_with_their_zone() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=13)))

    assert formats.utc(moment) == "2026-01-01 14:04:05 UTC"
    assert formats.iso(moment) == "2026-01-01T14:04:05Z"
    assert formats.now().tzinfo is UTC


@pytest.mark.parametrize(
    ("code", "message", "name"),
    [
        ("NO_ACCOUNT", "account <n> is missing", "account <n> is missing"),
        ("KeyError", "<text>", "KeyError: <text>"),
        ("TIMEOUT", "", "TIMEOUT"),
        (None, "<n>", "<n>"),
        (None, None, "(no message)"),
    ],
)
def test_a_cause_is_called_by_what_says_something(
    code: str | None, message: str | None, name: str
) -> None:
    assert formats.cause(SimpleNamespace(error_code=code, message=message)) == name


def test_every_state_has_a_word_and_an_unknown_one_is_shown_as_it_is() -> None:
    assert formats.look_of("IN_TROUBLESHOOTING_QUEUE").word == "In troubleshooting"
    assert formats.look_of("SOMETHING_NEW") == formats.StateLook(
        "Something new", "s-pending", "pending"
    )


def test_bars_fill_the_width_and_show_the_smallest_part() -> None:
    found = formats.bars([("done", "done", 999_999), ("failed", "failed", 1), ("left", "left", 0)])

    assert [each.number for each in found] == [999_999, 1, 0]
    assert all(each.x >= 0 and each.x + each.width <= 100.01 for each in found)
    assert found[2].width == 0
    assert all(each.width == 0 for each in formats.bars([("done", "done", 0)]))


def test_a_line_begins_at_zero() -> None:
    assert formats.points([0, 5, 10], 120, 24) == "3,21 60,12 117,3"
    assert formats.points([None]) == "3,21"


def test_a_difference_shows_what_goes_and_what_comes() -> None:
    lines = formats.diff({"a": 1, "b": 2}, {"a": 1, "b": 3})

    assert ("gone", '  "b": 2') in lines
    assert ("new", '  "b": 3') in lines
    assert formats.diff("x", "x") == []


def test_backticks_are_code() -> None:
    assert formats.prose("a `b` c") == [("a ", False), ("b", True), (" c", False)]


# -- forms


def test_fields_of_a_form_are_read_and_checked() -> None:
    form = Form.of(b"a=1&a=2&reason=+so%0D%0Awhat+&n=1,204&d=2.5&empty=")

    assert form.many("a") == ["1", "2"]
    assert form.text("reason") == "so\nwhat"
    assert (form.number("n"), form.number("x", 7), form.decimal("d"), form.decimal("x")) == (
        1204,
        7,
        2.5,
        None,
    )
    assert form.checked("a")
    assert not form.checked("b")
    for broken in (
        lambda: form.text("a"),
        lambda: form.number("reason"),
        lambda: form.decimal("reason"),
        lambda: form.required("empty", "Empty"),
    ):
        with pytest.raises(Problem):
            broken()


@pytest.mark.parametrize(
    "body", [b"\xff=1", b"a=%00", b"&".join([b"a=1"] * (MAX_FIELDS + 1)), b"a=%FF"]
)
def test_a_form_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        Form.of(body)

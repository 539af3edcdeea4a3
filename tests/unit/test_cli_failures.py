"""Failures in words: what kind it was, and where in the code it was raised."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.cli.failures import kind_of, print_stack, raised, told

LEASE = {
    "worker": "w1",
    "leased_at": "2026-05-01T10:00:00.000000Z",
    "lease_ended_at": "2026-05-01T10:00:30.000000Z",
}
CRASH = "it crashed, was killed, or lost its connection"


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (LEASE, f"before the lease ran out: {CRASH}"),
        (LEASE | {"worker_seen_at": "2026-05-01T10:00:20.000000Z"}, CRASH),
        (LEASE | {"worker_seen_at": "2026-05-01T10:00:20.000000Z"}, ": silent since "),
        (LEASE | {"worker_seen_at": "2026-05-01T10:00:31.000000Z"}, "it is alive (seen "),
        ({}, "the worker crashed, was killed, or lost its connection"),
    ],
)
def test_a_lapse_says_who_had_the_lease_and_whether_it_lives(
    details: dict[str, Any], words: str
) -> None:
    left = dict(details)
    [text] = told("LEASE_EXPIRED", left)
    assert words in text
    assert left == {}
    parked = {"code": "LEASE_EXPIRED", "details": dict(details)}
    assert told("FAILED", parked) == ([text] if details else [])


@pytest.mark.parametrize("value", [7, "soon", None, ["x"], "2026-05-01"])
def test_details_of_a_handler_that_uses_the_code_of_a_lapse_do_no_harm(value: Any) -> None:
    own = {"worker": value, "leased_at": value, "lease_ended_at": value, "worker_seen_at": value}
    assert len(told("FAILED", {"code": "LEASE_EXPIRED", "details": own})) == 1


def test_other_events_speak_for_themselves() -> None:
    assert told("FAILED", {"code": "DOWN", "details": {"worker": "w1"}}) == []
    assert told("STALE_RESULT_REJECTED", {"lease_epoch": 1}) == [
        "a worker that had lost its lease brought a result; it was ignored"
    ]


def test_only_codes_of_the_bus_have_a_kind() -> None:
    assert kind_of("HANDLER_TIMEOUT") != kind_of("LEASE_EXPIRED")
    assert kind_of("DOWN") is None
    assert kind_of(None) is None


def test_a_stack_is_printed_with_what_led_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_stack(
        {
            "exception": "shop.DownError",
            "frames": ["shop/a.py:1 f", "shop/b.py:2 g[x]"],
            "frames_left_out": 7,
            "causes": [
                {"relation": "context", "exception": "KeyError", "message": "'a'", "frames": ["c"]}
            ],
        }
    )
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Stack of the last failure, innermost last",
        "  … 7 frames left out",
        "  shop/a.py:1 f",
        "  shop/b.py:2 g[x]",
        "  shop.DownError",
        "raised while handling KeyError: 'a'",
        "  c",
    ]


def test_where_it_was_raised_is_one_line_and_names_the_first_frame_only_if_it_is_another() -> None:
    stack = {"exception": "KeyError", "first": "a:1 f", "last": "b:2 g", "frames": ["a:1 f", "c"]}
    assert raised(stack) == "KeyError at b:2 g, called from a:1 f"
    assert raised(stack | {"first": "b:2 g"}) == "KeyError at b:2 g"
    assert raised({"exception": "KeyError", "frames": ["x"]}) == "KeyError at x"
    assert raised({}) == "? at ?"

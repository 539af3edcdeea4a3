"""Edits of payloads: what is put back, and what the audit keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commandbus.errors import InvalidPayloadError
from commandbus.privacy.redaction import redact_payload
from commandbus.privacy.values import MASK
from commandbus.troubleshooting.edits import MAX_CHANGES, MAX_SHOWN, difference
from commandbus.troubleshooting.unmasking import unmasked


def test_a_difference_names_what_changed_was_added_and_removed() -> None:
    old = {"a": 1, "b": {"c": [1, 2, 3]}, "gone": None, "same": True}
    new = {"a": 2, "b": {"c": [1, 5]}, "same": True, "new": {"x": 1}}

    assert difference(old, new) == {
        "changed": [
            {"path": "data.a", "from": "1", "to": "2"},
            {"path": "data.b.c[1]", "from": "2", "to": "5"},
        ],
        "removed": [
            {"path": "data.b.c[2]", "from": "3"},
            {"path": "data.gone", "from": "null"},
        ],
        "added": [{"path": "data.new", "to": '{"x": 1}'}],
    }


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), ("1", 1), ([], {}), (1, 1.0)])
def test_another_type_is_a_change(old: Any, new: Any) -> None:
    assert len(difference({"a": old}, {"a": new})["changed"]) == 1


def test_no_difference_is_empty() -> None:
    assert difference({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == {}


def test_a_difference_is_bounded() -> None:
    old = {f"k{n:03}": "x" * 10_000 for n in range(500)}
    new = {f"k{n:03}": "y" * 10_000 for n in range(500)}

    changes = difference(old, new)

    assert len(changes["changed"]) == MAX_CHANGES
    assert changes["more"] == 500 - MAX_CHANGES
    assert all(len(c["from"]) <= MAX_SHOWN for c in changes["changed"])
    assert len(json.dumps(changes)) < 10_000


def test_secrets_are_masked_also_where_they_are_repeated() -> None:
    old = {"password": "hunter22", "text": "was hunter22", "card": {"no": "4711-1"}}
    new = {"password": "hunter33", "text": "is hunter33", "card": {"no": "4711-2"}}

    changes = difference(old, new, marked={"card"})

    assert "hunter" not in str(changes)
    assert "4711" not in str(changes)
    assert {"path": "data.card.no", "from": MASK, "to": MASK} in changes["changed"]


def test_what_was_only_masked_or_cut_for_the_eye_is_put_back() -> None:
    old = {
        "token": "t-1", "long": "x" * 2_000, "login": "user=a password=b", "n": 1,
        "list": [{"of": "a", "secret": "s"}, {"of": "b", "secret": "r"}], "card": "4711",
    }  # fmt: skip
    shown = redact_payload(old, {"card"})
    shown["n"] = 2
    del shown["list"][0]
    assert shown["card"] == MASK

    assert unmasked(shown, old, {"card"}) == {**old, "n": 2, "list": [{"of": "b", "secret": "r"}]}


@pytest.mark.parametrize(
    "edited", [{"new": MASK}, {"list": [1, f"a {MASK}"]}, {"token": f"{MASK}x"}]
)
def test_a_mask_that_stands_for_nothing_is_refused(edited: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError, match="give the real value"):
        unmasked(edited, {"token": "t"})


def test_a_payload_that_had_the_mask_itself_may_keep_it() -> None:
    assert unmasked({"a": MASK, "b": 2}, {"a": MASK, "b": 1}) == {"a": MASK, "b": 2}

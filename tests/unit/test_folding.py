"""Items as a table: what is equal is told once, what is masked never is, extremes are marked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.governance import ChildStatus, Extremes, ReviewedChild, fold_items
from commandbus.privacy.values import MASK


def child(number: int, payload: Any) -> ReviewedChild:
    return ReviewedChild(
        UUID(int=number), number, ChildStatus.PENDING, None, payload, 0, False, None
    )


def test_what_is_equal_in_all_items_is_told_once_and_extremes_are_marked() -> None:
    folded = fold_items(
        [
            child(1, {"zone": "eu", "vm": {"cpu": 4, "name": "a"}, "tags": ["x"], "ok": True}),
            child(2, {"zone": "eu", "vm": {"cpu": 64, "name": "b"}, "tags": ["x"], "ok": 1}),
            child(3, {"zone": "eu", "vm": {"cpu": 64, "name": "b"}, "tags": ["x"], "ok": True}),
        ]
    )
    assert folded.equal == {"zone": "eu", "tags": ["x"]}
    assert folded.columns == ("vm.cpu", "vm.name", "ok")  # true is not 1
    assert folded.rows[1] == (2, {"vm.cpu": 64, "vm.name": "b", "ok": 1})
    assert folded.extremes == {"vm.cpu": Extremes(smallest=1, largest=2)}


def test_what_is_masked_or_missing_is_never_said_to_be_equal() -> None:
    folded = fold_items(
        [
            child(1, {"token": MASK, "n": 1, "list": [MASK]}),
            child(2, {"token": MASK, "list": [MASK]}),
        ]
    )
    assert folded.equal == {}
    assert folded.columns == ("token", "n", "list")
    assert folded.extremes == {}


def test_one_item_none_and_odd_ones_are_shown_as_they_are() -> None:
    assert fold_items([]).columns == ()
    alone = fold_items([child(1, {"n": 1})])
    assert (alone.equal, alone.rows) == ({}, ((1, {"n": 1}),))
    odd = fold_items([child(1, None), child(2, {"a": {}, "b": {"c": {"d": {"e": {"f": 1}}}}})])
    assert odd.rows == ((1, {}), (2, {"a": {}, "b.c.d.e": {"f": 1}}))
    mixed = fold_items([child(1, {"n": 1}), child(2, {"n": "2"}), child(3, {"n": 3})])
    assert mixed.extremes == {}

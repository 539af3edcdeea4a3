"""meta: what may travel with a command, and what is shown of it."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.errors import InvalidInputError
from commandbus.meta import check_meta, decode_meta, shown_meta, size_of
from commandbus.privacy.values import MASK


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ("tenant", "meta is a str"),
        ([("a", "b")], "meta is a list"),
        ({f"k{n}": "" for n in range(21)}, "at most 20"),
        ({"a": 1}, r"meta\['a'\] is a int"),
        ({"a": None}, "all values of meta are texts"),
        ({3: "a"}, "a key of meta"),
        ({"": "a"}, "a key of meta"),
        ({"k" * 101: "a"}, "a key of meta"),
        ({"a": "\x00"}, "cannot keep"),
        ({"a": "\ud800"}, "cannot keep"),
        ({"a": "x" * 2_048}, "2,056 bytes"),
        ({"a": "é" * 1_023}, "at most 2,048"),
        ({"api_token": "x"}, "name of a secret"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(meta: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text) as caught:
        check_meta(meta)
    assert "xxxx" not in str(caught.value)


def test_what_fits_is_copied_and_nothing_is_none() -> None:
    given = {"tenant": "north"}
    found = check_meta(given)
    given["tenant"] = "south"
    assert found == {"tenant": "north"}
    assert check_meta({}) is None
    assert check_meta(None) is None
    most = {"a": "x" * 2_040}
    assert size_of(most) == 2_048
    assert check_meta(most) == most


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, None), ("{", None), ("[1]", None), (7, None), ("{}", None), ('{"a": 1}', None),
        ('{"a": 1, "b": "c"}', {"b": "c"}), ({"b": "c"}, {"b": "c"}),
    ],
)  # fmt: skip
def test_what_other_programs_wrote_is_read_without_an_error(found: Any, expected: Any) -> None:
    assert decode_meta(found) == expected


def test_a_secret_that_came_by_sql_is_masked_when_it_is_shown() -> None:
    assert shown_meta({"password": "p", "tenant": "t"}) == {"password": MASK, "tenant": "t"}
    assert shown_meta(None) is None

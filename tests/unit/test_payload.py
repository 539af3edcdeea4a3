"""Payloads: what cannot come back as it was is refused, with the path to the place."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commandbus import payload as payload_module
from commandbus.errors import InvalidPayloadError
from commandbus.payload import (
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_DEPTH,
    MAX_SAFE_INTEGER,
    decode_payload,
    encode_json,
    encode_payload,
)

CANARY = "canary-7f3a"


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


def nested(depth: int) -> dict[str, Any]:
    """An object so many levels deep."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"d": value}
    return value


REFUSED: list[tuple[Any, str]] = [
    ({"a": math.nan}, r"data\.a is nan, .* use null"),
    ({"a": [1, math.inf]}, r"data\.a\[1\] is inf"),
    ({"a": -math.inf}, r"data\.a is -inf"),
    ({"a": "x\x00y"}, r"data\.a contains a NUL"),
    ({"x\x00y": 1}, r"a key of data contains a NUL"),
    ({"a": {"b": "\ud800"}}, r"data\.a\.b contains half of a surrogate"),
    ({"\udfff": 1}, r"a key of data contains half of a surrogate"),
    ({"a": "\ud83d\ude00"}, r"data\.a contains half of a surrogate"),
    ({1: "a"}, r"data has a key .*not text"),
    ({None: "a"}, r"data has a key .*not text"),
    ({Colour.RED: 1}, r"data has a key .*not text"),
    ({"a": MAX_SAFE_INTEGER + 1}, r"data\.a is an integer beyond .* send it as text"),
    ({"a": -MAX_SAFE_INTEGER - 1}, r"data\.a is an integer beyond"),
    ({"a": 10**400}, r"data\.a is an integer beyond"),
    ({"a": {1, 2}}, r"data\.a is a set, .* convert it first"),
    ({"a": datetime.now(UTC)}, r"data\.a is a datetime, .* str\(value\)"),
    ({"a": Decimal(1)}, r"data\.a is a Decimal"),
    ({"a": uuid4()}, r"data\.a is a UUID"),
    ({"a": b"x"}, r"data\.a is a bytes"),
    ({"a": object()}, r"data\.a is a object"),
    ({"a": Colour.RED}, r"data\.a is a Colour; convert it to a plain"),
    ({"a": Number.ONE}, r"data\.a is a Number; convert it to a plain"),
    (nested(MAX_PAYLOAD_DEPTH + 1), "nested more than 32 deep; flatten it"),
    ({"a": MappingProxyType({"b": 1})}, "cannot be encoded as JSON"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_a_payload_is_refused_with_the_path_when_json_cannot_keep_it(
    data: Any, message: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=message):
        encode_payload(data)


@pytest.mark.parametrize("data", [None, [], "text", 5, [("a", 1)], {1, 2}, b"{}"])
def test_a_payload_is_refused_when_it_is_no_dict(data: object) -> None:
    with pytest.raises(InvalidPayloadError, match=r"must be a dict, not .*wrap the value"):
        encode_payload(data)


def test_a_payload_that_contains_itself_is_refused() -> None:
    data: dict[str, Any] = {}
    data["self"] = data
    with pytest.raises(InvalidPayloadError, match="nested more than"):
        encode_payload(data)


def test_a_payload_is_refused_when_it_is_larger_than_allowed() -> None:
    frame = len(b'{"a":""}')
    assert len(encode_payload({"a": "x" * (MAX_PAYLOAD_BYTES - frame)})) == MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidPayloadError, match=r"262,145 bytes .* at most 262,144 .* reference"):
        encode_payload({"a": "x" * (MAX_PAYLOAD_BYTES - frame + 1)})


def test_the_size_of_a_payload_is_counted_in_bytes_not_characters() -> None:
    with pytest.raises(InvalidPayloadError, match="at most 20 are allowed"):
        encode_payload({"a": "€€€€€"}, max_bytes=20)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: {"a": [CANARY, math.nan]},
        lambda: {"a": CANARY + "\x00"},
        lambda: {"a": CANARY + "\ud800"},
        lambda: {"a": CANARY.encode()},
        lambda: {"a": {CANARY}},
        lambda: {"a": CANARY * 100_000},
        lambda: [CANARY],
        lambda: {(CANARY,): 1},
        lambda: {CANARY.encode(): 1},
        lambda: {"a": MappingProxyType({"b": CANARY})},
    ],
)
def test_a_refusal_does_not_repeat_what_the_payload_says(spoil: Callable[[], Any]) -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        encode_payload(spoil())
    assert CANARY not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_refusal_stays_short_when_a_key_is_long() -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        encode_payload({"k" * 50_000: {"inner": math.nan}})
    assert len(str(caught.value)) < 500
    assert "inner" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": None, "b": True, "c": 1.5, "d": "ü€😀", "e": [], "f": {}},
        {"a": (1, 2)},
        {"": ""},
        {"max": MAX_SAFE_INTEGER, "min": -MAX_SAFE_INTEGER},
        OrderedDict(a=1),
        nested(MAX_PAYLOAD_DEPTH),
    ],
)
def test_a_payload_comes_back_equal_when_it_is_json_safe(data: dict[str, Any]) -> None:
    assert decode_payload(encode_payload(data).decode()) == orjson.loads(orjson.dumps(data))


def test_the_largest_integer_is_the_one_that_every_json_reader_knows() -> None:
    largest = 9_007_199_254_740_991
    assert encode_json([largest, -largest], what="data") == f"[{largest},-{largest}]".encode()
    for value in (largest + 1, -largest - 1):
        with pytest.raises(InvalidPayloadError, match="beyond"):
            encode_json(value, what="data")


@pytest.mark.parametrize(("key", "shown"), [("k" * 40, "k" * 40), ("k" * 41, "k" * 39 + "…")])
def test_a_path_names_a_key_of_forty_letters_and_cuts_a_longer_one(key: str, shown: str) -> None:
    with pytest.raises(InvalidPayloadError, match=rf"data\.{shown} is nan"):
        encode_payload({key: math.nan})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": [1, -1, 1.5, True, None, "x", [], {}], "b": {"c": "y"}},
        {"max": MAX_SAFE_INTEGER, "min": -MAX_SAFE_INTEGER},
        {"lists": [[["x"], 1], "y"]},
        nested(MAX_PAYLOAD_DEPTH),
    ],
)
def test_a_plain_payload_is_not_worked_through_twice(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise AssertionError("slow")

    monkeypatch.setattr(payload_module, "_check", check)
    assert orjson.loads(encode_payload(data)) == data


@pytest.mark.parametrize(
    ("text", "message"), [("\x00", "a NUL"), ("\ud800", "half of a surrogate")]
)
def test_a_text_that_is_as_deep_as_allowed_is_refused_for_what_it_is(
    text: str, message: str
) -> None:
    data: dict[str, Any] = {"d": text}
    for _ in range(MAX_PAYLOAD_DEPTH - 1):
        data = {"d": data}
    with pytest.raises(InvalidPayloadError, match=message):
        encode_payload(data)


def test_a_payload_that_has_to_be_worked_through_is_kept_too() -> None:
    values = [MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER, True, False, None, 1.5, "x"]
    assert orjson.loads(encode_payload({"a": tuple(values)})) == {"a": values}


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}])
def test_lists_count_as_deep_as_objects(wrap: Callable[[Any], Any]) -> None:
    value: Any = wrap("x")
    for _ in range(MAX_PAYLOAD_DEPTH - 1):
        value = wrap(value)
    assert encode_json(value, what="data")
    with pytest.raises(InvalidPayloadError, match="nested more than 32 deep"):
        encode_json(wrap(value), what="data")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=1)), json_values))
def test_every_json_object_survives_the_round_trip(data: dict[str, Any]) -> None:
    assert decode_payload(encode_payload(data).decode()) == data


def test_a_result_may_be_any_json_value_and_is_named_in_the_refusal() -> None:
    assert encode_json([1, "a"], what="result") == b'[1,"a"]'
    assert encode_json(None, what="result") == b"null"
    with pytest.raises(InvalidPayloadError, match=r"result\[0\] is nan"):
        encode_json([math.nan], what="result")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no data"),
        ("[1]", "not a JSON object but list"),
        ("null", "not a JSON object but NoneType"),
        ("{", "cannot be decoded: JSONDecodeError"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5_000 + "x}", "cannot be decoded"),
    ],
)
def test_a_message_is_refused_when_no_handler_could_be_given_it(
    text: str | None, message: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=message):
        decode_payload(text)


def test_a_message_with_numbers_beyond_64_bits_is_still_decoded() -> None:
    assert decode_payload('{"a": ' + "9" * 40 + "}")["a"] == pytest.approx(1e40)


def test_an_undecodable_message_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        decode_payload('{"a": "' + CANARY)
    assert CANARY not in str(caught.value)

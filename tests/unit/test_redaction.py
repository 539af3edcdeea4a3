"""Redaction: no secret leaves, and what is kept can be stored and read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from commandbus.privacy import sensitive
from commandbus.privacy.redaction import (
    MAX_DETAILS,
    MAX_ERROR_TEXT,
    redact_details,
    redact_text,
    redact_value,
)
from commandbus.privacy.sensitive import (
    SENSITIVE_PARTS,
    SENSITIVE_WORDS,
    also_redact,
    is_sensitive_key,
)
from commandbus.privacy.values import MASK, secret_values

CANARY = "cAnArY-19"

LEAKS = [
    f"postgresql://app:{CANARY}@db.internal:5432/x failed",
    f"postgresql://app:p@{CANARY}@db/x",
    f"amqp://:{CANARY}@host",
    f"password={CANARY}",
    f"PGPASSWORD={CANARY} psql",
    f"password = '{CANARY} with spaces'",
    f'{{"password": "{CANARY}"}}',
    f'{{"password": "a\\"{CANARY}"}}',
    f"{{'api_key': 'it\\'s {CANARY}'}}",
    f"db_password: {CANARY}",
    f"my.secret.key={CANARY}",
    f"client-secret={CANARY}&x=1",
    f"Authorization: Bearer {CANARY}",
    f"authorization: basic {CANARY}=",
    f"bearer {CANARY}",
    f"Cookie: {CANARY}",
    f"session_id={CANARY};",
    f"dsn={CANARY}",
    f"connection_string={CANARY}",
    f"token: cb_ab12_{CANARY}",
    f"cb_ab12_{CANARY} was refused",
    f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY} and never ended",
    f"Authorization: Digest {CANARY}",
    f'{{"Authorization": "AWS4 {CANARY}, x={CANARY}"}}',
    f"Proxy-Authorization: Negotiate a {CANARY}",
    f"Set-Cookie: a=1; b={CANARY}; Path=/",
    f"X-Api-Key: {CANARY}",
    f"private-key={CANARY}",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.c2lnbmF0dXJl",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{CANARY} expired",
    f"passphrase: {CANARY}",
]


@pytest.mark.parametrize("text", LEAKS)
def test_a_text_loses_its_secret(text: str) -> None:
    redacted = redact_text(text)
    assert CANARY not in redacted
    assert MASK in redacted


@pytest.mark.parametrize(
    "text",
    [
        "amount 5 is too high",
        "user:app at host",
        "https://example.org/a?b=c",
        "10:30 o'clock",
        "a@b.c",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


def test_what_stands_around_a_secret_is_kept() -> None:
    assert redact_text(f"login to postgresql://app:{CANARY}@db/x failed") == (
        f"login to postgresql://app:{MASK}@db/x failed"
    )
    assert redact_text(f"user=app password={CANARY} host=db") == f"user=app password={MASK} host=db"


def test_a_text_is_cut_after_it_was_masked() -> None:
    # The secret stands across the place of the cut: cutting first would leave a part of it.
    text = "x" * (MAX_ERROR_TEXT - 12) + f" password={CANARY}"
    redacted = redact_text(text)
    assert len(redacted) == MAX_ERROR_TEXT
    assert redacted.endswith("…")
    assert CANARY[:3] not in redacted


def test_a_text_of_the_longest_length_is_not_cut() -> None:
    assert redact_text("x" * MAX_ERROR_TEXT) == "x" * MAX_ERROR_TEXT


def test_a_text_has_five_hundred_and_twelve_characters_at_most() -> None:
    assert redact_text("x" * 512) == "x" * 512
    assert redact_text("x" * 513) == "x" * 511 + "…"


def test_a_text_becomes_storable() -> None:
    redact_text("a\x00b\ud800c").encode()
    assert "\x00" not in redact_text("a\x00b")


@pytest.mark.parametrize(
    "piece",
    [
        "a.", "a-", "token", "a://a:", "password ", "cb_a", "-----BEGIN ", "x", "=:",
        "eyJaaaaaa.", "cookie:", "authorization:'",
    ],
)  # fmt: skip
def test_a_long_text_is_redacted_in_time_that_grows_with_its_length_only(piece: str) -> None:
    # A regular expression that backtracks would need minutes for this.
    started = time.process_time()
    redact_text(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 5


@pytest.mark.parametrize("key", [*SENSITIVE_PARTS, *SENSITIVE_WORDS])
def test_a_sensitive_key_is_known_in_any_case_and_as_a_part(key: str) -> None:
    assert is_sensitive_key(key)
    assert is_sensitive_key(f"My_{key.upper()}2")
    assert is_sensitive_key(key.replace("_", "-"))
    assert is_sensitive_key(key.replace("_", ""))


@pytest.mark.parametrize("key", ["amount", "user", "account_id", ""])
def test_an_ordinary_key_is_not_sensitive(key: str) -> None:
    assert not is_sensitive_key(key)


def test_a_value_loses_its_secrets_at_every_depth() -> None:
    value = {
        "user": "app",
        "Password": CANARY,
        "nested": [{"api-key": {"deep": CANARY}}, (f"token={CANARY}",)],
        "set": {f"secret={CANARY}"},
        f"password={CANARY}": 1,
    }
    redacted = redact_value(value)
    assert CANARY not in json.dumps(redacted)
    assert redacted["user"] == "app"


def test_a_value_becomes_json_safe() -> None:
    value: dict[Any, Any] = {
        1: float("nan"), "big": 2**60, "huge": 10**5_000, "ok": 5, "f": 1.5, "t": True, "n": None,
        "o": object(), "b": b"x",
    }  # fmt: skip
    redacted = redact_value(value)
    json.loads(json.dumps(redacted, allow_nan=False))
    assert redacted["1"] == "nan"
    assert redacted["big"] == str(2**60)
    assert (redacted["ok"], redacted["f"], redacted["t"], redacted["n"]) == (5, 1.5, True, None)


def test_a_value_that_contains_itself_ends() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    assert "…" in json.dumps(redact_value(value), ensure_ascii=False)


def test_details_are_always_a_dict() -> None:
    assert redact_details({"token": CANARY, "a": 1}) == {"token": MASK, "a": 1}
    assert redact_details({}) == {}


# -- what is declared by settings and by marks


@pytest.fixture
def own_keys() -> Iterator[None]:
    before = sensitive._rules
    also_redact(["Club-Card", " ", "password"])
    yield
    sensitive._rules = before


def test_keys_of_ones_own_are_masked_in_values_and_in_texts(own_keys: None) -> None:
    value = {"my_club_card_no": CANARY, "nested": {"CLUB-CARD": CANARY}, "club": "x"}
    assert CANARY not in str(redact_value(value))
    assert redact_value(value)["club"] == "x"
    assert CANARY not in redact_text(f"club card: {CANARY}, club-card={CANARY} clubcard={CANARY}")
    also_redact(["club_card"])
    assert sensitive._rules.own.count("club_card") == 1


def test_marked_keys_must_match_as_a_whole() -> None:
    value = {"Pin": CANARY, "spinning": "x", "deep": [{"pin": CANARY}]}
    redacted = redact_value(value, marked={"pin"})
    assert redacted == {"Pin": MASK, "spinning": "x", "deep": [{"pin": MASK}]}


def test_the_values_of_secrets_are_masked_wherever_they_are_repeated() -> None:
    data = {"password": f"{CANARY}-long", "list": [{"token": [CANARY, 123456, True, None, "abc"]}]}
    secrets = secret_values(data)
    # The longest first, none too short.
    assert secrets.values == (f"{CANARY}-long", CANARY, "123456")
    assert redact_text(f"no {CANARY}-long or {CANARY} or 123456", secrets=secrets) == (
        f"no {MASK} or {MASK} or {MASK}"
    )
    assert CANARY not in str(redact_details({"why": f"{CANARY}!", CANARY: 1}, secrets=secrets))


def test_marked_values_are_secrets_too_and_others_are_not() -> None:
    data = {"account": {"iban": CANARY, "bank": "ordinary"}, "deep": {}}
    assert secret_values(data, {"iban"}).values == (CANARY,)
    assert set(secret_values(data, {"account"}).values) == {"ordinary", CANARY}


# -- how much is kept


@pytest.mark.parametrize(
    "details",
    [
        {f"k{n}": "x" * 300 for n in range(10_000)},
        {"list": ["y" * 300] * 10_000},
        {"list": list(range(100_000))},
        {"a": {"b": {"c": [{"d": "z" * 10_000}] * 500}}},
        {"k" * 100_000: 1, "v": "v" * 100_000},
    ],
)
def test_details_are_bounded_and_still_json(details: dict[str, Any]) -> None:
    redacted = redact_details(details)
    text = json.dumps(redacted, ensure_ascii=False)
    assert json.loads(text) == redacted
    assert len(text) < 2 * MAX_DETAILS
    assert "…" in text


def test_details_that_are_not_too_much_are_kept_whole() -> None:
    details = {"shelf": 3, "tried": ["a", None, 1.5], "more": {"x": True}}
    assert redact_details(details) == details


def test_details_end_where_their_length_is_used_up() -> None:
    # A key of one letter counts nine, a text its length: seven times 521, and 449 are left.
    full = dict.fromkeys("abcdefg", "x" * 512)
    assert redact_details(full | {"h": "x" * 440, "i": 1}) == full | {
        "h": "x" * 440,
        "…": "1 more",
    }
    kept = full | {"h": "x" * 439, "i": 1}
    assert redact_details(kept | {"j": 1, "k": 1}) == kept | {"…": "2 more"}


@pytest.mark.parametrize(("max_length", "shown"), [(33, 3), (34, 4), (41, 4), (42, 5)])
def test_a_list_ends_where_its_length_is_used_up(max_length: int, shown: int) -> None:
    details = {"n": [0] * 10}
    redacted = redact_details(details, max_length=max_length)
    assert redacted == {"n": [0] * shown + [f"… {10 - shown} more"]}


def test_what_is_nested_deeper_than_a_payload_may_be_is_not_shown() -> None:
    value, shown = ["x"], ["…"]
    for _ in range(32):
        value, shown = [value], [shown]  # type: ignore[list-item]
    assert redact_value(value) == shown
    assert redact_value(value[0]) == value[0]
    deep: Any = "x"
    for _ in range(33):
        deep = {"k": deep}
    assert "…" in str(redact_value(deep))
    assert redact_value(deep["k"]) == deep["k"]
    assert "…" in str(redact_details(deep))
    assert redact_details(deep["k"]) == deep["k"]


@pytest.mark.parametrize("depth", [7, 8, 31, 5_000])
def test_a_secret_is_looked_for_at_any_depth(depth: int) -> None:
    in_objects: Any = {"password": CANARY}
    in_lists: Any = {"password": CANARY}
    for _ in range(depth):
        in_objects, in_lists = {"k": in_objects}, [in_lists]
    assert secret_values(in_objects).values == (CANARY,)
    assert secret_values(in_lists).values == (CANARY,)


def test_a_secret_has_at_least_four_letters_and_there_may_be_any_number() -> None:
    assert secret_values({"token": ["abcd", "abc"]}).values == ("abcd",)
    secrets = secret_values({"token": list(range(10_000, 20_000))})
    assert redact_text("not 10000, 15000 or 19999, but 20000", secrets=secrets) == (
        f"not {MASK}, {MASK} or {MASK}, but 20000"
    )


def test_an_integer_is_kept_as_long_as_every_reader_knows_it() -> None:
    largest = 2**53 - 1
    assert redact_value([largest, -largest]) == [largest, -largest]
    assert redact_value([largest + 1]) == [str(largest + 1)]


def test_a_long_key_is_cut_and_a_long_text_is_not_read_to_its_end() -> None:
    (name,) = redact_value({"k" * 300: 1})
    assert name == "k" * 199 + "…"
    assert redact_text("x" * 65_536, 100_000) == "x" * 65_536
    assert redact_text("x" * 70_000, 100_000) == "x" * (65_536 - 4_500) + "…"

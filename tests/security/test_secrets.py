"""Secrets stay hidden: whatever their key is called, however deep they are, in whatever form."""

from __future__ import annotations

import html
import json
import re
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from commandbus.payload import MAX_PAYLOAD_DEPTH, encode_payload
from commandbus.privacy.redaction import (
    MAX_DEPTH,
    MAX_SCANNED_TEXT,
    redact_details,
    redact_payload,
    redact_text,
    redact_value,
)
from commandbus.privacy.sensitive import (
    MAX_KEY,
    SENSITIVE_PARTS,
    SENSITIVE_WORDS,
    is_sensitive_key,
    normalised,
)
from commandbus.privacy.values import MASK, Secrets, secret_values
from tests.canaries import DERIVED, MARKER, assert_hidden, new_canary

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "redaction.md"


def wide(text: str) -> str:
    """The same in full-width letters."""
    return "".join(chr(ord(each) + 0xFEE0) for each in text)


SENSITIVE = [
    "privateKey", "PrivateKey", "private.key", "private key", "PRIVATE-KEY", "privatekey",
    "sessionId", "SessionID", "userSessionId", "sessionid", "JSESSIONID", "PHPSESSID", "accessKey",
    "aws_access_key_id", "AccessKeyID", "X-Api-Key", "APIKey", "APIkey", "apikey", "apiKeys",
    "userPwd", "dbpwd", "db.password", "PIN", "cardPin", "pin_2", "pins", "pIn", "jwt", "userJWT",
    "otp", "cvv", "cvv2", "CVC", "pass", "dbPass", "db_pass", "passWord", "pass_word", "pAsSwOrD",
    "Set-Cookie", "csrfmiddlewaretoken", "_csrf", "refreshToken", "tokens_used", "client-key-data",
    wide("password"), "pass\u200bword", "pass\u00adword", "pa\u017f\u017fword", "PÁSSWORD", "PİN",
    "p\u0131n", "sentry_dsn", "connStr", "hmacKey", "recoveryCodes", "K" * (MAX_KEY + 1),
]  # fmt: skip
HARMLESS = [
    "shipping", "spinner", "keyboard", "passenger", "monkey", "opinion", "compass", "passing",
    "key", "keys", "partition_key", "idempotencyKey", "session_idle_seconds", "sessionIdleTimeout",
    "session", "design", "signal", "amount", "user", "iban", "account_id", "cassette", "名前", "",
    "pinterest", "bypass", "encrypted", "authors", "otpusk", "cvvx",
]  # fmt: skip


@pytest.mark.parametrize("key", SENSITIVE)
def test_a_sensitive_key_is_known_however_it_is_written(key: str) -> None:
    assert is_sensitive_key(key)
    assert redact_value({"a": [{key: MARKER}]})["a"] != [{key: MARKER}]
    assert MARKER not in str(redact_value({"a": [{key: MARKER}]}))


@pytest.mark.parametrize("key", HARMLESS)
def test_a_harmless_key_is_shown(key: str) -> None:
    assert not is_sensitive_key(key)
    assert redact_value({key: "shown"}) == {key: "shown"}
    assert redact_text(f"{key}=shown, {key}: shown") == f"{key}=shown, {key}: shown"


def in_texts(key: str, value: str) -> list[str]:
    """A key and its value as error texts write them."""
    pair = {key: value}
    encoded = json.dumps(pair)
    return [
        f"cannot use {key}={value}&x=1", f"GET /a?{key}={value}", f"{key}: {value}",
        f"{key} = '{value} and more'", encoded, json.dumps(json.dumps(pair)),
        json.dumps({"body": json.dumps({"inner": encoded})}), repr(pair), repr(encoded),
        f"/a%3F{quote(key)}%3D{value}", quote(encoded), html.escape(encoded), f"{key} => {value}",
        f"<{key}>{value}</{key}>", f"run --{key} {value} --force", f"[('{key}', '{value}')]",
        f"[(b'{key}', b'{value}')]", f"user[{key}]={value}", f'row["{key}"] = "{value}"',
        f"Key ({key})=({value}) already exists.", f"Key (mail, {key})=(a@b.c, {value}) exists.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "key", ["privateKey", "X-Api-Key", "userPwd", "db.password", "PIN", "cardPin", "jwt", "cvv2"]
)
def test_the_same_keys_are_masked_in_texts(key: str) -> None:
    for text in in_texts(key, f"{MARKER}-1"):
        redacted = redact_text(text)
        assert MARKER not in redacted, text
        assert MASK in redacted, text


def test_a_key_of_several_words_is_known_in_a_sentence() -> None:
    assert redact_text(f"bad api key: {MARKER}") == f"bad api key: {MASK}"
    assert redact_text(f"Session ID = {MARKER}") == f"Session ID = {MASK}"
    assert redact_text("partition key: shown, api is shown") == "partition key: shown, api is shown"
    assert redact_text(f"pass\u200bword={MARKER}; {wide('PIN:')}{MARKER}") == (
        f"pass\u200bword={MASK}; {wide('PIN:')}{MASK}"
    )


@pytest.mark.parametrize(
    "text",
    [
        f'{{"tokens": ["aaaa", "{MARKER}"], "n": 1}} shown',
        f"{{'credentials': {{'of': 'a]}}', 'value': ('x', '{MARKER}')}}}} shown",
        json.dumps({"body": json.dumps({"apiKeys": ["it's", MARKER]}), "a": "shown"}),
        f"pin=[{MARKER}, {MARKER}] shown",
        f"privateKey: |\n  first\n  {MARKER}\nshown: 1",
        f"passphrase: correct horse {MARKER} staple\nshown",
        f"otp=({MARKER}",
        f"token=[REDACTED]{MARKER} shown",
    ],
)
def test_a_value_of_several_parts_is_masked_as_a_whole(text: str) -> None:
    redacted = redact_text(text)
    assert MARKER not in redacted
    assert ("shown" in text) == ("shown" in redacted)


@pytest.mark.parametrize(
    "text",
    [
        f"null value violates\nDETAIL:  Failing row contains (1, {MARKER}, null).",
        f"boom\n[SQL: insert into t values (%s, %s)]\n[parameters: ('a', '{MARKER}')]\nsee docs",
        f"CONTEXT:  unnamed portal with parameters: $1 = 'a', $2 = '{MARKER} it''s', $3 = '1'",
        f'COPY users, line 3, column password: "{MARKER}"',
    ],
)
def test_values_that_a_database_repeats_without_their_names_are_masked(text: str) -> None:
    redacted = redact_text(text)
    assert MARKER not in redacted
    assert redacted.startswith(text[:8])


def test_marked_keys_are_known_in_other_styles_and_in_texts() -> None:
    marked = {"code_word", "taxnumber"}
    shown = redact_value({"codeWord": 1, "TAX-Number": 2, "code_words": 3}, marked=marked)
    assert shown == {"codeWord": MASK, "TAX-Number": MASK, "code_words": 3}
    secrets = secret_values({"codeWord": "x"}, marked)
    assert redact_text(f"codeWord={MARKER}", secrets=secrets) == f"codeWord={MASK}"
    assert normalised("theCodeWord") == normalised("The-Code.Word") == "the_code_word"


def test_the_list_in_the_guide_is_the_list_in_the_code() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for title, names in (("as a part", SENSITIVE_PARTS), ("as a word", SENSITIVE_WORDS)):
        row = next(line for line in text.splitlines() if line.startswith(f"| {title}"))
        listed = re.findall(r"`([^`]+)`", row)
        assert listed == [name.replace("_", " ") for name in names]


# -- depth


def nested(value: Any, levels: int, kind: str) -> Any:
    for _ in range(levels):
        value = {"k": value} if kind == "object" else [value]
    return value


@pytest.mark.parametrize("kind", ["object", "array"])
def test_secrets_are_masked_and_found_as_deep_as_a_payload_goes(kind: str) -> None:
    assert MAX_DEPTH == MAX_PAYLOAD_DEPTH
    canary = new_canary("deep")
    data = {"top": nested({"apiKey": canary, "seen": "yes"}, MAX_PAYLOAD_DEPTH - 2, kind)}
    encode_payload(data)
    assert_hidden(str(redact_payload(data)), "a deep payload")
    assert "yes" in str(redact_payload(data))
    assert_hidden(redact_text(f"no {canary}!", secrets=secret_values(data)), "an echo")


@pytest.mark.parametrize("kind", ["object", "array"])
def test_what_is_deeper_is_replaced_and_still_searched_for(kind: str) -> None:
    canary = new_canary("deeper")
    data = nested({"a": canary, "apiKey": canary}, 20_000, kind)
    assert_hidden(json.dumps(redact_value(data)), "a payload beyond the limit")
    assert_hidden(redact_text(canary, secrets=secret_values(data)), "an echo")


def test_an_object_that_refers_to_itself_often_ends() -> None:
    itself: dict[str, Any] = {}
    itself.update({"a": itself, "b": itself, "c": [itself, itself]})
    assert "…" in str(redact_details(itself))
    assert secret_values(itself).values == ()


# -- derived forms

SECRETS = [
    "hunter2-plain", "it's \"quoted\" & <tagged>", "back\\slash\\n and\ttab\nline",
    "pass/w+rd=%41&", "pässwörd-ß-日本", "smile😀-here-is-more", "4242424242424242", "a b  c d e",
    "%5Cn-literal\\u0041",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED.keys())
def test_a_secret_is_masked_in_every_form_of_it(secret: str, derive: Callable[[str], str]) -> None:
    secrets = secret_values({"apiKey": secret})
    form = derive(secret)
    redacted = redact_text(f"refused: <{form}> by the bank", 5_000, secrets=secrets)
    assert form not in redacted
    assert redacted.startswith("refused: <")
    assert redacted.endswith("> by the bank")
    assert MASK in redacted
    # Nothing of it is left beside the mask but the quotes of some forms.
    left = redacted.removeprefix("refused: <").removesuffix("> by the bank").replace(MASK, "")
    assert len(left) <= 8, left


def test_an_echo_that_was_cut_is_masked_too() -> None:
    secret = "".join(f"{n:03}-{chr(97 + n % 26)}" for n in range(100))
    secrets = secret_values({"token": secret})
    cut = f"input_value='{secret[:25]}...{secret[-24:]}', input_type=str"
    assert redact_text(cut, secrets=secrets) == f"input_value='{MASK}...{MASK}', input_type=str"


def test_the_parts_of_a_credential_are_secret_too() -> None:
    secrets = secret_values(
        {
            "authorization": "Bearer aaaa-bbbb-cccc",
            "proxy_authorization": "Basic Ym9iOmh1bnRlcjI=",
            "dsn": "postgresql://app:pw-of-app@db/x",
        }
    )
    text = "no aaaa-bbbb-cccc, hunter2 and pw-of-app"
    assert redact_text(text, secrets=secrets) == f"no {MASK}, {MASK} and {MASK}"


def test_a_short_value_is_not_searched_for() -> None:
    """It would be found everywhere; under its key it is masked all the same."""
    data = {"pin": "123", "n": "page 123 of 5"}
    assert redact_payload(data) == {"pin": MASK, "n": "page 123 of 5"}


@pytest.mark.parametrize("before", [0, 40, 480, 505, 4_000, 6_500, 60_000, 61_030, 65_000, 65_530])
@pytest.mark.parametrize("escaped", [False, True])
def test_no_part_of_a_secret_is_shown_at_a_cut(before: int, escaped: bool) -> None:
    secret = "".join(chr(0x4E00 + n) for n in range(300)) if escaped else "sEcReT" * 50
    form = json.dumps(secret)[1:-1] if escaped else secret
    secrets = Secrets([secret])
    beginning = form[:24]
    for filler in ("x ", "password=" + "y" * max(0, before - 20) + " "):
        text = (filler * (before // len(filler) + 1))[:before] + form * 3
        assert beginning not in redact_text(text, secrets=secrets)
        assert beginning not in redact_text(text, 100_000, secrets=secrets)


@pytest.mark.parametrize("cut", range(MAX_SCANNED_TEXT - 40, MAX_SCANNED_TEXT + 5, 3))
def test_an_address_and_a_key_are_not_shown_where_the_scanned_part_ends(cut: int) -> None:
    for tail in (f"postgresql://app:{MARKER}@db/x", f"password={MARKER}", f"bearer {MARKER}"):
        # A long masked value before it: what is shown reaches to the end of what is looked at.
        head = "token=" + "z" * 100
        text = f"{head} {'w' * (cut - len(head) - 2)} {tail} {'v' * 5_000}"
        assert MARKER[:4] not in redact_text(text, 200_000)


# -- cost


def seconds_of(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize(
    "piece",
    ["a", "aaaa", "%41", "\\", "\\\\n", "&amp;", "a=", "a:'", "x://a:", "@x://a:", "token ", "<a>",
     "--a ", "('a',", "\\\"a\\\":\\\"", "=", "eyJaaaaaa", "key ", "pin=[",
     "pin=1 ", "pin=1,", "pin:1}", "pin=['", "pin=[]", "Key (a)=", "bearer bearer\n"],
)  # fmt: skip
def test_two_hundred_secrets_in_a_long_text_take_bounded_time(piece: str) -> None:
    secrets = Secrets([f"aaaa{n:04}{'a' * 30}{n:04}" for n in range(200)])
    text = piece * (100_000 // len(piece))
    assert seconds_of(lambda: redact_text(text, 100_000, secrets=secrets)) < 2


@pytest.mark.parametrize(
    "data",
    [
        {"token": [f"{'a' * 24}{n:05}" for n in range(7_000)]},
        {"token": list(range(1_000, 33_000))},
        {"token": "a" * 250_000},
        {"a": [{f"k{n}": f"v={n}"} for n in range(12_000)]},
        {"a" * 900 + str(n): n for n in range(250)},
        {"token": "aaaa", "b": ["aaab" * 16] * 3_500},
    ],
    ids=["alike", "many", "long", "pairs", "keys", "texts"],
)
def test_the_worst_payload_is_masked_and_searched_for_in_bounded_time(data: Any) -> None:
    encode_payload(data)
    assert seconds_of(lambda: redact_payload(data)) < 3
    secrets = secret_values(data)
    text = json.dumps(data)
    assert seconds_of(lambda: redact_text(text, secrets=secrets)) < 3


# -- addresses of databases


@settings(max_examples=300, deadline=None)
@given(
    st.text(string.ascii_letters + " '\"\\@:/=&%,;{}[]()<>é!#$", max_size=6),
    st.text(string.ascii_letters + " '\"\\@:/=&%,;{}[]()<>é!#$", max_size=6),
)
def test_a_password_in_an_address_of_a_database_is_masked(before: str, after: str) -> None:
    password = f"{before}{MARKER}{after}"
    for text in (
        make_conninfo(host="db", user="x", password=password, dbname="y"),
        f"postgresql://u:{quote(password, safe='')}@h/db?x=1",
        f"postgresql://h/db?password={quote(password, safe='')}&user=x",
    ):
        redacted = redact_text(f"cannot connect: {text} refused")
        assert MARKER not in redacted
        assert redacted.endswith(" refused")
        assert redact_text(redacted) == redacted


# -- everything at once

_NAMES = st.text(string.ascii_letters + "äß名_-. ", min_size=1, max_size=12)
_SECRET_KEYS = st.sampled_from([key for key in SENSITIVE if len(key) < 40])
_SECRET_TEXTS = st.text(min_size=6, max_size=40).map(lambda text: f"{MARKER}{text}")
_PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=20)


def _with_secrets(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(_NAMES, inner, max_size=3)
    hidden = st.dictionaries(_SECRET_KEYS, _SECRET_TEXTS | st.lists(_SECRET_TEXTS), max_size=2)
    return (
        st.lists(inner, max_size=3)
        | st.tuples(objects, hidden).map(lambda both: {**both[0], **both[1]})
        | inner.map(lambda value: nested(value, 9, "object"))
    )


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(_PLAIN, _with_secrets, max_leaves=12),
    st.dictionaries(_SECRET_KEYS, _SECRET_TEXTS, min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(DERIVED)), min_size=1, max_size=3),
)
def test_nothing_that_is_shown_of_a_payload_has_one_of_its_secrets(
    rest: Any, hidden: dict[str, str], kinds: list[str]
) -> None:
    data: dict[str, Any] = {"rest": rest, "deep": nested(hidden, 12, "array")}
    echoes = [DERIVED[kind](text) for text in hidden.values() for kind in kinds]
    data["notes"] = echoes
    secrets = secret_values(data)
    text = f"failed with {' and '.join(echoes)} for {data!r}"
    shown = [
        json.dumps(redact_payload(data), ensure_ascii=False),
        redact_text(text, 100_000, secrets=secrets),
        json.dumps(redact_details({"request": data, "texts": echoes}, secrets=secrets)),
    ]
    for each in shown:
        for form in (MARKER, quote_plus(MARKER), MARKER.encode().hex(), MARKER.upper()):
            assert form.lower() not in each.lower()
        for echo in echoes:
            assert echo not in each

"""Secrets that a text shows by its form: values beside sensitive keys, credentials, addresses.

No pattern may begin with an open repetition, and none may try a place again and again: an error
text of some hundred kilobytes must not keep a worker busy. Each character is looked at a bounded
number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from commandbus.privacy.sensitive import is_sensitive_key, rules
from commandbus.privacy.values import MASK, NONE, Secrets

#: Stands where what may be shown of a text ends; no text contains it.
END = "\x00"
#: Characters of a key in a text that are looked at, from its end.
_MAX_KEY = 100
#: Characters after which a password in an address must have ended.
_MAX_PASSWORD = 4_000

# One of these is in each text that could need masking.
_SUSPICIOUS = re.compile(
    r"[=:@<\uff1a\uff1d]|%3|--|\beyJ|cb_|\b(?i:bearer|basic)\b|contains \(|\(b?[\"']"
)

# -- values beside keys

# What may stand between a key and its sign: quotes, also escaped or encoded, and brackets.
_CLOSE = r"(?:[\\\"'\])]|%2[27]|%5D|&(?:quot|apos|\#\w{2,4});|\\u002[27]){0,8}"
_SIGN = r"(?:[=:]>|->|:=|={1,3}|:|\uff1a|\uff1d|%3[ADad])"
# Letters, digits, _ . - and characters that take no room.
_RUN = r"\w.\-\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
_HTML_QUOTE = r"&(?:quot|apos|\#3[49]|\#x2[27]);"
_VALUE = re.compile(
    # In quotes, also in quotes that are escaped themselves; the end of the text ends them too.
    r"(?:b?\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|b?'(?:[^'\\]|\\.)*+(?:'|\Z)"
    r"|(?P<escape>\\{1,15})(?P<quote>[\"']).*?(?:(?<!\\)(?P=escape)(?P=quote)|\Z)"
    rf"|{_HTML_QUOTE}.*?(?:{_HTML_QUOTE}|\Z)"
    # Without quotes it ends at a space, unless a backslash stands before it.
    rf"|(?!(?:bearer|basic)\b)(?:{re.escape(MASK)}|\\.|[^\s,;&}}\]\\])++)",
    re.S | re.I,
)
_KEY = re.compile(rf"(?<![{_RUN}])(?P<key>[{_RUN}]++){_CLOSE}\s{{0,20}}{_SIGN}\s{{0,20}}", re.I)
_TAG = re.compile(r"(?P<sign><(?P<key>[\w.:-]{1,100})(?:\s[^<>]{0,200})?>)[^<]++")
_OPTION = re.compile(r"(?<!\S)(?P<sign>--(?P<key>[\w.-]{2,100})\s{1,20})(?!-)[^\s]++")
_TUPLE = re.compile(
    r"(?P<sign>\(b?[\"'](?P<key>[\w.-]{1,100})[\"'],\s?)b?(?:\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+')"
    r"(?=\))"
)
_COLUMNS = re.compile(r"(?P<sign>\bKey \((?P<key>[^()\n]{1,400})\)=)\([^\n]{0,4000}\)")
_WORD_BEFORE = re.compile(r"([\w.-]{1,40}) \Z")

# -- what is secret by its form

_HEAD = re.compile(r"://[^\s:/@]{0,200}:")
_SPACE = re.compile(r"\s")
#: Each with a text without which it cannot match: most texts have none of them.
_FORMS = (
    # a header's value goes to the end of its line, whatever its scheme
    (
        ":",
        r"(?P<sign>\b(?i:authorization|cookie)[\"']?\s{0,20}:\s{0,20}[\"']?)[^\n\"']{1,4000}",
    ),
    ("", r"(?P<sign>\b(?i:bearer|basic)\s{1,20})[\w.~+/=-]++"),
    ("cb_", r"\bcb_[A-Za-z0-9]{1,100}_[A-Za-z0-9_-]++"),
    # a JSON Web Token: a header in base64 always begins so
    ("eyJ", r"\beyJ[\w-]{5,4000}+\.[\w-]{2,4000}+(?:\.[\w-]{0,4000}+)?"),
    (
        "-----BEGIN",
        r"(?s:-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z))",
    ),
    # values that a database repeats without their names: a row, the parameters of a statement
    ("Failing row", r"(?P<sign>\bFailing row contains )\([^\n]{1,8000}"),
    ("[parameters", r"(?P<sign>\[parameters: )[^\n]{1,8000}"),
    ("$", r"(?P<sign>\$[0-9]{1,5} = )'(?:[^']|'')*+(?:'|\Z)"),
)
_COMPILED = tuple((needed, re.compile(pattern)) for needed, pattern in _FORMS)


def masked_forms(text: str, secrets: Secrets = NONE) -> str:
    """The text with what is secret by its form masked."""
    if _SUSPICIOUS.search(text) is None:
        return text
    text = _without_passwords(text)
    for needed, pattern in _COMPILED:
        if needed in text:
            text = pattern.sub(_replaced, text)
    by_key = _by_key(secrets)
    if "<" in text:
        text = _TAG.sub(by_key, text)
    if "--" in text:
        text = _OPTION.sub(by_key, text)
    if ")" in text:
        text = _TUPLE.sub(by_key, _COLUMNS.sub(by_key, text))
    return _without_values(text, secrets)


def _replaced(found: re.Match[str]) -> str:
    sign = found.groupdict().get("sign") or ""
    # The mark of the end is kept: what comes after it is not shown.
    return f"{sign}{MASK}{END if END in found[0] else ''}"


def _by_key(secrets: Secrets) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        is_secret = is_sensitive_key(found["key"], secrets.marked)
        return _replaced(found) if is_secret else found[0]

    return replaced


def _without_values(text: str, secrets: Secrets) -> str:
    """key=value, key: value, "key": "value", and all the like.

    The value of another key is not stepped over: it may be a text with keys of its own.
    """
    parts: list[str] = []
    at = 0
    looked = _KEY.search(text)
    while looked is not None:
        end = looked.end()
        value = _VALUE.match(text, end) if _is_secret(looked, secrets) else None
        if value is not None:
            parts += (text[at:end], MASK, END if END in value[0] else "")
            at = end = value.end()
        looked = _KEY.search(text, end)
    return "".join((*parts, text[at:])) if parts else text


def _is_secret(found: re.Match[str], secrets: Secrets) -> bool:
    key = found["key"][-_MAX_KEY:]
    if found.string[max(0, found.start() - 1)] == "%":
        key = key[2:]  # of an encoded sign before it, as in %3Fpin
    if is_sensitive_key(key, secrets.marked):
        return True
    if key.lower() not in rules().last_words:
        return False
    # `api key: …`, in words of their own
    start = found.start("key")
    before = _WORD_BEFORE.search(found.string[max(0, start - 42) : start])
    return before is not None and is_sensitive_key(f"{before[1]} {key}", secrets.marked)


def _without_passwords(text: str) -> str:
    """user:password@host in any address; a password may contain an @ that nobody escaped."""
    if "@" not in text:
        return text
    parts: list[str] = []
    at = 0
    for head in _HEAD.finditer(text):
        start = head.end()
        if start < at:
            continue
        end = text.rfind("@", start, start + _MAX_PASSWORD)
        if end > start and (space := _SPACE.search(text, start, end)):
            end = text.rfind("@", start, space.start())
        if end > start:
            parts += (text[at:start], MASK, END if END in text[start:end] else "")
            at = end
    return "".join((*parts, text[at:]))

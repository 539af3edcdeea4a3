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
_HTML_QUOTE = r"&(?:quot|apos|\#(?:34|39|x22|x27));"
# Without quotes it ends at a space, unless a backslash stands before it; and at a sign that ends
# something, if the next key or a space follows. After `:` it is JSON more often than an address of
# a database, and a quote or one more such sign may follow too.
_NEXT = r"\s|\Z|[\w.%-]{1,64}=|[\"'][\w.%-]{1,64}[\"']:"
_BARE, _BARE_AFTER_EQUALS = (
    rf"(?:{re.escape(MASK)}|\\.|[^\s,;&}}\])\\]|[,;&](?!{follows})|[}}\])](?!{follows_close}))++"
    for follows, follows_close in (
        (rf"{_NEXT}|[,;&}}\])\"'\\]|[\w.%-]{{1,64}}:", r"\W|\Z"),
        (_NEXT, r"\s|\Z|[,;&}\])\"']{1,8}(?:\s|\Z|[\"'])"),
    )
)


def _value(bare: str) -> re.Pattern[str]:
    return re.compile(
        # In quotes, also in quotes that are escaped themselves; the end of the text ends them too.
        r"(?:b?\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|b?'(?:[^'\\]|\\.)*+(?:'|\Z)"
        r"|(?P<escape>\\{1,15})(?P<quote>[\"']).*?(?:(?<!\\)(?P=escape)(?P=quote)|\Z)"
        rf"|{_HTML_QUOTE}.*?(?:{_HTML_QUOTE}|\Z)"
        rf"|(?!(?:bearer|basic)\b){bare})",
        re.S | re.I,
    )


_VALUE, _VALUE_AFTER_EQUALS = _value(_BARE), _value(_BARE_AFTER_EQUALS)
_REST = re.compile(rf"(?<!\n)(?=\w){_BARE}", re.S)
_REST_AFTER_EQUALS = re.compile(rf"(?<!\n)(?![\s\"']){_BARE_AFTER_EQUALS}", re.S)
_KEY = re.compile(rf"(?<![{_RUN}])(?P<key>[{_RUN}]++){_CLOSE}\s{{0,20}}{_SIGN}\s{{0,20}}", re.I)
# host=… password=…, as libpq writes it: a value ends at a space, and may have any sign in it.
_CONNINFO = re.compile(r"(?:\A|\s)(?:host|hostaddr|dbname|user|port|sslmode)\s?=")
_IN_CONNINFO = re.compile(r"'(?:[^'\\]|\\.)*+(?:'|\Z)|(?:\\.|[^\s\\])++", re.S)
# An array or an object, to where it is closed; a block of YAML; a phrase, to the end of its line.
_OPENING, _CLOSING = ("[", "{", "("), ("]", "}", ")")
_BRACKET = re.compile(r"\\.|\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'|[\[\]{}()]", re.S)
_BLOCK = re.compile(r"[|>][-+0-9]{0,2}[ \t]{0,20}\n(?:[ \t]++[^\n]*+\n?|\n)++")
_PHRASE = re.compile(r"phrase|mnemonic", re.I)
_LINE = re.compile(r"[^\s\"'\\&][^\n\"']*+")
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
    is_conninfo = _CONNINFO.search(text) is not None
    looked = _KEY.search(text)
    while looked is not None:
        end = looked.end()
        if not _is_secret(looked, secrets):
            stop = end
        else:
            stop = _end_of_value(looked, is_conninfo=is_conninfo)
        if stop > end:
            parts += (text[at:end], MASK, END if END in text[end:stop] else "")
            at = end = stop
        looked = _KEY.search(text, end)
    return "".join((*parts, text[at:])) if parts else text


def _end_of_value(key: re.Match[str], *, is_conninfo: bool) -> int:
    text, start = key.string, key.end()
    is_equals = "=" in key[0][-3:]
    if is_equals and is_conninfo:
        return found.end() if (found := _IN_CONNINFO.match(text, start)) else start
    if text[start : start + 1] in _OPENING and not text.startswith(MASK, start):
        end = _closed(text, start)
    else:
        value = _VALUE_AFTER_EQUALS if is_equals else _VALUE
        forms = (_LINE, _BLOCK, value) if _PHRASE.search(key["key"]) else (_BLOCK, value)
        end = next((found.end() for form in forms if (found := form.match(text, start))), start)
    # What looks like quotes or brackets may be a part of a value that has none around it.
    rest = (_REST_AFTER_EQUALS if is_equals else _REST).match(text, end) if end > start else None
    return end if rest is None else rest.end()


def _closed(text: str, start: int) -> int:
    """Where the bracket that opens there is closed."""
    depth = 0
    for found in _BRACKET.finditer(text, start, start + _MAX_PASSWORD):
        depth += (found[0] in _OPENING) - (found[0] in _CLOSING)
        if depth == 0:
            return found.end()
    return min(len(text), start + _MAX_PASSWORD)


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

"""Redaction: what may leave the process in logs, audit details, error texts and pages.

One place, applied before anything is stored or shown. The queue keeps the real payload: a retry
needs it. What is secret is declared once: by the names of keys (SENSITIVE_KEYS, and those of the
setting `redact_keys`), and by marks on the type of a payload (commandbus.privacy.secrets).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

MASK = "[REDACTED]"
#: Characters of an error text that are kept.
MAX_ERROR_TEXT = 512
#: About how many characters the details of a handler's error may have.
MAX_DETAILS = 4_096
#: Objects and arrays that are shown inside one another.
MAX_DEPTH = 8

#: A key that contains one of these, in any case, has its value masked.
SENSITIVE_KEYS = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "kubeconfig",
    "private_key", "api_key", "apikey", "authorization", "cookie", "session_id",
    "connection_string",
)  # fmt: skip

#: Characters of a text that are looked at; what is shown is shorter still.
MAX_SCANNED_TEXT = 65_536
#: A value shorter than this is not searched for in texts: it would be found everywhere.
MIN_SECRET_LENGTH = 4
#: Values of one payload that are searched for in its error text.
MAX_SECRETS = 200

# No pattern may begin with an open repetition, and each repetition has an end: an error text of
# some hundred kilobytes must not keep a worker busy for minutes.
_QUOTED = r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)"
# Without quotes it ends at a space, unless a backslash stands before it, as in a database address.
_VALUE = rf"(?:{_QUOTED}|(?!bearer\b|basic\b)(?:\\.|[^\s,;&}}\]\\])+)"
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_HEAD = rf"\g<head>{MASK}"
_PATTERNS = (
    # user:password@host in any address; a password may contain an @ that nobody escaped
    (re.compile(r"(?P<head>://[^\s:/@]{0,200}:)\S{1,4000}(?=@)"), _HEAD),
    # a header's value goes to the end of its line, whatever its scheme
    (
        re.compile(
            r"(?P<head>\b(?:authorization|cookie)[\"']?\s{0,20}:\s{0,20}[\"']?)[^\n\"']{1,4000}",
            re.I,
        ),
        _HEAD,
    ),
    (re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]+", re.I), _HEAD),
    (re.compile(r"\bcb_[A-Za-z0-9]+_[A-Za-z0-9_-]+"), MASK),
    # a JSON Web Token: a header in base64 always begins so
    (re.compile(r"\beyJ[\w-]{5,4000}\.[\w-]{2,4000}(?:\.[\w-]{0,4000})?"), MASK),
    (re.compile(_PRIVATE_KEY, re.S), MASK),
)


class _Rules:
    """The key names of this process, and the pattern that finds them in texts."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        key = "|".join(re.escape(name).replace("_", "[-_ ]?") for name in self.names)
        # key=value, key: value, "key": "value"
        self.pattern = re.compile(
            rf"(?P<head>(?:{key}|dsn)[\w.-]{{0,64}}[\"']?\s{{0,20}}[=:]\s{{0,20}}){_VALUE}", re.I
        )


_rules = _Rules(SENSITIVE_KEYS)


def also_redact(keys: Iterable[str]) -> None:
    """Mask the values of these keys too, from now on and in this whole process.

    Names are only ever added: logs belong to the process, and no bus may unmask for another.
    """
    global _rules  # noqa: PLW0603  (replaced as a whole, so that a reader in a thread sees one)
    new = {normalised(key) for key in keys} - {"", *_rules.names}
    if new:
        _rules = _Rules((*_rules.names, *sorted(new)))


def normalised(key: str) -> str:
    """A key as it is compared: `Api-Key` and `api_key` are the same."""
    return key.strip().lower().replace("-", "_")


def is_sensitive_key(key: str, marked: Collection[str] = ()) -> bool:
    """Say whether the value under this key must not be shown.

    `marked` are keys of a typed payload: they must match as a whole, the others as a part.
    """
    lowered = normalised(key)
    return lowered in marked or any(name in lowered for name in _rules.names)


def redact_text(text: str, max_length: int = MAX_ERROR_TEXT, *, secrets: Iterable[str] = ()) -> str:
    """Mask secrets in a text, make it storable, and cut it. `secrets` are masked wherever met."""
    text = text[:MAX_SCANNED_TEXT].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode()
    for secret in secrets:
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    text = _rules.pattern.sub(_HEAD, text)
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def redact_value(value: Any, *, marked: Collection[str] = (), secrets: Iterable[str] = ()) -> Any:
    """Return a JSON-safe copy with the values of sensitive keys masked."""
    return _Copy(marked, tuple(secrets), math.inf).of(value, 0)


def redact_details(
    details: Mapping[str, Any],
    *,
    marked: Collection[str] = (),
    secrets: Iterable[str] = (),
    max_length: int = MAX_DETAILS,
) -> dict[str, Any]:
    """Redact the details of a handler's error, and leave out what is too much."""
    redacted = _Copy(marked, tuple(secrets), max_length).of(details, 0)
    return redacted if isinstance(redacted, dict) else {}


def secret_values(data: Any, marked: Collection[str] = ()) -> tuple[str, ...]:
    """The values of a payload that must not be shown, as texts: to find them in an error text."""
    texts = texts_in(data, marked, is_secret=False, max_depth=MAX_DEPTH)
    found = {text for text in texts if len(text) >= MIN_SECRET_LENGTH}
    # The longest first: one may be a part of another.
    return tuple(sorted(found, key=lambda text: (-len(text), text))[:MAX_SECRETS])


def text_of(value: Any) -> str:
    """The text of anything, also of a value whose __str__ fails: errors of handlers may be so."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (whatever a __str__ of somebody else's raises)
        return f"<{type(value).__name__} that has no text>"


class _Copy:
    """One JSON-safe copy, with what is left of its length."""

    def __init__(self, marked: Collection[str], secrets: tuple[str, ...], length: float) -> None:
        self._marked = marked
        self._secrets = secrets
        self._left = length

    def of(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return self._object(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._array(value, depth)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < 2**53:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        text = redact_text(text_of(value), secrets=self._secrets)
        self._left -= len(text)
        return text

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for number, (key, item) in enumerate(value.items()):
            if self._left <= 0:
                copied["…"] = f"{len(value) - number} more"
                break
            name = redact_text(text_of(key), 200, secrets=self._secrets)
            self._left -= len(name) + 8  # quotes, colon, comma, and a value that is not text
            is_secret = is_sensitive_key(text_of(key), self._marked)
            copied[name] = MASK if is_secret else self.of(item, depth + 1)
        return copied

    def _array(self, value: Collection[Any], depth: int) -> list[Any]:
        copied: list[Any] = []
        for number, item in enumerate(value):
            if self._left <= 0:
                copied.append(f"… {len(value) - number} more")
                break
            self._left -= 8
            copied.append(self.of(item, depth + 1))
        return copied


def texts_in(
    value: Any, marked: Collection[str] = (), *, is_secret: bool, max_depth: float = math.inf
) -> Iterator[str]:
    """The texts and numbers in a value that are secret, or stand under a key that is."""
    if max_depth < 0:
        return
    below = max_depth - 1
    if isinstance(value, Mapping):
        for key, item in value.items():
            is_below = is_secret or is_sensitive_key(text_of(key), marked)
            yield from texts_in(item, marked, is_secret=is_below, max_depth=below)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item, marked, is_secret=is_secret, max_depth=below)
    elif is_secret and value is not None and not isinstance(value, bool):
        yield text_of(value)

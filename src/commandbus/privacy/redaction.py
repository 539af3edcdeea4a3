"""Redaction: what may leave the process in logs, audit details, error texts and pages.

One place, applied before anything is stored or shown. The queue keeps the real payload: a retry
needs it. What is secret is declared once: by the names of keys (commandbus.privacy.sensitive, and
those of the setting `redact_keys`), and by marks on the type of a payload
(commandbus.privacy.secrets). The values under such keys are found again in texts
(commandbus.privacy.values), and so is what is secret by its form (commandbus.privacy.texts).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.texts import END, masked_forms
from commandbus.privacy.values import (
    MASK,
    NONE,
    Secrets,
    masked_spans,
    secret_values,
    text_of,
)

#: Characters of an error text that are kept.
MAX_ERROR_TEXT = 512
#: Characters of a key that are shown.
MAX_SHOWN_KEY = 200
#: About how many characters the details of a handler's error may have.
MAX_DETAILS = 4_096
#: Objects and arrays that are shown inside one another: as deep as a payload may be nested.
MAX_DEPTH = 32
#: Values that one copy has at most; a payload has fewer, an object that refers to itself not.
MAX_VALUES = 300_000

#: Characters of a text that are looked at; what is shown is shorter still.
MAX_SCANNED_TEXT = 65_536
#: Characters before the end of what is looked at that are not shown: a secret may be cut there.
_EDGE = 4_500
#: Masks make a text shorter: so much more than is shown is looked at first.
_FIRST_LOOK = 4


def redact_text(text: str, max_length: int = MAX_ERROR_TEXT, *, secrets: Secrets = NONE) -> str:
    """Mask secrets in a text, make it storable, and cut it. `secrets` are masked wherever met."""
    first = min(MAX_SCANNED_TEXT, _FIRST_LOOK * max_length + _EDGE)
    redacted, is_whole = _redacted(text, first, secrets)
    if not is_whole and len(redacted) < max_length and first < MAX_SCANNED_TEXT:
        redacted, is_whole = _redacted(text, MAX_SCANNED_TEXT, secrets)
    if is_whole and len(redacted) <= max_length:
        return redacted
    return redacted[: max_length - 1] + "…"


def _redacted(text: str, most: int, secrets: Secrets) -> tuple[str, bool]:
    """What is masked in the first part of a text, and whether that is all of it.

    Of a longer text the last part that was looked at is dropped: what is secret there may have its
    end, or the sign by which it is known, beyond.
    """
    is_whole = len(text) <= most
    text = text[:most].replace(END, "\N{REPLACEMENT CHARACTER}")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if is_whole:
        return masked_forms(secrets.masked(text), secrets), True
    edge = most - _EDGE
    spans = secrets.spans(text)
    edge = next((end for start, end in spans if start < edge < end), edge)
    shown = masked_spans(text[:edge], (span for span in spans if span[1] <= edge))
    shown += END + text[edge:]
    return masked_forms(shown, secrets).partition(END)[0], False


def redact_value(value: Any, *, marked: Collection[str] = (), secrets: Secrets = NONE) -> Any:
    """Return a JSON-safe copy with the values of sensitive keys masked."""
    return _Copy(marked, secrets, math.inf).of(value, 0)


def redact_payload(data: Any, marked: Collection[str] = ()) -> Any:
    """A payload as it is shown: its secret values are masked wherever they stand in it."""
    return redact_value(data, marked=marked, secrets=secret_values(data, marked))


def redact_details(
    details: Mapping[str, Any],
    *,
    marked: Collection[str] = (),
    secrets: Secrets = NONE,
    max_length: int = MAX_DETAILS,
) -> dict[str, Any]:
    """Redact the details of a handler's error, and leave out what is too much."""
    redacted = _Copy(marked, secrets, max_length).of(details, 0)
    return redacted if isinstance(redacted, dict) else {}


def is_hidden(value: Any, marked: Collection[str], secrets: Secrets) -> bool:
    """Whether a part of this value would be masked where it is shown."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if any(is_sensitive_key(text_of(key), marked) for key in item):
                return True
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, str) and redact_text(item, MAX_SCANNED_TEXT, secrets=secrets) != item:
            return True
    return False


class _Copy:
    """One JSON-safe copy, with what is left of its length."""

    def __init__(self, marked: Collection[str], secrets: Secrets, length: float) -> None:
        self._marked = frozenset(marked)
        self._secrets = secrets
        self._left = length
        self._values_left = MAX_VALUES

    def of(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        if depth > MAX_DEPTH or self._values_left < 0:
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
        names = ShownKeys(self._secrets)
        for number, (key, item) in enumerate(value.items()):
            if self._left <= 0:
                copied["…"] = f"{len(value) - number} more"
                break
            name = names.of(text_of(key))
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


class ShownKeys:
    """The keys of one object as they are shown: each has a name of its own."""

    def __init__(self, secrets: Secrets = NONE) -> None:
        self._secrets = secrets
        self._seen: dict[str, int] = {}

    def of(self, key: str) -> str:
        """The name of the next key. Two that look alike when they are masked get numbers."""
        name = base = redact_text(key, MAX_SHOWN_KEY, secrets=self._secrets)
        while name in self._seen:
            self._seen[base] += 1
            name = f"{base} ({self._seen[base]})"
        self._seen[name] = 1
        return name

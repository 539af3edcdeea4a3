"""Redaction: what may leave the process in logs, audit details, error texts and pages.

One place, applied before anything is stored or shown. The queue keeps the real payload: a retry
needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MASK = "[REDACTED]"
#: Characters of an error text that are kept.
MAX_ERROR_TEXT = 512

#: A key that contains one of these, in any case, has its value masked.
SENSITIVE_KEYS = (
    "password", "passwd", "secret", "token", "credential", "kubeconfig", "private_key",
    "api_key", "apikey", "authorization", "cookie", "session_id", "connection_string",
)  # fmt: skip

#: Characters of a text that are looked at; what is shown is shorter still.
MAX_SCANNED_TEXT = 65_536

# No pattern may begin with an open repetition, and each repetition has an end: an error text of
# some hundred kilobytes must not keep a worker busy for minutes.
_KEY = "(?:" + "|".join(re.escape(key) for key in SENSITIVE_KEYS) + r"|dsn)[\w.-]{0,64}"
_QUOTED = r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)"
_VALUE = rf"(?:{_QUOTED}|(?!bearer\b|basic\b)[^\s,;&}}\]]+)"
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_HEAD = rf"\g<head>{MASK}"
_PATTERNS = (
    # user:password@host in any address; a password may contain an @ that nobody escaped
    (re.compile(r"(?P<head>://[^\s:/@]{0,200}:)\S{1,4000}(?=@)"), _HEAD),
    (re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]+", re.I), _HEAD),
    (re.compile(r"\bcb_[A-Za-z0-9]+_[A-Za-z0-9_-]+"), MASK),
    (re.compile(_PRIVATE_KEY, re.S), MASK),
    # key=value, key: value, "key": "value"
    (re.compile(rf"(?P<head>{_KEY}[\"']?\s{{0,20}}[=:]\s{{0,20}}){_VALUE}", re.I), _HEAD),
)


def is_sensitive_key(key: str) -> bool:
    """Say whether the value under this key must not be shown."""
    lowered = key.lower().replace("-", "_")
    return any(name in lowered for name in SENSITIVE_KEYS)


def redact_text(text: str, max_length: int = MAX_ERROR_TEXT) -> str:
    """Mask secrets in a text, make it storable, and cut it."""
    text = text[:MAX_SCANNED_TEXT].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode()
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def redact_value(value: Any, depth: int = 0) -> Any:
    """Return a JSON-safe copy with the values of sensitive keys masked."""
    if depth > 8:
        return "…"
    if isinstance(value, Mapping):
        return {
            redact_text(str(key), 200): MASK
            if is_sensitive_key(str(key))
            else redact_value(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return redact_text(text_of(value))


def text_of(value: Any) -> str:
    """The text of anything, also of a value whose __str__ fails: errors of handlers may be so."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  (whatever a __str__ of somebody else's raises)
        return f"<{type(value).__name__} that has no text>"


def redact_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the details of a handler's error."""
    redacted = redact_value(details)
    return redacted if isinstance(redacted, dict) else {}

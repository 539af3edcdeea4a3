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

_KEY = r"[\w.-]*(?:" + "|".join(re.escape(key) for key in SENSITIVE_KEYS) + r"|dsn)[\w.-]*"
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|(?!bearer\b|basic\b)[^\s,;&}\]]+)"
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_HEAD = rf"\g<head>{MASK}"
_PATTERNS = (
    # user:password@host in any address
    (re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@]+(?=@)", re.I), _HEAD),
    (re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]+", re.I), _HEAD),
    (re.compile(r"\bcb_[A-Za-z0-9]+_[A-Za-z0-9_-]+"), MASK),
    (re.compile(_PRIVATE_KEY, re.S), MASK),
    # key=value, key: value, "key": "value"
    (re.compile(rf"(?P<head>\b{_KEY}[\"']?\s*[=:]\s*){_VALUE}", re.I), _HEAD),
)


def is_sensitive_key(key: str) -> bool:
    """Say whether the value under this key must not be shown."""
    lowered = key.lower().replace("-", "_")
    return any(name in lowered for name in SENSITIVE_KEYS)


def redact_text(text: str, max_length: int = MAX_ERROR_TEXT) -> str:
    """Mask secrets in a text, make it storable, and cut it."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
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
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return redact_text(str(value))


def redact_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the details of a handler's error."""
    redacted = redact_value(details)
    return redacted if isinstance(redacted, dict) else {}

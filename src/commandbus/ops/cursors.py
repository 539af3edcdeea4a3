"""Cursors: opaque texts that say where a listing stands, good for the same listing only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import astuple, is_dataclass
from typing import Any

from commandbus.errors import InvalidSettingError


def cursor_of(position: list[Any], bound: object) -> str:
    """The text of a position in the listing that `bound` describes."""
    text = json.dumps([_digest(bound), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position_of(cursor: str, bound: object) -> list[Any]:
    """The position; raises for what is no cursor, or one of another listing."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values: list[Any] = json.loads(base64.urlsafe_b64decode(padded.encode()))
        digest, position = values[0], values[1:]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, binascii.Error):
        raise bad_cursor() from None
    if digest != _digest(bound):
        raise InvalidSettingError(
            "the cursor belongs to another search; repeat the search that gave it, or start "
            "without a cursor"
        )
    return position


def bad_cursor() -> InvalidSettingError:
    """What to raise for a text that no listing gave."""
    return InvalidSettingError(
        "cursor is not one that a search gave; give next_cursor as it is, or None to start"
    )


def _digest(bound: object) -> str:
    parts = bound if isinstance(bound, tuple) else (bound,)
    plain = [
        astuple(part) if is_dataclass(part) and not isinstance(part, type) else part
        for part in parts
    ]
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:8]

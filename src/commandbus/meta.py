"""Meta: texts that travel with a command beside its data, such as the context of a trace.

Senders and middleware write it, handlers read it, operators see it. It is never masked, so a key
that names a secret is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from commandbus.errors import InvalidInputError
from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.values import MASK

MAX_META_KEYS = 20
MAX_META_KEY_LENGTH = 100
#: Of the whole as JSON, in UTF-8.
MAX_META_BYTES = 2_048


def check_meta(meta: object) -> dict[str, str] | None:
    """Return a copy of what travels with a command, None if that is nothing, or raise."""
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise InvalidInputError(
            f"meta is a {type(meta).__name__}; use a dict of texts, like {{'tenant': 'north'}}"
        )
    if len(meta) > MAX_META_KEYS:
        raise InvalidInputError(
            f"meta has {len(meta)} keys, at most {MAX_META_KEYS} are allowed; the rest belongs "
            "into the data of the command"
        )
    for key, value in meta.items():
        _check_pair(key, value)
    if not meta:
        return None
    found = dict(meta)
    size = size_of(found)
    if size > MAX_META_BYTES:
        raise InvalidInputError(
            f"meta has {size:,} bytes as JSON, at most {MAX_META_BYTES:,} are allowed; what is "
            "larger belongs into the data of the command"
        )
    return found


def size_of(meta: Mapping[str, str]) -> int:
    """Its bytes as compact JSON."""
    text = json.dumps(dict(meta), ensure_ascii=False, separators=(",", ":"))
    return len(text.encode())


def decode_meta(found: object) -> dict[str, str] | None:
    """The texts in what a message has as its meta; other programs may have written anything."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None
    if not isinstance(found, dict):
        return None
    return {key: value for key, value in found.items() if isinstance(value, str)} or None


def shown_meta(meta: Mapping[str, str] | None) -> dict[str, str] | None:
    """As operators see it: SQL may have sent what `check_meta` would have refused."""
    if meta is None:
        return None
    return {key: MASK if is_sensitive_key(key) else value for key, value in meta.items()}


def _check_pair(key: object, value: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_META_KEY_LENGTH or not _fits(key):
        raise InvalidInputError(
            f"a key of meta must be a text of 1 to {MAX_META_KEY_LENGTH} characters"
        )
    if not isinstance(value, str):
        raise InvalidInputError(
            f"meta[{key!r}] is a {type(value).__name__}; all values of meta are texts"
        )
    if not _fits(value):
        raise InvalidInputError(f"meta[{key!r}] has a character that PostgreSQL cannot keep")
    if is_sensitive_key(key):
        raise InvalidInputError(
            f"meta[{key!r}] has the name of a secret, and meta is shown to operators; secrets "
            "belong into the data of the command"
        )


def _fits(text: str) -> bool:
    """Whether JSON in PostgreSQL can have it: no NUL, and no half of a pair of surrogates."""
    if "\x00" in text:
        return False
    # Nearly all texts are ASCII, and a look at each character is dear: each send checks its meta.
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)

"""Ids that are derived from what they stand for, so that a repeat is recognised as one."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from commandbus.errors import InvalidInputError

#: Begins every hash, so that no other hash of the same bytes is one of ours. Changing it, or
#: anything else below, would give every repeat a new id.
_PURPOSE = b"commandbus.derive_id.1\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOW_62 = (1 << 62) - 1


def derive_id(*parts: str | int | bytes | UUID | datetime, at: datetime | None = None) -> UUID:
    """Make an id from parts: the same parts give the same id, in any process and any version.

    `derive_id("invoice", 4711)` and `derive_id("invoice", "4711")` differ: the type of a part
    counts, and so does where one ends. With `at` the id begins with that time, as those of
    `new_id` do, and costs an index as little; it must be a time that a repeat knows, not now.
    """
    if not parts:
        raise InvalidInputError(
            "derive_id needs at least one part, for example derive_id('invoice', 4711)"
        )
    digest = hashlib.sha256(_PURPOSE)
    for number, part in enumerate(parts, 1):
        _add(digest, *_encoded(part, f"part {number} of derive_id"))
    if at is None:
        return _uuid(int.from_bytes(digest.digest()[:16], "big"), version=8)
    microseconds = _microseconds(at, "at")
    if microseconds < 0:
        raise InvalidInputError(f"at is {at.isoformat()}; a time before 1970 fits into no id")
    _add(digest, b"@", str(microseconds).encode())
    chance = int.from_bytes(digest.digest()[:10], "big")
    return _uuid(microseconds // 1_000 << 80 | chance, version=7)


def _add(digest: Any, kind: bytes, content: bytes) -> None:
    digest.update(kind + len(content).to_bytes(8, "big") + content)


def _encoded(part: Any, what: str) -> tuple[bytes, bytes]:
    match part:
        case str():
            try:
                return b"s", part.encode()
            except UnicodeEncodeError:
                raise InvalidInputError(f"{what} is a text that is not valid Unicode") from None
        case bool():
            raise InvalidInputError(f"{what} is {part!r}; write it as a text")
        case int():
            return b"i", str(part).encode()
        case bytes():
            return b"b", part
        case UUID():
            return b"u", part.bytes
        case datetime():
            return b"t", str(_microseconds(part, what)).encode()
        case _:
            raise InvalidInputError(
                f"{what} is of the type {type(part).__name__}; use str, int, bytes, UUID or a "
                "datetime with a time zone"
            )


def _microseconds(moment: Any, what: str) -> int:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInputError(f"{what} must be a datetime with a time zone, not {moment!r}")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _uuid(number: int, version: int) -> UUID:
    head = number & ~(0xF << 76) & ~((1 << 64) - 1)
    return UUID(int=head | version << 76 | 2 << 62 | (number & _LOW_62))

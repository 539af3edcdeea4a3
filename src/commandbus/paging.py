"""Pages of listings: the same limits and the same cursors everywhere.

A cursor is an opaque text that says where a listing stands. It is bound to the listing that gave
it (its filter is part of the cursor), so that it cannot lead into another one. The HTTP service
signs its cursors.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from commandbus.errors import InvalidSettingError

Item = TypeVar("Item")
Position = TypeVar("Position")

#: Gives the signature of a cursor. A service sets it for each request, so that its clients can give
#: back what they were given and nothing else; in an application's own process there is none.
SIGN: ContextVar[Callable[[str], str] | None] = ContextVar("commandbus_sign", default=None)

#: Databases that are missing in what was answered, where there are several: by name, and why. Who
#: answers sets an empty one for each request or command, and shows what is in it.
MISSING: ContextVar[dict[str, str] | None] = ContextVar("commandbus_missing", default=None)

MAX_LIMIT = 10_000
#: Items of one page when all pages are read.
EVERY_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some items of a listing; with a `next_cursor` there may be more."""

    items: list[Item]
    next_cursor: str | None
    #: How far a search has looked, if it stopped before its end; None otherwise.
    searched_to: datetime | None = None
    #: Where the listing stands behind each item, and what its cursors are bound to: for those who
    #: put pages of several listings together. Only where that is done.
    places: list[list[Any]] = field(default_factory=list, repr=False, compare=False)
    bound: object = field(default=None, repr=False, compare=False)


def check_page(limit: int, offset: int = 0) -> None:
    """Refuse a page that cannot be meant."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidSettingError(f"limit is {limit!r}; use a whole number from 1 to {MAX_LIMIT:,}")
    if type(offset) is not int or offset < 0:
        raise InvalidSettingError(f"offset is {offset!r}; use 0 or more")


def cursor_of(position: list[Any], bound: object) -> str:
    """The text of a position in the listing that `bound` describes. Times and ids become text."""
    text = json.dumps([_digest(bound), *position], separators=(",", ":"), default=_plain)
    plain = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    sign = SIGN.get()
    return plain if sign is None else f"{plain}.{sign(plain)}"


def page_of(
    found: list[Item], limit: int, bound: object, position: Callable[[Item], list[Any]]
) -> Page[Item]:
    """The first `limit` of these, read with one more than that: there is a next page if it came."""
    items = found[:limit]
    places = [position(each) for each in items]
    cursor = cursor_of(places[-1], bound) if len(found) > limit else None
    return Page(items, cursor, None, places, bound)


async def every(read: Callable[[str | None], Awaitable[Page[Item]]]) -> AsyncGenerator[Item]:
    """The items of all pages, one page in memory at a time; `read` gives that of a cursor."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return


def position_of(
    cursor: str | None, bound: object, read: Callable[..., Position]
) -> Position | None:
    """The position, read by `read(*parts)`; None without a cursor.

    Raises InvalidSettingError for a text that is no cursor, or one of another listing.
    """
    if cursor is None:
        return None
    try:
        plain = _verified(cursor)
        padded = plain + "=" * (-len(plain) % 4)
        values: list[Any] = json.loads(base64.urlsafe_b64decode(padded.encode()))
        digest, parts = values[0], values[1:]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise bad_cursor() from None
    if digest != _digest(bound):
        raise InvalidSettingError(
            "the cursor belongs to another search; repeat the search that gave it, or start "
            "without a cursor"
        )
    try:
        return read(*parts)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise bad_cursor() from None


def _verified(cursor: str) -> str:
    """The cursor without its signature, where they are signed."""
    sign = SIGN.get()
    if sign is None:
        return cursor
    from hmac import compare_digest  # noqa: PLC0415  (only a service needs it)

    plain, _, signature = cursor.rpartition(".")
    if not compare_digest(sign(plain).encode(), signature.encode()):
        raise ValueError("not signed here")
    return plain


def bad_cursor() -> InvalidSettingError:
    """What to raise for a text that no listing gave."""
    return InvalidSettingError(
        "cursor is not one that a search gave; give next_cursor as it is, or None to start"
    )


# -- how the parts of a position are read; each raises ValueError or TypeError for another text


def read_moment(text: str) -> datetime:
    """A time with its zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment.astimezone(UTC)  # the database does not know every zone that Python reads


def read_number(number: int) -> int:
    """A whole number, as a row has it."""
    if type(number) is not int or not 0 <= number < 2**63 - 1:  # the next one is a number too
        raise ValueError("not the number of a row")
    return number


def read_key(moment: str, key: str) -> tuple[datetime, UUID]:
    """The sort key of most listings: a time, and an id for what happened at the same time."""
    return read_moment(moment), UUID(key)


def _plain(part: datetime | UUID) -> str:
    return part.isoformat() if isinstance(part, datetime) else str(part)


def _digest(bound: object) -> str:
    from hashlib import sha256  # noqa: PLC0415  (every program imports this module, few need that)

    parts = list(bound) if isinstance(bound, tuple) else [bound]
    return sha256(repr(parts).encode()).hexdigest()[:16]

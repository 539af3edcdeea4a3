"""Pages of listings: the same limits everywhere."""

from __future__ import annotations

from commandbus.errors import InvalidSettingError

MAX_LIMIT = 10_000


def check_page(limit: int, offset: int = 0) -> None:
    """Refuse a page that cannot be meant."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidSettingError(f"limit is {limit!r}; use a whole number from 1 to {MAX_LIMIT:,}")
    if type(offset) is not int or offset < 0:
        raise InvalidSettingError(f"offset is {offset!r}; use 0 or more")

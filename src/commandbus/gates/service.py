"""ExecutionLimits: set, list and clear limits of execution."""

from __future__ import annotations

from collections.abc import Collection
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError
from commandbus.flow import check_seconds
from commandbus.gates.model import ExecutionLimit, LimitedKey
from commandbus.names import (
    check_command_type,
    check_domain,
    check_operator,
    check_reach,
)
from commandbus.paging import check_page
from commandbus.privacy.reasons import check_reason

#: The largest number of places, leases and burst.
MAX_NUMBER = 1_000_000
MAX_REASON_LENGTH = 1_000
#: The longest time that a rate is counted over, in seconds.
YEAR = 31_622_400.0

_SET: LiteralString = (
    "select {schema}.set_limit(%s, cast(%s as text), %s, cast(%s as int), cast(%s as float8),"
    " cast(%s as float8), cast(%s as float8), cast(%s as text), cast(%s as text))"
)
_CLEAR: LiteralString = (
    "select {schema}.clear_limit(%s, cast(%s as text), %s, cast(%s as text), cast(%s as text))"
)
_RELEASE: LiteralString = "select {schema}.release_waiting(%s)"
_LIMITS: LiteralString = (
    "select l.domain, l.command_type, l.by_key, l.max_running, l.rate, l.per_seconds, l.burst,"
    " l.paused_at, l.paused_until, l.paused_by, l.pause_reason, l.updated_at, l.updated_by,"
    " l.running, l.tokens, l.waiting, l.oldest from "
)
LIST: LiteralString = _LIMITS + "{schema}.list_limits(cast(%s as text)) l"
#: Of several domains; null: of all.
_LIST_OF: LiteralString = (
    _LIMITS + "unnest(cast(%s as text[])) d(domain)"
    " cross join lateral {schema}.list_limits(d.domain) l"
    " order by l.domain, l.command_type nulls first, l.by_key"
)
_KEYS: LiteralString = (
    "select k.limit_key, k.running, k.waiting, k.oldest from {schema}.list_limit_keys(%s, %s, %s) k"
)


class ExecutionLimits:
    """How many commands run at once, and how often they start, over all workers of the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def set(
        self,
        domain: str,
        type: str | None = None,  # noqa: A002  (the word that users know)
        *,
        per_key: bool = False,
        max_running: int | None = None,
        rate: float | None = None,
        per: float = 1.0,
        burst: float | None = None,
        operator: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Set the limit of a domain, of a command type, or of each limit key of a type.

        `max_running` commands are leased at once; `rate` leases are given in `per` seconds, and
        `burst` of them at once after a pause. It replaces the limit that was there. What runs goes
        on; what finds no room waits, and makes way for others.
        """
        check_domain(domain)
        await self._store.gateway.rows(
            _SET,
            (
                domain,
                None if type is None else check_command_type(type),
                _is_by_key(per_key, type),
                _places(max_running),
                None if rate is None else _number(rate, "rate", 0.000001),
                # Its default is no word about a rate; the database refuses any other without one.
                None if rate is None and per == 1.0 else check_seconds(per, "per", 0.001, YEAR),
                None if burst is None else _number(burst, "burst", 1.0),
                check_operator(operator),
                check_reason(reason, max_length=MAX_REASON_LENGTH),
            ),
            domain=domain,
        )

    async def clear(
        self,
        domain: str,
        type: str | None = None,  # noqa: A002
        *,
        per_key: bool = False,
        operator: str | None = None,
        reason: str | None = None,
    ) -> bool:
        """Remove a limit, and make due what waits for it; False if there was none."""
        kind = None if type is None else check_command_type(type)
        why = check_reason(reason, max_length=MAX_REASON_LENGTH)
        by_key = _is_by_key(per_key, type)
        params = (check_domain(domain), kind, by_key, check_operator(operator), why)
        was_there = bool(await self._store.gateway.value(_CLEAR, params, domain=domain))
        # In chunks; a chore does the same, should this be interrupted.
        while await self._store.gateway.value(_RELEASE, (domain,), domain=domain):
            pass
        return was_there

    async def keys(
        self,
        domain: str,
        type: str,  # noqa: A002
        *,
        limit: int = 100,
    ) -> list[LimitedKey]:
        """The keys of a type that run or wait under a limit by key, most waiting first."""
        check_page(limit)
        params = (check_domain(domain), check_command_type(type), limit)
        return await self._store.gateway.rows(_KEYS, params, into=LimitedKey)

    async def list(
        self, domain: str | None = None, *, domains: Collection[str] | None = None
    ) -> list[ExecutionLimit]:
        """The limits of a domain, of these or of all, with what runs and waits now; paused types
        too.
        """
        places = check_reach(domain, domains)
        wanted = [None] if places is None else places
        return await self._store.gateway.rows(_LIST_OF, (wanted,), into=ExecutionLimit)


def _is_by_key(per_key: object, type: str | None) -> bool:  # noqa: A002
    if not isinstance(per_key, bool):
        raise InvalidInputError(f"per_key is {per_key!r}; use True or False")
    if per_key and type is None:
        raise InvalidInputError("a limit by key needs a command type; name it")
    return per_key


def _places(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise InvalidInputError(f"max_running is {value!r}; use 1 to {MAX_NUMBER:,}")
    return value


def _number(value: object, name: str, low: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # 0 is told apart by the database, which says what to do instead.
    if not is_number or not (value == 0 or low <= value <= MAX_NUMBER):  # type: ignore[operator]
        raise InvalidInputError(f"{name} is {value!r}; use {low:g} to {MAX_NUMBER:,}")
    return float(value)  # type: ignore[arg-type]

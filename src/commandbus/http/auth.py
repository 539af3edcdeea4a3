"""Who asks: authenticators turn the headers of a request into a Caller, or refuse."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from starlette.datastructures import Headers

from commandbus.access.model import ApiToken, Caller, Scope, StoredToken
from commandbus.access.tokens import Tokens, is_live
from commandbus.errors import DatabaseUnavailableError

#: Tokens, or addresses, that are remembered at most.
MAX_REMEMBERED = 10_000
#: Seconds between two notes that a token is in use.
TOUCH_SECONDS = 60.0


Value = TypeVar("Value")


class NotAuthenticated(Exception):  # noqa: N818  (a refusal, not an error)
    """No valid proof of who asks. It does not say why: the answer is the same for all reasons."""


class Authenticator(Protocol):
    """Proves who asks."""

    async def authenticate(self, headers: Headers) -> Caller:
        """The caller, or NotAuthenticated."""


def bearer_of(headers: Headers) -> str:
    """What stands after `Bearer`; credentials in the address are never looked at."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        raise NotAuthenticated
    scheme, _, credentials = values[0].partition(" ")
    if scheme.lower() != "bearer" or not credentials or len(credentials) > 8_192:
        raise NotAuthenticated
    return credentials.strip()


_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")


class NoAuth:
    """For development: everybody on this machine is the same caller, who may do everything.

    A page in a browser is not: whatever comes from another site, or by a name that is not this
    machine's, is refused.
    """

    def __init__(self, user_id: str = "developer") -> None:
        self._caller = Caller(user_id, frozenset(Scope))

    async def authenticate(self, headers: Headers) -> Caller:
        """The one caller there is."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        is_foreign = "origin" in headers or (
            headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        )
        if name.lower() not in _OWN_NAMES or is_foreign:
            raise NotAuthenticated
        return self._caller


@dataclass(frozen=True, slots=True)
class _Known:
    stored: StoredToken
    until: float


class TokenAuth:
    """API tokens. What the database says of a token is kept for some seconds, no longer than
    a revocation may take to be noticed.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        cache_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._touched: OrderedDict[str, float] = OrderedDict()

    async def authenticate(self, headers: Headers) -> Caller:
        """Prove an API token."""
        parts = self._tokens.split(bearer_of(headers))
        if parts is None:
            raise NotAuthenticated
        token_id, secret = parts
        stored = await self._find(token_id)
        if not self._tokens.is_proved(stored, secret) or stored is None:
            raise NotAuthenticated
        await self._touch(stored.token)
        return stored.token.caller()

    async def _find(self, token_id: str) -> StoredToken | None:
        now = self._clock()
        known = self._known.get(token_id)
        if known is not None and now < known.until:
            return known.stored
        stored = await self._tokens.find(token_id)
        if stored is None:
            self._known.pop(token_id, None)
            return None
        if is_live(stored.token, datetime.now(UTC)):
            _remember(self._known, token_id, _Known(stored, now + self._cache_seconds))
        else:
            self._known.pop(token_id, None)
        return stored

    async def _touch(self, token: ApiToken) -> None:
        # The function in the database has the same rule; this one saves the round trip.
        now = self._clock()
        if now - self._touched.get(token.token_id, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        _remember(self._touched, token.token_id, now)
        try:
            await self._tokens.touch(token.token_id)
        except DatabaseUnavailableError:
            self._touched.pop(token.token_id, None)  # worth no failed request


def _remember(memory: OrderedDict[str, Value], key: str, value: Value) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


class Attempts:
    """Counts failed proofs by address and minute. Secrets cannot be guessed; the database should
    not have to say so a thousand times a second.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Failures of this minute."""
        minute, failed = self._failed.get(address, (-1, 0))
        return failed if minute == self._minute() else 0

    def failed(self, address: str) -> None:
        """One more."""
        _remember(self._failed, address, (self._minute(), self.count(address) + 1))

    def seconds_left(self) -> int:
        """Until the next minute."""
        return 60 - int(self._clock() % 60)

    def _minute(self) -> int:
        return int(self._clock() // 60)

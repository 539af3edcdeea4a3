"""Where an API token is checked: `TokenAuth.authenticate`. The secret itself is compared in
`commandbus.access.tokens`.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from starlette.datastructures import Headers

from commandbus.access.model import ApiToken, Caller, StoredToken
from commandbus.access.tokens import Tokens, is_live
from commandbus.bus import CommandBus
from commandbus.errors import DatabaseUnavailableError
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.auth.lookups import Lookups

#: Tokens, or addresses, that are remembered at most.
MAX_REMEMBERED = 10_000
#: Seconds between two updates of `last_used_at` of a token.
TOUCH_SECONDS = 60.0

Value = TypeVar("Value")


class TokenAuth:
    """Checks `Authorization: Bearer <API token>`. What the database says of a token is kept for
    `cache_seconds`, so a revoked token is accepted for at most that long.

    `outage_seconds`: for how long a token that was good is accepted while the database that has the
    tokens does not answer. That is for services whose work is in other databases.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        cache_seconds: float = 5.0,
        outage_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._cache_seconds = cache_seconds
        self._outage_seconds = outage_seconds
        self._clock = clock
        #: Live tokens by id, each with the time at which the database was asked.
        self._known: OrderedDict[str, tuple[StoredToken, float]] = OrderedDict()
        #: Ids that do not exist, each with the time at which the database was asked.
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._lookups = Lookups(tokens.find_many)

    @classmethod
    def of(cls, bus: CommandBus) -> TokenAuth:
        """That of the tokens of a bus, for `create_app(bus_of_request, auth=TokenAuth.of)`."""
        return cls(bus.tokens)

    async def authenticate(self, headers: Headers) -> Caller:
        """Check an API token."""
        return await self._check(headers, self._cache_seconds)

    async def check_again(self, headers: Headers) -> Caller:
        """Check the token of a request that is still open. Asked every half of `cache_seconds`,
        with what is half as old at most, it notices a revocation within the whole.
        """
        return await self._check(headers, self._cache_seconds / 2)

    async def caller_of_token(self, token_id: str, *, fresh: bool = False) -> Caller | None:
        """Who comes with a token whose secret was given before, if it is still good."""
        max_age = self._cache_seconds / 2 if fresh else self._cache_seconds
        stored = await self._find(token_id, max_age)
        if stored is None or not is_live(stored.token, datetime.now(UTC)):
            return None
        await self._touch(stored.token)
        return stored.token.caller()

    async def end_of_token(self, token_id: str) -> datetime | None:
        """When a token ends by itself; None: never."""
        stored = await self._find(token_id, self._cache_seconds)
        return None if stored is None else stored.token.expires_at

    def forget(self, token_id: str) -> None:
        """Ask the database again: the token was revoked."""
        self._known.pop(token_id, None)

    async def _check(self, headers: Headers, max_age: float) -> Caller:
        parts = self._tokens.split(bearer_of(headers))
        if parts is None:
            raise NotAuthenticated
        token_id, secret = parts
        stored = await self._find(token_id, max_age)
        if not self._tokens.is_proved(stored, secret) or stored is None:
            raise NotAuthenticated
        await self._touch(stored.token)
        return stored.token.caller()

    async def _find(self, token_id: str, max_age: float) -> StoredToken | None:
        now = self._clock()
        if token_id in self._known:
            stored, asked_at = self._known[token_id]
            if now - asked_at < max_age:
                return stored
        if now - self._unknown.get(token_id, -math.inf) < max_age:
            return None
        try:
            found = await self._lookups.find(token_id)
        except DatabaseUnavailableError:
            # Nobody can revoke it there either.
            if token_id in self._known:
                stored, asked_at = self._known[token_id]
                if now - asked_at < self._outage_seconds:
                    return stored
            raise
        if found is not None and is_live(found.token, datetime.now(UTC)):
            remember(self._known, token_id, (found, now))
        else:
            self._known.pop(token_id, None)
        if found is None:
            remember(self._unknown, token_id, now)
        return found

    async def _touch(self, token: ApiToken) -> None:
        # The function in the database has the same rule; this one saves the round trip.
        now = self._clock()
        if now - self._touched.get(token.token_id, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        remember(self._touched, token.token_id, now)
        try:
            await self._tokens.touch(token.token_id)
        except DatabaseUnavailableError:
            self._touched.pop(token.token_id, None)  # no reason to refuse the request


def remember(memory: OrderedDict[str, Value], key: str, value: Value) -> None:
    """Keep a value, and of all values the newest MAX_REMEMBERED."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)

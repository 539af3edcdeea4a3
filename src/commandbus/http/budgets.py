"""Budgets: how much one caller may use, so that it cannot use up what others need.

Each is kept for the user and, smaller, for each of its tokens. They are asked before anything
global: a client that is too busy gets 429 for itself, never 503 for everybody. Requests without
valid credentials are charged to their address.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Receive

from commandbus.access.model import Caller
from commandbus.errors import RateLimitExceededError
from commandbus.http.context import ClientGone, RequestInfo, until_gone
from commandbus.http.problems import RETRY_AFTER, unavailable
from commandbus.http.settings import HttpSettings

#: Keys that one counter remembers; the one that was quiet for longest is forgotten first.
MAX_KEYS = 10_000
#: Refusals in a minute that a client gets at once, and about how many seconds it waits for each
#: further one.
PROMPT_REFUSALS = 20
LATE_SECONDS = 3.0
#: Refusals that are late at once. Their clients may have gone, so connections are no bound.
MAX_LATE = 2_000
#: Who is charged: "user", "token" or "address", and which one.
Key = tuple[str, str]


class Minutes:
    """Counts by key, in the current minute. Minutes are those of the clock, as in the database:
    a caller cannot use two minutes' worth of the global limit within one of them.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts: OrderedDict[Key, tuple[int, int]] = OrderedDict()

    def count(self, key: Key) -> int:
        """What was counted in this minute."""
        minute, count = self._counts.get(key, (-1, 0))
        return count if minute == self._minute() else 0

    def add(self, key: Key, amount: int = 1) -> int:
        """Count, and return the count of this minute."""
        count = self.count(key) + amount
        self._counts[key] = (self._minute(), count)
        self._counts.move_to_end(key)
        while len(self._counts) > MAX_KEYS:
            self._counts.popitem(last=False)
        return count

    def seconds_left(self) -> int:
        """Seconds until the next minute."""
        return 60 - int(self._clock() % 60)

    def _minute(self) -> int:
        return int(self._clock() // 60)


@dataclass(frozen=True, slots=True)
class Share:
    """How much a user may have, and each of its tokens."""

    of_user: int
    of_token: int

    @classmethod
    def of(cls, of_user: float, token_share: float) -> Share:
        """At least one each: a share of nothing would lock everybody out."""
        user = max(1, int(of_user))
        return cls(user, max(1, int(user * token_share)))

    def limits(self, caller: Caller) -> Iterator[tuple[Key, int]]:
        """The token first: it is the smaller one, and the message then names it."""
        if caller.token_id is not None:
            yield ("token", caller.token_id), self.of_token
        yield ("user", caller.user_id), self.of_user


class Budget:
    """What a caller may use in a minute."""

    def __init__(self, what: str, share: Share, clock: Callable[[], float] = time.time) -> None:
        self._what = what
        self._share = share
        self._spent = Minutes(clock)

    def spend(self, caller: Caller, amount: int = 1) -> None:
        """Charge a caller; RateLimitExceededError, and nothing is charged, if it is too much.

        Something larger than the whole budget passes if it is the first of its minute: waiting
        would not help it.
        """
        limits = list(self._share.limits(caller))
        for key, limit in limits:
            spent = self._spent.count(key)
            if spent and spent + amount > limit:
                raise refusal(key, self._what, spent, limit, self._spent.seconds_left())
        for key, _ in limits:
            self._spent.add(key, amount)


class Places:
    """Places for what happens at once: `limit` for all, and a share of them for each caller."""

    def __init__(self, what: str, limit: int, share: Share, full: str) -> None:
        self._what = what
        self._limit = limit
        self._share = share
        #: What those are told who find no place, though they have not used up their own share.
        self._full = full
        self.taken = 0
        self._taken_by: Counter[Key] = Counter()

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """Have a place for the duration of a block: 429 if the caller has its share, 503 if there
        is none left.
        """
        limits = list(self._share.limits(caller))
        for key, limit in limits:
            if self._taken_by[key] >= limit:
                raise refusal(key, self._what, self._taken_by[key], limit, RETRY_AFTER)
        if self.taken >= self._limit:
            raise unavailable(self._full)
        self.taken += 1
        self._taken_by.update(key for key, _ in limits)
        try:
            yield
        finally:
            self.taken -= 1
            for key, _ in limits:
                self._taken_by[key] -= 1
                if not self._taken_by[key]:
                    del self._taken_by[key]  # or it would grow by each caller that ever came


class Patience:
    """Refusals for those who do not stop asking are late, so that a flood of requests costs the
    service little: a connection can ask again only when it has its answer.
    """

    def __init__(
        self,
        prompt: int = PROMPT_REFUSALS,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._prompt = prompt
        self._pause = pause
        self._refused = Minutes(clock)
        self._waiting = 0

    async def before_refusing(self, key: Key, info: RequestInfo, receive: Receive) -> None:
        """Wait, if this one was refused often in this minute; ClientGone if nobody waits for it."""
        if self._refused.add(key) <= self._prompt or self._waiting >= MAX_LATE:
            return
        self._waiting += 1
        try:
            if info.has_unread_body:  # which would be read while looking for the client's end
                await self._pause(_lateness())
            else:
                await self._pause_attended(receive)
        finally:
            self._waiting -= 1

    async def _pause_attended(self, receive: Receive) -> None:
        pause = asyncio.ensure_future(self._pause(_lateness()))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({pause, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not pause.done():
                raise ClientGone
        finally:
            pause.cancel()
            gone.cancel()


def _lateness() -> float:
    # Never the same: clients that were refused together would come again together.
    return LATE_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  (no secret)


def refusal(
    key: Key, what: str, current_value: int, max_value: int, retry_after: int
) -> RateLimitExceededError:
    """The error for a budget that is used up."""
    scope = key[0]
    return RateLimitExceededError(
        f"{scope}_{what}", scope, current_value, max_value, retry_after, contact_admin=False
    )


class Budgets:
    """All budgets of one app."""

    def __init__(self, settings: HttpSettings, clock: Callable[[], float] = time.time) -> None:
        def budget(what: str, limit: int) -> Budget:
            return Budget(what, Share.of(limit, settings.token_share), clock)

        def places(what: str, limit: int, full: str) -> Places:
            share = Share.of(limit * settings.user_share, settings.token_share)
            return Places(what, limit, share, full)

        self.requests = budget("requests", settings.max_user_requests)
        self.body_bytes = budget("body_bytes", settings.max_user_body_bytes)
        self.commands = budget("commands", settings.max_user_commands)
        most = settings.max_concurrency
        self.concurrency = places(
            "concurrency", most, f"{most} requests are being served already; try again"
        )
        most = settings.max_long_polls
        self.waiting = places(
            "waiting", most, f"{most} requests are waiting already; ask without waiting"
        )
        most = settings.max_console_streams
        self.console = places(
            "console", most, f"{most} pages of the console are live already; close some"
        )
        most = settings.max_bodies
        self.bodies = places("bodies", most, f"{most} bodies are being received; try again")

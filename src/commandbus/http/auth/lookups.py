"""Look-ups of tokens that the service does not know: in groups, and paced if they find nothing.

A client that guesses tokens costs the database one small query at a time, and few of them in a
second, from any number of addresses. A valid token that comes in between is looked up with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from commandbus.access.model import StoredToken

#: Ids that one query asks for.
MAX_IDS = 500
#: Ids that may be unknown in one second before the next query waits, and how long it waits.
MAX_MISSES = 20
PACE_SECONDS = 0.05

Find = Callable[[Collection[str]], Awaitable[Mapping[str, StoredToken]]]


class Lookups:
    """One query at a time: while it is on its way, ids gather for the next."""

    def __init__(
        self,
        find: Find,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._find = find
        self._clock = clock
        self._pause = pause
        self._waiting: dict[str, asyncio.Future[StoredToken | None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._second = -1
        self._misses = 0

    async def find(self, token_id: str) -> StoredToken | None:
        """What the database says of a token; None if there is none."""
        future = self._waiting.get(token_id)
        if future is None:
            future = self._waiting[token_id] = asyncio.get_running_loop().create_future()
            # One who was cancelled does not take the error; then nobody else has to.
            future.add_done_callback(_take_error)
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run())
        # Others may wait for the same one: who goes away must not take it along.
        return await asyncio.shield(future)

    async def _run(self) -> None:
        while self._waiting:
            if self._is_guessing():
                await self._pause(PACE_SECONDS)
            group = {key: self._waiting.pop(key) for key in list(self._waiting)[:MAX_IDS]}
            try:
                found = await self._find(list(group))
            except Exception as error:  # noqa: BLE001  (whatever it is, it goes to those who wait)
                for future in group.values():
                    future.set_exception(error)
                continue
            except asyncio.CancelledError:
                for future in group.values():
                    future.cancel()
                raise
            for token_id, future in group.items():
                future.set_result(found.get(token_id))
            self._misses += len(group) - len(found)

    def _is_guessing(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._misses = second, 0
        return self._misses > MAX_MISSES


def _take_error(future: asyncio.Future[StoredToken | None]) -> None:
    if not future.cancelled():
        future.exception()

"""Long polls: `Prefer: wait=N` (RFC 7240), and streams; at most `max_long_polls` at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from commandbus.http.problems import unavailable
from commandbus.http.reading import HEAD

_WAIT = re.compile(r"(?:\A|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?", re.I)


def wait_of(prefer: str | None, longest: float) -> float:
    """The seconds that a client wants to wait, at most `longest`; 0: not at all."""
    match = _WAIT.search(prefer or "")
    return 0.0 if match is None else min(float(match[1]), longest)


Value = TypeVar("Value")


class Stream(StreamingResponse):
    """A stream that counts as a waiting request, from its first byte to its last."""

    def __init__(self, pieces: AsyncIterator[bytes], polls: LongPolls, **options: Any) -> None:
        super().__init__(pieces, **options)
        self._polls = polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; 503 if there is no place, before anything is sent."""
        if scope.get(HEAD):
            # The headers alone: nothing is streamed, so no place is taken.
            await send(
                {"type": "http.response.start", "status": self.status_code,
                 "headers": self.raw_headers}
            )  # fmt: skip
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            await _close(self.body_iterator)
            return
        with self._polls.place():
            await super().__call__(scope, receive, send)


async def _close(pieces: Any) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


class LongPolls:
    """Places for requests that wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting = 0
        self._closing = asyncio.Event()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count as waiting for the duration of a block; 503 if too many requests are."""
        if self.waiting >= self._limit:
            raise unavailable(f"{self._limit} requests are waiting already; ask without waiting")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @property
    def is_closing(self) -> bool:
        """Whether the service is about to end."""
        return self._closing.is_set()

    def close(self) -> None:
        """End all waiting, because the service ends; clients try again by themselves."""
        self._closing.set()

    async def unless_closing(self, waiting: Coroutine[Any, Any, Value], otherwise: Value) -> Value:
        """The result of `waiting`; `otherwise` as soon as the service is about to end."""
        task = asyncio.ensure_future(waiting)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else otherwise
        finally:
            task.cancel()
            closing.cancel()
            await asyncio.gather(task, closing, return_exceptions=True)

"""Long polls: `Prefer: wait=N` (RFC 7240), and streams. Each has a place, which it gives back when
its client goes or its credentials end.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from commandbus.errors import CommandBusError
from commandbus.http.auth.authenticators import NotAuthenticated
from commandbus.http.budgets import Places
from commandbus.http.context import ClientGone, RequestInfo, info_of, until_gone
from commandbus.http.problems import unauthenticated
from commandbus.http.reading import HEAD
from commandbus.http.settings import HttpSettings

_WAIT = re.compile(r"(?:\A|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?", re.I)
#: Seconds between two checks of the credentials, if checked ones are not kept at all.
CHECK_SECONDS = 0.5


def wait_of(prefer: str | None, longest: float) -> float:
    """The seconds that a client wants to wait, at most `longest`; 0: not at all."""
    match = _WAIT.search(prefer or "")
    return 0.0 if match is None else min(float(match[1]), longest)


Value = TypeVar("Value")
#: What is begun once there is a place for it.
Work = Callable[[], Coroutine[Any, Any, Value]]


class Stream(StreamingResponse):
    """A stream that counts as a waiting request, from its first byte to its last."""

    def __init__(self, pieces: AsyncIterator[bytes], polls: LongPolls, **options: Any) -> None:
        super().__init__(pieces, **options)
        self._polls = polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; 429 or 503 if there is no place, before anything is sent.

        If the client goes, takes nothing for too long, or its credentials end, the stream is cut
        off: it lacks its end, so nobody takes a part for the whole.
        """
        if scope.get(HEAD):
            # The headers alone: nothing is streamed, so no place is taken.
            await send(
                {"type": "http.response.start", "status": self.status_code,
                 "headers": self.raw_headers}
            )  # fmt: skip
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            await _close(self.body_iterator)
            return

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._polls.send_timeout):
                await send(message)

        try:
            await self._polls.attended(scope, receive, lambda: self.stream_response(send_in_time))
        except (ClientGone, CredentialsEnded, TimeoutError):
            return


class CredentialsEnded(Exception):  # noqa: N818  (a refusal, not an error)
    """The token of a waiting request was revoked, or has expired."""


async def _close(pieces: Any) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


class LongPolls:
    """What waits, and what ends the waiting."""

    def __init__(self, places: Places, settings: HttpSettings) -> None:
        self._places = places
        self.send_timeout = settings.send_timeout_seconds
        self._check_seconds = settings.token_cache_seconds / 2 or CHECK_SECONDS
        self._closing = asyncio.Event()
        #: What wakes the checks of the requests that wait with a token, by its id.
        self._checks: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._places.taken

    @property
    def is_closing(self) -> bool:
        """Whether the service is about to end."""
        return self._closing.is_set()

    def close(self) -> None:
        """End all waiting, because the service ends; clients try again by themselves."""
        self._closing.set()

    def check_now(self, token_id: str) -> None:
        """Check the credentials of all that waits with this token now."""
        for event in self._checks.get(token_id, ()):
            event.set()

    async def wait(
        self, scope: Scope, receive: Receive, work: Work[Value], otherwise: Value
    ) -> Value:
        """The result of `work`, for which a request waits; `otherwise` as soon as the service is
        about to end. Nobody is answered who has gone, or may not ask any more.
        """
        try:
            return await self.attended(
                scope, receive, lambda: self.unless_closing(work(), otherwise)
            )
        except CredentialsEnded:
            raise unauthenticated() from None

    async def unless_closing(self, waiting: Coroutine[Any, Any, Value], otherwise: Value) -> Value:
        """The result of `waiting`; `otherwise` as soon as the service is about to end."""
        task = asyncio.ensure_future(waiting)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else otherwise
        finally:
            await _ended(task, closing)

    async def attended(self, scope: Scope, receive: Receive, work: Work[Value]) -> Value:
        """The result of `work`, in a place, as long as its client is there (else ClientGone) and
        may ask (else CredentialsEnded).
        """
        info = info_of(scope)
        if info is None or info.caller is None:
            raise unauthenticated()
        with self._places.place(info.caller):
            task: asyncio.Future[Value] = asyncio.ensure_future(work())
            gone = asyncio.ensure_future(until_gone(receive))
            ended = asyncio.ensure_future(self._until_ended(info))
            watched: set[asyncio.Future[Any]] = {task, gone, ended}
            try:
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                raise ClientGone if gone.done() else CredentialsEnded
            finally:
                await _ended(*watched)

    async def _until_ended(self, info: RequestInfo) -> None:
        """Return when the credentials of a request are good no more."""
        if info.check_again is None or info.caller is None:
            await asyncio.get_running_loop().create_future()
            return
        now, token_id = asyncio.Event(), info.caller.token_id or ""
        self._checks[token_id].add(now)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._check_seconds):
                        await now.wait()
                except TimeoutError:
                    pass
                now.clear()
                try:
                    if await info.check_again() != info.caller:
                        return
                except NotAuthenticated:
                    return
                except CommandBusError:
                    continue  # without a database nobody can say that they have ended
        finally:
            self._checks[token_id].discard(now)
            if not self._checks[token_id]:
                del self._checks[token_id]


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

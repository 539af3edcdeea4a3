"""Limits on every request before its body is read: headers, what its caller may use, the total.

Pure ASGI. Each refuses by raising an error, which the outermost layer turns into the response.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.errors import RateLimitExceededError
from commandbus.governance.service import Governance
from commandbus.http.auth.gate import path_below
from commandbus.http.budgets import Budgets, Patience
from commandbus.http.context import ClientGone, info_of
from commandbus.http.problems import Kind, Problem
from commandbus.http.settings import HttpSettings

# After these nothing of the connection is believed any more.
_CLOSE = {"Connection": "close"}
#: Bytes of a response that are handed over at once. The server keeps what the client does not take,
#: however large it is, and stops us only before the next piece.
PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class FramingMiddleware:
    """Headers: not too many, and only one way to say how long the body is."""

    app: ASGIApp
    settings: HttpSettings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers."""
        if scope["type"] == "http":
            self._check(scope)
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        most, most_bytes = self.settings.max_header_count, self.settings.max_header_bytes
        size = sum(len(name) + len(value) + 4 for name, value in raw)
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if size > most_bytes or len(raw) > most:
            detail = (
                f"at most {most} headers, and {most_bytes:,} bytes of headers and address, are read"
            )
            raise Problem(Kind.HEADERS_TOO_LARGE, detail, _CLOSE)
        names = [name for name, _ in raw]
        lengths = names.count(b"content-length")
        if lengths > 1 or (lengths and b"transfer-encoding" in names):
            detail = (
                "the length of the body is given twice; send Content-Length once, or "
                "Transfer-Encoding: chunked"
            )
            raise Problem(Kind.INVALID_REQUEST, detail, _CLOSE)


@dataclass(frozen=True, slots=True)
class CallerMiddleware:
    """Charges the caller for the request and gives it a place. What needs no caller needs no place:
    it is answered from memory.

    The place is kept until the response is on its way, in pieces: a client that asks for much and
    takes nothing uses up its own places, then its time, and not the memory of the service.
    """

    app: ASGIApp
    budgets: Budgets
    patience: Patience
    send_timeout_seconds: float
    #: Paths that begin with this have places of their own.
    apart: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within the budgets of its caller."""
        info = info_of(scope) if scope["type"] == "http" else None
        if info is None or info.caller is None:
            await self.app(scope, receive, send)
            return
        try:
            self.budgets.requests.spend(info.caller)
            is_apart = bool(self.apart) and path_below(scope).startswith(self.apart)
            with nullcontext() if is_apart else self.budgets.concurrency.place(info.caller):
                info.is_admitted = True
                await self.app(scope, receive, self._in_time(send))
        except RateLimitExceededError:
            # Here the place has been given back: who waits for a refusal takes it from nobody.
            await self.patience.before_refusing(("user", info.caller.user_id), info, receive)
            raise

    def _in_time(self, send: Send) -> Send:
        """A `send` that raises ClientGone if the client takes nothing for too long."""

        async def send_in_time(message: Message) -> None:
            body = message.get("body", b"")
            try:
                while len(body) > PIECE:
                    async with asyncio.timeout(self.send_timeout_seconds):
                        await send({**message, "body": bytes(body[:PIECE]), "more_body": True})
                    body = memoryview(body)[PIECE:]
                    message = {**message, "body": body}
                async with asyncio.timeout(self.send_timeout_seconds):
                    await send({**message, "body": bytes(body)} if body else message)
            except TimeoutError:
                raise ClientGone from None

        return send_in_time


@dataclass(frozen=True, slots=True)
class CountMiddleware:
    """Counts requests to paths that begin with `counted` in the database, for all processes of the
    service together; too many in a minute are refused.
    """

    app: ASGIApp
    governance: Governance
    counted: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request, then pass it on."""
        info = info_of(scope) if scope["type"] == "http" else None
        if (
            info is not None
            and info.caller is not None
            and self.governance.is_available
            and path_below(scope).startswith(self.counted)
        ):
            # Counted whatever its outcome: a request that is refused later costs something too.
            info.limits = (await self.governance.count_request(info.caller.user_id),)
        await self.app(scope, receive, send)

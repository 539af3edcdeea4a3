"""What reading requests have in common: HEAD wherever there is GET, and cursors that are signed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.http.context import info_of
from commandbus.paging import SIGN

#: In the scope of a GET that was a HEAD.
HEAD = "commandbus.head"
#: Bytes of a signature: enough that nobody guesses one.
SIGNATURE_BYTES = 16


@dataclass(frozen=True, slots=True)
class CursorMiddleware:
    """Pure ASGI. Cursors are signed for the user who gets them, and taken from no other."""

    app: ASGIApp
    #: Gives the key: the same in every process of the service, or a client could not go on at
    #: another one.
    key: Callable[[], bytes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sign and verify the cursors of one request."""
        info = info_of(scope) if scope["type"] == "http" else None
        if info is None or info.caller is None:
            await self.app(scope, receive, send)
            return
        user = info.caller.user_id.encode(errors="replace")

        def sign(text: str) -> str:
            message = len(user).to_bytes(4, "big") + user + text.encode(errors="replace")
            return hmac.new(self.key(), message, hashlib.sha256).hexdigest()[: 2 * SIGNATURE_BYTES]

        token = SIGN.set(sign)
        try:
            await self.app(scope, receive, send)
        finally:
            SIGN.reset(token)


@dataclass(frozen=True, slots=True)
class HeadMiddleware:
    """Pure ASGI. A HEAD is a GET whose body is not sent, and that neither waits nor streams.

    The outermost layer, so that the problem of an error has no body either. The routes know nothing
    of it, so the OpenAPI document has each of them once.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD on as a GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"prefer"]
        inner = {**scope, "method": "GET", "headers": headers, HEAD: True}

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app(inner, receive, send_without_body)

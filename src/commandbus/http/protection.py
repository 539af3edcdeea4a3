"""Limits on every request: headers, body, depth of JSON, time, requests at once.

Pure ASGI. Each refuses by raising a Problem, which the outermost layer turns into the response.
"""

from __future__ import annotations

import asyncio
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.http import catalogue as kinds
from commandbus.http.auth.gate import path_below
from commandbus.http.problems import Problem, unavailable
from commandbus.http.settings import HttpSettings

# After these the rest of the request is not read: the connection cannot be used again.
_CLOSE = {"Connection": "close"}
# Strings are passed over as one; an unfinished one ends with the text, so nothing is read twice.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.S)


class FramingMiddleware:
    """Headers: not too many, and only one way to say how long the body is."""

    def __init__(self, app: ASGIApp, *, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers."""
        if scope["type"] == "http":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) + 4 for name, value in raw)
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if size > self._settings.max_header_bytes or len(raw) > self._settings.max_header_count:
            raise Problem(
                kinds.HEADERS_TOO_LARGE,
                f"at most {self._settings.max_header_count} headers, and "
                f"{self._settings.max_header_bytes:,} bytes of headers and address, are read",
                _CLOSE,
            )
        names = [name for name, _ in raw]
        lengths = names.count(b"content-length")
        if lengths > 1 or (lengths and b"transfer-encoding" in names):
            raise Problem(
                kinds.INVALID_REQUEST,
                "the length of the body is given twice; send Content-Length once, or "
                "Transfer-Encoding: chunked",
                _CLOSE,
            )


class ConcurrencyMiddleware:
    """At most `limit` requests at once; the next gets 503. Health checks are always answered."""

    def __init__(self, app: ASGIApp, *, limit: int, exempt: frozenset[str]) -> None:
        self._app = app
        self._limit = limit
        self._exempt = exempt
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a place, or refuse."""
        if scope["type"] != "http" or path_below(scope) in self._exempt:
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            raise unavailable(f"{self._limit} requests are being answered already; come again")
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class BodyMiddleware:
    """The body, counted while it comes in, within an absolute time, as JSON of bounded depth."""

    def __init__(self, app: ASGIApp, *, settings: HttpSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, then let the app have it."""
        if scope["type"] != "http" or not self._has_body(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._settings.receive_timeout_seconds):
                body = await self._read(receive)
        except TimeoutError:
            raise Problem(
                kinds.REQUEST_TIMEOUT,
                f"the request had not arrived after {self._settings.receive_timeout_seconds:g} "
                "seconds; send it faster, or less of it",
                _CLOSE,
            ) from None
        if body is None:
            return  # the client has gone
        if body:
            _check_media_type(Headers(scope=scope))
            self._check_depth(body)
        await self._app(scope, _replaying(body, receive), send)

    def _has_body(self, headers: Headers) -> bool:
        if "transfer-encoding" in headers:
            return True
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Problem(kinds.INVALID_REQUEST, "Content-Length is not a number", _CLOSE)
        if len(length) > 15 or int(length) > self._settings.max_body_bytes:
            raise self._too_large()
        return int(length) > 0

    async def _read(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._settings.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> Problem:
        return Problem(
            kinds.PAYLOAD_TOO_LARGE,
            f"the body has more than {self._settings.max_body_bytes:,} bytes; send less at once",
            _CLOSE,
        )

    def _check_depth(self, body: bytes) -> None:
        depth = 0
        limit = self._settings.max_json_depth
        if body.count(b"[") + body.count(b"{") <= limit:
            return
        for token in _TOKENS.finditer(body):
            first = token[0][:1]
            if first in (b"[", b"{"):
                depth += 1
            elif first != b'"':
                depth -= 1
            if depth > limit:
                raise Problem(
                    kinds.INVALID_REQUEST,
                    f"the body is nested more than {limit} deep; flatten it",
                )


def _check_media_type(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            kinds.UNSUPPORTED_MEDIA_TYPE,
            "send the body as JSON, with Content-Type: application/json",
        )
    coding = headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise Problem(kinds.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Give the body once, and afterwards what the server says: that the client has gone."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay

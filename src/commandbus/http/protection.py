"""Limits on every request: headers, body, depth of JSON, time, requests at once.

Pure ASGI. Each refuses by raising a Problem, which the outermost layer turns into the response.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.http.auth.gate import path_below
from commandbus.http.problems import Kind, Problem, unavailable
from commandbus.http.settings import HttpSettings

# After these the rest of the request is not read: the connection cannot be used again.
_CLOSE = {"Connection": "close"}
# Strings are passed over as one; an unfinished one ends with the text, so nothing is read twice.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.S)


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


@dataclass(slots=True)
class ConcurrencyMiddleware:
    """At most `limit` requests at once; the next gets 503. Paths in `exempt` are always served."""

    app: ASGIApp
    limit: int
    exempt: frozenset[str]
    running: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a place, or refuse the request."""
        if scope["type"] != "http" or path_below(scope) in self.exempt:
            await self.app(scope, receive, send)
            return
        if self.running >= self.limit:
            raise unavailable(f"{self.limit} requests are being served already; try again")
        self.running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.running -= 1


@dataclass(frozen=True, slots=True)
class BodyMiddleware:
    """The body, counted while it comes in, within an absolute time, as JSON of bounded depth."""

    app: ASGIApp
    settings: HttpSettings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read and check the whole body, then pass it on."""
        if scope["type"] != "http" or not self._has_body(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.settings.receive_timeout_seconds):
                body = await self._read(receive)
        except TimeoutError:
            raise Problem(
                Kind.REQUEST_TIMEOUT,
                f"the request had not arrived after {self.settings.receive_timeout_seconds:g} "
                "seconds; send it faster, or less of it",
                _CLOSE,
            ) from None
        if body is None:
            return  # the client has disconnected
        if body:
            _check_media_type(Headers(scope=scope))
            self._check_depth(body)

        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            # After the body what the server says: that the client has disconnected.
            return unread.pop() if unread else await receive()

        await self.app(scope, replay, send)

    def _has_body(self, headers: Headers) -> bool:
        if "transfer-encoding" in headers:
            return True
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Problem(Kind.INVALID_REQUEST, "Content-Length is not a number", _CLOSE)
        if len(length) > 15 or int(length) > self.settings.max_body_bytes:
            raise self._too_large()
        return int(length) > 0

    async def _read(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self.settings.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> Problem:
        return Problem(
            Kind.PAYLOAD_TOO_LARGE,
            f"the body has more than {self.settings.max_body_bytes:,} bytes; send less at once",
            _CLOSE,
        )

    def _check_depth(self, body: bytes) -> None:
        depth = 0
        limit = self.settings.max_json_depth
        if body.count(b"[") + body.count(b"{") <= limit:
            return
        for token in _TOKENS.finditer(body):
            first = token[0][:1]
            if first in (b"[", b"{"):
                depth += 1
            elif first != b'"':
                depth -= 1
            if depth > limit:
                detail = f"the body is nested more than {limit} deep; flatten it"
                raise Problem(Kind.INVALID_REQUEST, detail)


def _check_media_type(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        detail = "send the body as JSON, with Content-Type: application/json"
        raise Problem(Kind.UNSUPPORTED_MEDIA_TYPE, detail)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(Kind.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")

"""The body of a request: who may send one, how much, how fast, and what its JSON may cost.

Pure ASGI. It refuses by raising a Problem, which the outermost layer turns into the response.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.access.model import Caller
from commandbus.http.auth.gate import path_below
from commandbus.http.budgets import Budgets
from commandbus.http.context import info_of
from commandbus.http.json_cost import check_cost
from commandbus.http.peers import address_of
from commandbus.http.problems import Kind, Problem
from commandbus.http.settings import HttpSettings

#: Bytes of a body from which on its cost can be felt.
LARGE = 64 * 1024


@dataclass(frozen=True, slots=True)
class BodyMiddleware:
    """Reads the body of a caller, counted while it comes in, within an absolute time. The body of
    a request without a caller is not read at all.
    """

    app: ASGIApp
    settings: HttpSettings
    budgets: Budgets
    #: Forms are taken under paths that begin with this; JSON nowhere else than elsewhere.
    forms: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read and check the whole body, then pass it on."""
        info = info_of(scope) if scope["type"] == "http" else None
        if info is None or not info.has_unread_body:
            await self.app(scope, receive, send)
            return
        if info.caller is None and not info.open_form:
            await self.app(scope, _Replay(b"", _never), send)
            return
        headers = Headers(scope=scope)
        # Strangers share what one caller may have, by their address.
        sender = info.caller or Caller(f"stranger {address_of(scope)}", frozenset())
        most = min(self.settings.max_body_bytes, info.open_form or self.settings.max_body_bytes)
        body = await self._receive(headers, receive, sender, most)
        if body is None:
            return  # the client has disconnected
        info.has_unread_body = False
        if body and self.forms and path_below(scope).startswith(self.forms):
            _check_form(headers)
        elif body:
            _check_media_type(headers)
            check_cost(body, self.settings.max_json_depth, self.settings.max_json_values)
            if len(body) > LARGE:
                await asyncio.sleep(0)  # others first: reading it takes its time too
        # After the body what the server says: that the client has disconnected.
        await self.app(scope, _Replay(body, receive), send)

    async def _receive(
        self, headers: Headers, receive: Receive, caller: Caller, most: int
    ) -> bytes | None:
        announced = _announced(headers, most)
        self.budgets.body_bytes.spend(caller, announced or 0)
        with self.budgets.bodies.place(caller):
            try:
                async with asyncio.timeout(self.settings.receive_timeout_seconds):
                    charged = None if announced is not None else caller
                    return await self._read(receive, charged, most)
            except TimeoutError:
                raise Problem(
                    Kind.REQUEST_TIMEOUT,
                    f"the request had not arrived after {self.settings.receive_timeout_seconds:g} "
                    "seconds; send it faster, or less of it",
                ) from None

    async def _read(self, receive: Receive, charged: Caller | None, most: int) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            body += part
            if len(body) > most:
                raise _too_large(most)
            if charged is not None and part:
                self.budgets.body_bytes.spend(charged, len(part))
            if not message.get("more_body", False):
                return bytes(body)


def _announced(headers: Headers, most: int) -> int | None:
    """The length that the client says; None if it does not."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Problem(Kind.INVALID_REQUEST, "Content-Length is not a number")
    if len(length) > 15 or int(length) > most:
        raise _too_large(most)
    return int(length)


def _too_large(most: int) -> Problem:
    return Problem(
        Kind.PAYLOAD_TOO_LARGE, f"the body has more than {most:,} bytes; send less at once"
    )


class _Replay:
    """The `receive` of an app: a body that is complete, then whatever comes."""

    def __init__(self, body: bytes, then: Receive) -> None:
        self._unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._then = then

    async def __call__(self) -> Message:
        return self._unread.pop() if self._unread else await self._then()


async def _never() -> Message:
    waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await waiting


def _check_media_type(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        detail = "send the body as JSON, with Content-Type: application/json"
        raise Problem(Kind.UNSUPPORTED_MEDIA_TYPE, detail)
    _refuse_encoding(headers)


def _check_form(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        detail = "send the form as application/x-www-form-urlencoded"
        raise Problem(Kind.UNSUPPORTED_MEDIA_TYPE, detail)
    _refuse_encoding(headers)


def _refuse_encoding(headers: Headers) -> None:
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(Kind.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")

"""The gate: a caller is authenticated by the headers alone, before it gets a place and before a
byte of the body is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from commandbus.access.model import Caller
from commandbus.errors import RateLimitExceededError
from commandbus.http.auth.authenticators import Authenticator, NotAuthenticated
from commandbus.http.auth.json_web_tokens import JwtAuth
from commandbus.http.budgets import Minutes, Patience
from commandbus.http.context import RequestInfo, info_of
from commandbus.http.peers import address_of
from commandbus.http.problems import unauthenticated
from commandbus.http.settings import HttpSettings

_READING = frozenset({"GET", "HEAD"})
#: Requests that reading a public document counts as: the response is large.
PUBLIC_COST = 10


def path_below(scope: Scope) -> str:
    """The path inside this app, wherever it is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


class Door(Protocol):
    """The way into a part of the app that has sessions."""

    def leads(self, path: str) -> bool:
        """Whether a path is behind this door."""

    async def enter(
        self, scope: Scope, receive: Receive, info: RequestInfo, path: str
    ) -> ASGIApp | None:
        """Find the caller of a request; what to answer instead, if it is not let in."""


class Strangers:
    """Counts what comes without valid credentials, by address and minute. Valid ones are never
    refused for it: others share their address (a proxy, a company).
    """

    def __init__(
        self,
        settings: HttpSettings,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.max_requests = settings.max_address_requests
        self.max_failures = settings.max_auth_failures
        self.requests = Minutes(clock)
        self.failures = Minutes(clock)
        self._patience = patience or Patience(2 * settings.max_auth_failures)

    async def charge(
        self,
        scope: Scope,
        receive: Receive,
        info: RequestInfo,
        *,
        is_wrong: bool = False,
        is_public: bool = False,
        cost: int = 1,
    ) -> None:
        """Count a request, and a failure if its credentials are wrong; RateLimitExceededError if
        it is one too many. What leads nowhere is answered late if there is much of it.
        """
        key = ("address", address_of(scope))
        requests = self.requests.add(key, cost)
        failures = self.failures.add(key) if is_wrong else 0
        if failures > self.max_failures:
            kind, value, limit = "auth_failures", failures, self.max_failures
        elif requests > self.max_requests:
            kind, value, limit = "address_requests", requests, self.max_requests
        elif is_public:
            return
        else:
            kind, value, limit = "", 0, 0
        await self._patience.before_refusing(key, info, receive)
        if kind:
            raise RateLimitExceededError(
                kind, "address", value - 1, limit, self.requests.seconds_left(),
                contact_admin=False,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateMiddleware:
    """Pure ASGI. Paths that begin with one of `guarded` need a caller; all others are public."""

    app: ASGIApp
    auth: Authenticator
    strangers: Strangers
    guarded: tuple[str, ...]
    #: Paths that everybody may read, and those of them that are always served: what watches over a
    #: service must not be refused.
    public: frozenset[str]
    free: frozenset[str]
    #: Files that browsers keep, by how their paths begin; reading one costs little.
    files: tuple[str, ...] = ()
    #: Who is let into the console; None: there is none.
    door: Door | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the caller, then pass the request on."""
        info = info_of(scope) if scope["type"] == "http" else None
        path = path_below(scope) if info is not None else ""
        is_file = path.startswith(self.files)
        if info is not None and self.door is not None and self.door.leads(path) and not is_file:
            refusal = await self.door.enter(scope, receive, info, path)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        elif info is not None and path.startswith(self.guarded) and not is_file:
            headers = Headers(scope=scope)
            info.caller = await self._authenticate(headers)
            if info.caller is None:
                is_wrong = "authorization" in headers
                await self.strangers.charge(scope, receive, info, is_wrong=is_wrong)
                raise unauthenticated(is_jwt=isinstance(self.auth, JwtAuth))
            check = getattr(self.auth, "check_again", self.auth.authenticate)
            info.check_again = partial(check, headers)
        elif info is not None:
            is_reading = scope["method"] in _READING
            if not is_reading or path not in self.free:
                is_public = is_reading and (is_file or path in self.public)
                cost = PUBLIC_COST if is_public and not is_file else 1
                await self.strangers.charge(scope, receive, info, is_public=is_public, cost=cost)
        await self.app(scope, receive, send)

    async def _authenticate(self, headers: Headers) -> Caller | None:
        try:
            return await self.auth.authenticate(headers)
        except NotAuthenticated:
            return None

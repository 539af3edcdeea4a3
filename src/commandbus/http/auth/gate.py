"""The gate: a caller is authenticated by the headers alone, before a byte of the body is read."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from commandbus.access.model import Caller
from commandbus.errors import RateLimitExceededError
from commandbus.governance.service import Governance
from commandbus.http.auth.authenticators import Authenticator, NotAuthenticated
from commandbus.http.auth.json_web_tokens import JwtAuth
from commandbus.http.auth.tokens import remember
from commandbus.http.context import info_of
from commandbus.http.problems import unauthenticated


def path_below(scope: Scope) -> str:
    """The path inside this app, wherever it is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


class Attempts:
    """Counts failed authentications by address and minute, so that a client that guesses tokens
    cannot keep the database busy.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Failures of an address in this minute."""
        minute, failed = self._failed.get(address, (-1, 0))
        return failed if minute == self._minute() else 0

    def failed(self, address: str) -> None:
        """Count a failure of an address."""
        remember(self._failed, address, (self._minute(), self.count(address) + 1))

    def seconds_left(self) -> int:
        """Seconds until the next minute."""
        return 60 - int(self._clock() % 60)

    def _minute(self) -> int:
        return int(self._clock() // 60)


@dataclass(frozen=True, slots=True)
class GateMiddleware:
    """Pure ASGI. Paths that begin with one of `guarded` need a caller; all others are public."""

    app: ASGIApp
    auth: Authenticator
    attempts: Attempts
    governance: Governance
    guarded: tuple[str, ...]
    #: Requests to paths that begin with this are counted; too many in a minute are refused.
    counted: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the caller and count the request, then pass it on."""
        info = info_of(scope) if scope["type"] == "http" else None
        path = path_below(scope) if info is not None else ""
        if info is not None and path.startswith(self.guarded):
            info.caller = await self._authenticate(scope)
            if path.startswith(self.counted) and self.governance.is_available:
                # Counted whatever its outcome: a request that is refused costs something too.
                info.limits = (await self.governance.count_request(info.caller.user_id),)
        await self.app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> Caller:
        address = scope["client"][0] if scope.get("client") else "unknown"
        failures = self.attempts.count(address)
        if failures >= self.attempts.limit:
            raise RateLimitExceededError(
                "auth_failures", "address", failures, self.attempts.limit,
                self.attempts.seconds_left(), contact_admin=False,
            )  # fmt: skip
        headers = Headers(scope=scope)
        try:
            return await self.auth.authenticate(headers)
        except NotAuthenticated:
            if "authorization" in headers:
                self.attempts.failed(address)
            raise unauthenticated(is_jwt=isinstance(self.auth, JwtAuth)) from None

"""The gate: a caller is proved by the headers alone, before a byte of the body is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from commandbus.access.model import Caller
from commandbus.errors import RateLimitExceededError
from commandbus.http.auth import Attempts, Authenticator, NotAuthenticated
from commandbus.http.context import info_of
from commandbus.http.jwt_auth import JwtAuth
from commandbus.http.problems import unauthenticated
from commandbus.http.ratelimits import RequestCounter


def path_below(scope: Scope) -> str:
    """The path inside this app, wherever it is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


class GateMiddleware:
    """Pure ASGI. Only paths that `guarded` begins need a caller; what else there is, is public."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Authenticator,
        attempts: Attempts,
        counter: RequestCounter,
        guarded: tuple[str, ...],
        counted: str,
    ) -> None:
        self._app = app
        self._auth = auth
        self._attempts = attempts
        self._counter = counter
        self._guarded = guarded
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Prove, count, pass on."""
        info = info_of(scope) if scope["type"] == "http" else None
        path = path_below(scope) if info is not None else ""
        if info is not None and path.startswith(self._guarded):
            info.caller = await self._prove(scope)
            if path.startswith(self._counted):
                # Counted whatever becomes of it: a request that is refused costs something too.
                info.limits = await self._counter.count(info.caller.user_id)
        await self._app(scope, receive, send)

    async def _prove(self, scope: Scope) -> Caller:
        address = scope["client"][0] if scope.get("client") else "unknown"
        failures = self._attempts.count(address)
        if failures >= self._attempts.limit:
            raise RateLimitExceededError(
                "auth_failures", "address", failures, self._attempts.limit,
                self._attempts.seconds_left(), contact_admin=False,
            )  # fmt: skip
        headers = Headers(scope=scope)
        try:
            return await self._auth.authenticate(headers)
        except NotAuthenticated:
            if "authorization" in headers:
                self._attempts.failed(address)
            raise unauthenticated(is_jwt=isinstance(self._auth, JwtAuth)) from None

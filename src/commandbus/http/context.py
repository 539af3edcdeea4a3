"""The outermost layer: a request id, headers on every response, a problem for every error."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commandbus.access.model import Caller
from commandbus.access.sessions import ConsoleSession
from commandbus.errors import CommandBusError, DatabaseError, RateLimitExceededError
from commandbus.governance.model import LimitState, LimitType
from commandbus.http.metrics import NoMetrics
from commandbus.http.problems import Kind, Problem, problem_of
from commandbus.paging import MISSING
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import text_of

_log = logging.getLogger("commandbus.http")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")

#: On every response, also on those that the framework makes.
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(slots=True)
class RequestInfo:
    """What the layers of the service tell each other about a request."""

    request_id: str
    caller: Caller | None = None
    #: Whether the caller was given a place.
    is_admitted: bool = False
    #: Whether the request has a body that nobody has read to its end.
    has_unread_body: bool = False
    #: Asks once more whether the caller's credentials are good; raises NotAuthenticated.
    check_again: Callable[[], Awaitable[Caller]] | None = None
    #: Bytes of a form that is read though nobody is known to have sent it: that of a sign-in.
    open_form: int = 0
    #: The session that a request to the console came with.
    session: ConsoleSession | None = None
    #: Limits as they stood when this request was counted, for the headers.
    limits: Sequence[LimitState] = ()
    #: Shards that are missing in what is answered, and why.
    missing: dict[str, str] = field(default_factory=dict)


class ClientGone(Exception):  # noqa: N818  (no error: clients come and go)
    """The client has disconnected while its request waited."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has disconnected. The rest of a body, if there is any, is no news."""
    while (await receive())["type"] != "http.disconnect":
        pass


def info_of(scope: Any) -> RequestInfo | None:
    """The info of a request; None if it has not passed the outermost layer."""
    found = scope.get("state", {}).get("commandbus")
    return found if isinstance(found, RequestInfo) else None


#: The page that shows a problem; None if the request does not want a page.
PageOf = Callable[[Scope, Problem], ASGIApp | None]


@dataclass(frozen=True, slots=True)
class ContextMiddleware:
    """Pure ASGI."""

    app: ASGIApp
    metrics: NoMetrics
    #: The path of each endpoint as its route declares it.
    templates: Mapping[Any, str]
    #: Shows a problem to a person; None where nobody looks with a browser.
    page_of: PageOf | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the other layers respond; respond with a problem if they raise an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        info = RequestInfo(_request_id(scope), has_unread_body=_has_body(scope))
        scope.setdefault("state", {})["commandbus"] = info
        MISSING.set(info.missing)
        began = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, info, is_https=scope.get("scheme") == "https")
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientGone:
            pass  # there is nobody to answer
        except Exception as error:
            if status:  # part of the response was sent: all that is left is to close the connection
                self._log_failure(error, info, scope)
                raise
            problem = self._problem(error, info, scope)
            page = None if self.page_of is None else self.page_of(scope, problem)
            answer = page or problem.response(info.request_id)
            await answer(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - began
            route = self._route_of(scope)
            self.metrics.answered(scope["method"], route, status, seconds)
            _log.info(
                "%s %s %d in %.1f ms, request %s", scope["method"], route, status,
                seconds * 1000, info.request_id,
            )  # fmt: skip

    def _problem(self, error: Exception, info: RequestInfo, scope: Scope) -> Problem:
        match error:
            case Problem():
                return error
            case CommandBusError():
                if isinstance(error, RateLimitExceededError):
                    self.metrics.limited(error.limit_type)
                if isinstance(error, DatabaseError):
                    _log.warning("request %s: %s", info.request_id, redact_text(str(error)))
                return problem_of(error)
            case _:
                self._log_failure(error, info, scope)
                detail = "a bug in the service; look for the request id in its log"
                return Problem(Kind.INTERNAL_ERROR, detail)

    def _route_of(self, scope: Scope) -> str:
        """The template of the path, for logs and metrics: never what the client wrote."""
        return self.templates.get(scope.get("endpoint"), "unmatched")

    def _log_failure(self, error: Exception, info: RequestInfo, scope: Scope) -> None:
        # Where it happened, and what, redacted: a message or a line of source may contain a secret.
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        where = "\n".join(f"  {each.filename}:{each.lineno} in {each.name}" for each in frames)
        _log.error(
            "request %s (%s %s) failed: %s: %s\n%s", info.request_id, scope["method"],
            self._route_of(scope), type(error).__name__, redact_text(text_of(error)), where,
        )  # fmt: skip


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.match(given) else uuid4().hex


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _add_headers(message: Message, info: RequestInfo, *, is_https: bool) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    if is_https:
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    if info.has_unread_body:
        # Or the rest of the body would have to be read, however slowly it comes.
        headers["Connection"] = "close"
    headers["X-Request-Id"] = info.request_id
    if info.missing:
        headers["X-Missing-Shards"] = ", ".join(info.missing)
    headers.update(limit_headers(info.limits))


def limit_headers(limits: Iterable[LimitState]) -> dict[str, str]:
    """RateLimit and RateLimit-Policy, with one member for each limit that is in force."""
    policies: list[str] = []
    states: list[str] = []
    for limit in limits:
        quota, window, reset = limit.max_value, None, limit.reset_seconds
        if quota is None:
            continue
        left = max(0, quota - limit.current_value)
        if limit.limit_type is LimitType.GLOBAL_API_REQUESTS:
            window = 60
        elif limit.limit_type is LimitType.USER_COOLDOWN:
            if not quota:
                continue  # there is no cooldown
            # One batch in as many seconds as `max_value` says.
            quota, window, reset = 1, quota, reset or 0
            left = 0 if reset else 1
        name = limit.limit_type.value
        policies.append(f'"{name}";q={quota}' + (f";w={window}" if window else ""))
        states.append(f'"{name}";r={left}' + ("" if reset is None else f";t={max(0, reset)}"))
    if not policies:
        return {}
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}

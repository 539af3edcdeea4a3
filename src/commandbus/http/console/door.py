"""The door of the console: who asks, by the application's own sign-in, a header or a session."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope

from commandbus.access.model import Caller
from commandbus.access.sessions import ConsoleSession
from commandbus.errors import CommandBusError
from commandbus.http.auth.authenticators import NoAuth, NotAuthenticated
from commandbus.http.auth.gate import Strangers
from commandbus.http.auth.json_web_tokens import JwtAuth
from commandbus.http.console.again import asks_again
from commandbus.http.console.bare import is_page, lone_page
from commandbus.http.console.cookies import session_cookie
from commandbus.http.console.known import KnownSessions
from commandbus.http.context import RequestInfo
from commandbus.http.platform import Platform
from commandbus.http.problems import Kind, Problem, problem_of, unauthenticated

SIGN_IN = "/sign-in"
#: Bytes of the form of a sign-in.
SIGN_IN_BYTES = 16 * 1024

Hook = Callable[[Request], Caller | Awaitable[Caller | None] | None]


class ConsoleDoor:
    """Finds the caller of each request to the console, before its body is read."""

    def __init__(self, here: Platform, strangers: Strangers, hook: Hook | None) -> None:
        self._here = here
        self.strangers = strangers
        self._hook = hook
        self._below = f"{here.prefix}/console/"
        self._seconds = here.settings.token_cache_seconds
        self._known = KnownSessions(here.bus.tokens.sessions, self._seconds)

    @property
    def has_sessions(self) -> bool:
        """Whether a token becomes a session: not where others say who asks."""
        return self._hook is None and hasattr(self._here.auth, "caller_of_token")

    def leads(self, path: str) -> bool:
        """Whether a path is behind this door."""
        return path.startswith(self._below)

    async def enter(
        self, scope: Scope, receive: Receive, info: RequestInfo, path: str
    ) -> ASGIApp | None:
        """Find the caller; otherwise lead a browser to the sign-in, and refuse everything else."""
        if path == self._below.rstrip("/") + SIGN_IN:
            await self.strangers.charge(scope, receive, info, is_public=True)
            info.open_form = SIGN_IN_BYTES
            return None
        request = Request(scope)
        try:
            info.caller = await self._caller(request, info)
        except CommandBusError as error:
            if not is_page(request):
                raise
            # Nobody can say who asks: a page that says so, and looks again by itself.
            problem = problem_of(error)
            return lone_page(request, self._here, problem, info.request_id, looks_again=True)
        if info.caller is not None:
            return None
        is_wrong = "authorization" in request.headers
        leads_on = self.has_sessions and not is_wrong and is_page(request)
        await self.strangers.charge(scope, receive, info, is_wrong=is_wrong, is_public=leads_on)
        if leads_on:
            return asks_again(request, self._root(request)) or self._to_sign_in(request)
        if self._hook is not None:
            raise Problem(Kind.UNAUTHENTICATED, "sign in to the application first")
        raise unauthenticated(is_jwt=isinstance(self._here.auth, JwtAuth))

    async def _caller(self, request: Request, info: RequestInfo) -> Caller | None:
        if self._hook is not None:
            info.check_again = partial(self._check_by_hook, request)
            return await self._by_hook(request)
        auth: Any = self._here.auth
        if "authorization" in request.headers or isinstance(auth, NoAuth):
            try:
                caller: Caller = await auth.authenticate(request.headers)
            except NotAuthenticated:
                return None
            check = getattr(auth, "check_again", auth.authenticate)
            info.check_again = partial(check, request.headers)
            return caller
        secret = session_cookie(request, self._root(request))
        if not secret or not self.has_sessions:
            return None
        found = await self.session_of(secret, is_used=_is_use(request, self._below))
        if found is None:
            return None
        session, caller = found
        info.session = session
        info.check_again = partial(self._check_again, secret, info)
        return caller

    async def _by_hook(self, request: Request) -> Caller | None:
        found = None if self._hook is None else self._hook(request)
        return await found if inspect.isawaitable(found) else found

    async def _check_by_hook(self, request: Request) -> Caller:
        found = await self._by_hook(request)
        if found is None:
            raise NotAuthenticated
        return found

    async def session_of(
        self, secret: str, *, is_used: bool, max_age: float | None = None
    ) -> tuple[ConsoleSession, Caller] | None:
        """The session of a cookie and its caller, if both the session and its token are good."""
        session = await self._known.find(secret, is_used=is_used, max_age=max_age)
        if session is None:
            return None
        auth: Any = self._here.auth
        caller: Caller | None = await auth.caller_of_token(
            session.token_id, fresh=max_age is not None
        )
        # A token belongs to one user for ever; another one would be somebody else's session.
        return (session, caller) if caller and caller.user_id == session.user_id else None

    async def _check_again(self, secret: str, info: RequestInfo) -> Caller:
        found = await self.session_of(secret, is_used=False, max_age=self._seconds / 2)
        if found is None:
            raise NotAuthenticated
        info.session = found[0]  # another tab may have kept it: its end is told to this one
        return found[1]

    async def prove(self, text: str) -> Caller | None:
        """The caller of a token that was typed; None if it is not good."""
        try:
            return await self._here.auth.authenticate(Headers({"authorization": f"Bearer {text}"}))
        except (NotAuthenticated, UnicodeEncodeError):
            return None

    def forget_session(self, session_id: UUID) -> None:
        """Ask the database again: the session was changed."""
        self._known.forget(session_id)

    def _root(self, request: Request) -> str:
        """Where the service is, as the browser knows it."""
        return str(request.scope.get("root_path", "")).rstrip("/") + self._here.prefix

    def _to_sign_in(self, request: Request) -> ASGIApp:
        root = request.scope.get("root_path", "").rstrip("/") + self._below.rstrip("/")
        target = request.url.path
        if request.method == "POST":  # its page, not the action itself
            target = urlsplit(request.headers.get("referer", "")).path
        elif request.url.query:
            target += f"?{request.url.query}"
        wanted = f"?next={quote(target)}" if target.startswith(f"{root}/") else ""
        return RedirectResponse(f"{root}{SIGN_IN}{wanted}", 303)


def _is_use(request: Request, below: str) -> bool:
    """Whether a person asks, and not a page that only stays open."""
    return (
        not request.url.path.removeprefix(request.scope.get("root_path", "")).startswith(
            f"{below}live/"
        )
        and request.headers.get("x-console-regions") != "poll"
    )

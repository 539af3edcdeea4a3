"""Sign-in, sign-out, and the token that is asked for again before an administrator's act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from commandbus.access.model import Caller, Scope
from commandbus.access.sessions import ConsoleSession
from commandbus.errors import CommandBusError, RateLimitExceededError
from commandbus.http.console import cookies
from commandbus.http.console.console import Console
from commandbus.http.console.forms import Form
from commandbus.http.console.headers import PAGE_HEADERS
from commandbus.http.console.origins import check_origin, check_secure
from commandbus.http.console.rendering import environment
from commandbus.http.console.view import ROOT, View
from commandbus.http.context import info_of
from commandbus.http.peers import address_of
from commandbus.http.platform import platform_of
from commandbus.http.problems import Kind, Problem, problem_of
from commandbus.privacy.redaction import redact_text

router = APIRouter(include_in_schema=False)

#: How old the proof of an administrator may be.
PROOF_LIFE = timedelta(minutes=10)


@router.get("/sign-in")
async def show_sign_in(request: Request) -> Response:
    """The form that takes a token."""
    return _page(request, _next_of(request, request.query_params.get("next", "")))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Make a session of a token, or of a code."""
    here = platform_of(request)
    target = ""
    try:
        form = Form.of(await request.body())
        target = _next_of(request, form.text("next"))
        check_secure(request)
        check_origin(request, here.settings.trusted_proxies)
        caller = await _caller_of(request, form)
    except RateLimitExceededError as error:
        return _page(request, target, problem_of(error))
    except Problem as problem:
        return _page(request, target, problem)
    except CommandBusError as error:
        return _page(request, target, problem_of(error))
    return await _begin(request, caller, target)


async def _caller_of(request: Request, form: Form) -> Caller:
    here, door = platform_of(request), _console_of(request).door
    if not door.has_sessions:
        raise Problem(Kind.PERMISSION_DENIED, "this service does not take tokens for a session")
    token, code = form.text("token"), form.text("code")
    caller: Caller | None = None
    if code:
        token_id = await here.bus.tokens.sessions.use_code(code)
        auth: Any = here.auth
        caller = None if token_id is None else await auth.caller_of_token(token_id, fresh=True)
    elif token:
        caller = await door.prove(token)
    if caller is not None and caller.token_id is not None:
        return caller
    await _refuse(request, is_code=bool(code))
    what = "this code is used up, or older than a minute" if code else "this token is not good"
    raise Problem(Kind.UNAUTHENTICATED, f"{what}; `commandbus open` signs you in with a new one")


async def _refuse(request: Request, *, is_code: bool) -> None:
    """Count a failure as the API does; what is one too many is not written either."""
    info, console = info_of(request.scope), _console_of(request)
    if info is None:
        raise RuntimeError("a request has passed the outermost layer")
    await console.door.strangers.charge(request.scope, request.receive, info, is_wrong=True)
    details = {"action": "sign-in", "by": "code" if is_code else "token"}
    await console.note(None, request, details, is_refused=True)


async def _begin(request: Request, caller: Caller, target: str) -> Response:
    here = platform_of(request)
    auth: Any = here.auth
    token_id = caller.token_id or ""
    ends = await auth.end_of_token(token_id)
    details = {
        "address": address_of(request.scope),
        "agent": redact_text(request.headers.get("user-agent", ""), 200),
    }
    root = here.url("")
    await _end_former(request, cookies.session_cookie(request, root))
    secret, _ = await here.bus.tokens.sessions.begin(token_id, caller.user_id, ends, details)
    answer = RedirectResponse(target or here.url(f"{ROOT}/"), 303)
    cookies.set_session(answer, request, root, secret)
    return answer


async def _end_former(request: Request, secret: str) -> None:
    """End the session that this browser had: its cookie is about to be replaced, and nobody could
    end it any more without looking for it.
    """
    door = _console_of(request).door
    former = await door.session_of(secret, is_used=False) if secret else None
    if former is None:
        return
    session, _ = former
    await platform_of(request).bus.tokens.sessions.end(
        session.session_id, actor=session.user_id, owner=session.user_id,
        details={"address": address_of(request.scope), "why": "another sign-in"},
    )  # fmt: skip
    door.forget_session(session.session_id)


def _page(request: Request, target: str, problem: Problem | None = None) -> Response:
    here, console = platform_of(request), _console_of(request)
    values = {
        "here": here,
        "theme": cookies.theme_of(request),
        "asset": lambda name: console.asset_url(here, name),
        "action": here.url(f"{ROOT}/sign-in"),
        "next": target,
        "problem": problem,
        "has_sessions": console.door.has_sessions,
    }
    text = environment().get_template("sign_in.html").render(values)
    status = 200 if problem is None else problem.kind.status
    return HTMLResponse(text, status, PAGE_HEADERS | dict(problem.headers if problem else {}))


def _next_of(request: Request, wanted: str) -> str:
    """Where to go afterwards: a place in this console, or none."""
    root = platform_of(request).url(f"{ROOT}/")
    parts = urlsplit(wanted)
    is_ours = not parts.scheme and not parts.netloc and parts.path.startswith(root)
    is_plain = "\\" not in wanted and not any(ord(char) < 33 for char in wanted)
    return wanted if is_ours and is_plain and not parts.path.startswith(f"{root}sign-in") else ""


def _console_of(request: Request) -> Console:
    console: Console = request.app.state.commandbus_console
    return console


async def sign_out(view: View) -> Response:
    """End the session of this browser."""
    answer = RedirectResponse(view.here.url(f"{ROOT}/sign-in"), 303)
    if view.session is not None:
        await end_session(view, view.session.session_id)
        cookies.end_session(answer, view.request, view.here.url(""))
    return answer


async def end_session(view: View, session_id: UUID, *, of_anybody: bool = False) -> bool:
    """End a session of the caller, or of anybody; whether there was one. Here it ends at once, in
    other processes within five seconds.
    """
    ended = await view.bus.tokens.sessions.end(
        session_id, actor=view.actor, owner=None if of_anybody else view.actor,
        details={"address": address_of(view.request.scope)},
    )  # fmt: skip
    view.console.door.forget_session(session_id)
    return ended


# -- before an administrator's act


async def needs_proof(view: View) -> bool:
    """Whether the token must be given again: after ten minutes."""
    if view.session is None or not _is_old(view.session):
        return False
    # It may have been given to another process since this one has asked.
    secret = cookies.session_cookie(view.request, view.here.url(""))
    found = await view.console.door.session_of(secret, is_used=True, max_age=0.0)
    return found is None or _is_old(found[0])


def _is_old(session: ConsoleSession) -> bool:
    return datetime.now(UTC) - session.proved_at > PROOF_LIFE


async def prove(view: View, form: Form) -> str | None:
    """Take what was typed: the token of this session, or a new code of `commandbus open`. None if
    it is good, otherwise why not; nothing if nothing was typed.
    """
    text, session = form.text("proof"), view.session
    if not text or session is None:
        return ""
    caller = await view.console.door.prove(text)
    is_proved = caller is not None and caller.token_id == session.token_id
    if not is_proved and not text.startswith("cb_"):
        is_proved = await _is_proved_by_code(view, session, text.rpartition("#")[2])
    if is_proved:
        await view.bus.tokens.sessions.prove(session.session_id)
        view.console.door.forget_session(session.session_id)
        return None
    info = info_of(view.request.scope)
    if info is not None:
        await view.console.door.strangers.charge(
            view.request.scope, view.request.receive, info, is_wrong=True
        )
    return (
        "this is neither the token that you signed in with, nor a new code of `commandbus open` "
        f"for {session.user_id}"
    )


async def _is_proved_by_code(view: View, session: ConsoleSession, code: str) -> bool:
    """Whether this is a code for an administrator of the same name: who makes one has the
    database, and with it more than any token gives. It is used up, no matter for whom.
    """
    token_id = await view.bus.tokens.sessions.use_code(code)
    if token_id is None:
        return False
    auth: Any = view.here.auth
    caller: Caller | None = await auth.caller_of_token(token_id, fresh=True)
    return caller is not None and caller.user_id == session.user_id and caller.may(Scope.ADMIN)

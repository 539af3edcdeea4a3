"""Small cookies of the console: the theme, and what a page says once after an action."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from commandbus.http.console.view import View

THEME = "commandbus-theme"
NOTICE = "commandbus-notice"
THEMES = ("auto", "light", "dark")
#: How close rows stand: 36 or 28 pixels.
DENSITY = "commandbus-density"
DENSITIES = ("normal", "compact")
#: Seconds that a notice waits for its page.
NOTICE_SECONDS = 30
MAX_NOTICE = 500


#: Of the session. The first name binds a cookie to this host and to HTTPS, and to the path `/`:
#: below a prefix the place is in the name, so that deployments of one host leave each other alone.
#: On plain HTTP, which is for one's own machine only, so is the port: cookies do not know ports.
SECURE_SESSION = "__Host-commandbus"
PLAIN_SESSION = "commandbus-session"


def is_https(request: Request) -> bool:
    """Whether the browser came by HTTPS, as far as the trusted proxy says."""
    return request.url.scheme == "https"


def _session_name(request: Request, root: str) -> str:
    place = f"-{hashlib.sha256(root.encode()).hexdigest()[:8]}" if root else ""
    if is_https(request):
        return f"{SECURE_SESSION}{place}"
    return f"{PLAIN_SESSION}-{request.url.port or 80}{place}"


def session_cookie(request: Request, root: str) -> str:
    """The secret of a session of the service below `root`; empty if there is none."""
    found = request.cookies.get(_session_name(request, root), "")
    return found if len(found) <= 100 else ""


def set_session(response: Response, request: Request, root: str, secret: str) -> None:
    """Give the browser its session; it ends with the browser, or before."""
    response.set_cookie(
        _session_name(request, root), secret, path="/", secure=is_https(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def end_session(response: Response, request: Request, root: str) -> None:
    """Take the session away."""
    response.delete_cookie(
        _session_name(request, root), path="/", secure=is_https(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def theme_of(request: Request) -> str:
    """The theme of a browser; `auto` if it has not chosen."""
    found = request.cookies.get(THEME, "auto")
    return found if found in THEMES else "auto"


def density_of(request: Request) -> str:
    """How close the rows of tables stand in a browser; `normal` if it has not chosen."""
    found = request.cookies.get(DENSITY, DENSITIES[0])
    return found if found in DENSITIES else DENSITIES[0]


def path_of(root: str) -> str:
    """The path that cookies of the console are for."""
    return f"{root}/console"


def set_theme(response: Response, root: str, theme: str, *, is_secure: bool) -> None:
    """Remember a theme for a year."""
    _remember(response, root, THEME, theme if theme in THEMES else "auto", is_secure=is_secure)


def set_density(response: Response, root: str, density: str, *, is_secure: bool) -> None:
    """Remember for a year how close rows stand."""
    value = density if density in DENSITIES else DENSITIES[0]
    _remember(response, root, DENSITY, value, is_secure=is_secure)


def _remember(response: Response, root: str, name: str, value: str, *, is_secure: bool) -> None:
    response.set_cookie(
        name, value, max_age=31_536_000, path=path_of(root), secure=is_secure, httponly=True,
        samesite="strict",
    )  # fmt: skip


def set_notice(response: Response, view: View, text: str) -> None:
    """Say something on the next page. Signed: nobody else puts words into our mouth."""
    cut = text if len(text) <= MAX_NOTICE else text[: MAX_NOTICE - 1] + "…"
    body = f"{int(time.time())}.{base64.urlsafe_b64encode(cut.encode()).decode()}"
    response.set_cookie(
        NOTICE, f"{body}.{_signature(view, body)}", max_age=NOTICE_SECONDS,
        path=path_of(view.here.url("")), secure=view.console.is_secure(view.request),
        httponly=True, samesite="strict",
    )  # fmt: skip


def notice_of(view: View) -> str:
    """What a page should say, if it is ours and not old."""
    body, _, signature = view.request.cookies.get(NOTICE, "").rpartition(".")
    when, _, text = body.partition(".")
    expected = _signature(view, body).encode()
    if not body or not hmac.compare_digest(signature.encode(errors="replace"), expected):
        return ""
    if not when.isdigit() or time.time() - int(when) > NOTICE_SECONDS:
        return ""
    return base64.urlsafe_b64decode(text).decode()


def end_notice(response: Response, view: View) -> None:
    """It was said."""
    response.delete_cookie(NOTICE, path=path_of(view.here.url("")))


def _signature(view: View, body: str) -> str:
    key = view.bus.tokens.key_for("console_notice")
    subject = f"{view.caller.user_id}\0{body}".encode(errors="replace")
    return hmac.new(key, subject, hashlib.sha256).hexdigest()[:32]

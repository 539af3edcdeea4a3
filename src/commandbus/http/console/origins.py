"""Where a form came from: only from a page of this very site."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from commandbus.http.console.cookies import is_https
from commandbus.http.peers import is_local
from commandbus.http.problems import Kind, Problem


def check_origin(request: Request, trusted_proxies: str) -> None:
    """Refuse a form that another site has sent, and say which header differs.

    A page of another site can change neither header. What has none of the two is no browser, so
    nobody's session can be used through it.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise _foreign(f"Sec-Fetch-Site is {site[:40]!r}, not 'same-origin'")
    origin = request.headers.get("origin")
    if origin is None:
        return
    hosts = {request.headers.get("host", "").lower()}
    if trusted_proxies:
        hosts |= {part.strip().lower() for part in _forwarded(request).split(",") if part.strip()}
    if urlsplit(origin.lower()).netloc not in hosts:
        raise _foreign(
            f"Origin is {origin[:200]!r}, and Host says {request.headers.get('host', '')[:200]!r}; "
            "a proxy in between must pass Host on, or be named in trusted_proxies and send "
            "X-Forwarded-Host"
        )


def _forwarded(request: Request) -> str:
    return request.headers.get("x-forwarded-host", "")


def _foreign(why: str) -> Problem:
    return Problem(Kind.PERMISSION_DENIED, f"the form did not come from a page of this site: {why}")


def check_secure(request: Request) -> None:
    """Refuse a sign-in that others on the network could read."""
    if is_https(request) or is_local(request.scope):
        return
    raise Problem(
        Kind.PERMISSION_DENIED,
        "a token is taken over HTTPS only, or on the machine of the service itself; if a proxy "
        "speaks HTTPS, name it in trusted_proxies and let it send X-Forwarded-Proto",
    )

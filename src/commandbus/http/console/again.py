"""A link from another site: the browser keeps the session's cookie back, so the page asks again.

The cookie is SameSite=Strict: no request that another site has caused carries it, not even the one
for a link in a chat. A page of this site may ask for the same address, and then it comes along.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse

from commandbus.http.console.cookies import is_https, path_of, theme_of
from commandbus.http.console.headers import PAGE_HEADERS
from commandbus.http.console.rendering import assets, environment

#: Says that this browser has just been told to ask again. Other sites cannot make it, and links of
#: theirs carry it, unlike the session.
MARK = "commandbus-again"
#: Seconds for which one round is enough.
MARK_SECONDS = 10


def asks_again(request: Request, root: str) -> HTMLResponse | None:
    """The page that asks for the same address from here; None if that would not help."""
    headers = request.headers
    is_link = (
        request.method == "GET"
        and headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )
    target = _target(request)
    if not is_link or MARK in request.cookies or not target.startswith(f"{root}/console/"):
        return None
    text = (
        environment()
        .get_template("again.html")
        .render(target=target, theme=theme_of(request),
                css=f"{root}/console/assets/{assets()['console.css'].hashed_name}")
    )  # fmt: skip
    answer = HTMLResponse(text, 200, PAGE_HEADERS | {"Refresh": f"0; url={target}"})
    answer.set_cookie(
        MARK, "1", max_age=MARK_SECONDS, path=path_of(root), secure=is_https(request),
        httponly=True, samesite="lax",
    )  # fmt: skip
    return answer


def _target(request: Request) -> str:
    """Path and query of this very request: nothing that could name another host."""
    query = request.scope["query_string"].decode("ascii", errors="replace")
    kept = quote(query, safe="%&=+-._~!*'(),:/?@$;[]")
    return quote(request.url.path) + (f"?{kept}" if kept else "")

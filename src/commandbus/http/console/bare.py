"""Pages for what goes wrong before a page of the console is reached, or around it."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from commandbus.http.console.cookies import theme_of
from commandbus.http.console.headers import PAGE_HEADERS, REGIONS_HEADER
from commandbus.http.console.rendering import assets, environment, render
from commandbus.http.context import info_of
from commandbus.http.platform import Platform
from commandbus.http.problems import Problem

#: Seconds after which a page without a database looks again.
LOOK_AGAIN = 5


def is_page(request: Request) -> bool:
    """Whether a browser shows the answer as a page."""
    headers = request.headers
    return "text/html" in headers.get("accept", "") and REGIONS_HEADER not in headers


def bare_page(request: Request, here: Platform, problem: Problem, request_id: str) -> Response:
    """The frame with a problem, for who is known; for others the problem alone. Neither asks the
    database for anything.
    """
    info = info_of(request.scope)
    if info is None or info.caller is None:
        return lone_page(request, here, problem, request_id)
    from commandbus.http.console.view import view_of  # noqa: PLC0415  (it needs the console)

    view = replace(view_of(request), live_seconds=None)
    values = {"title": problem.kind.title, "is_final": False, "problem": problem,
              "more": dict(problem.more)}  # fmt: skip
    text = render(view, "error.html", values)
    return HTMLResponse(text, problem.kind.status, PAGE_HEADERS | dict(problem.headers))


def lone_page(
    request: Request,
    here: Platform,
    problem: Problem,
    request_id: str,
    *,
    looks_again: bool = False,
) -> Response:
    """A problem without the frame. Only what was read is asked for again: after a form that would
    be a GET of an address that takes forms alone.
    """
    root = str(request.scope.get("root_path", "")).rstrip("/") + here.prefix
    looks_again = looks_again and request.method in {"GET", "HEAD"}
    text = (
        environment()
        .get_template("unavailable.html")
        .render(problem=problem, theme=theme_of(request), home=f"{root}/console/",
                css=f"{root}/console/assets/{assets()['console.css'].hashed_name}",
                here=here, looks_again=looks_again, is_form=request.method == "POST",
                request_id=request_id)
    )  # fmt: skip
    again = {"Refresh": str(LOOK_AGAIN)} if looks_again else {}
    return HTMLResponse(text, problem.kind.status, PAGE_HEADERS | again | dict(problem.headers))

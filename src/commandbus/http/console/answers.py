"""Answers: a page as a whole, its regions alone, or the frame with a problem in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from starlette.responses import HTMLResponse, JSONResponse, Response

from commandbus.access.model import Scope
from commandbus.http.console import cookies, formats
from commandbus.http.console.headers import PAGE_HEADERS, REGIONS_HEADER
from commandbus.http.console.rendering import render, render_regions
from commandbus.http.console.screen import Page
from commandbus.http.console.view import View
from commandbus.http.problems import Problem


def session_end(view: View) -> dict[str, str]:
    """When the session ends, as far as is known now: other tabs of its browser may keep it."""
    return {} if view.session is None else {"ends": formats.iso(view.session.ends_at)}


def regions_response(
    view: View,
    regions: dict[str, str],
    *,
    is_final: bool,
    at: datetime | None = None,
    status: int = 200,
    title: str = "",
) -> Response:
    """Regions alone, with the time of the service: the clock of a browser may be another one."""
    ends = session_end(view)
    body = {"regions": regions, "title": title, "final": is_final, **ends,
            "as_of": formats.iso(at or formats.now())}  # fmt: skip
    headers = PAGE_HEADERS | ({"X-Session-Ends": ends["ends"]} if ends else {})
    return JSONResponse(body, status, headers)


async def page_response(view: View, page: Page) -> Response:
    """A page as a whole, or its regions alone if the script asks for them."""
    values = {"title": page.title, "is_final": page.is_final, **page.values}
    if REGIONS_HEADER in view.request.headers:
        regions = render_regions(view, page.template, values)
        return regions_response(
            view, regions, is_final=page.is_final, status=page.status, title=page.title
        )
    counts = await view.console.counts_for(view)
    # Names of domains are for those who read.
    domains = await view.console.domains_for(view) if view.may(Scope.READ) else ()
    view = replace(view, counts=counts, domains=domains, notice=cookies.notice_of(view))
    response = HTMLResponse(render(view, page.template, values), page.status, PAGE_HEADERS)
    if view.notice:
        cookies.end_notice(response, view)
    if view.session is not None:
        response.headers["X-Session-Ends"] = formats.iso(view.session.ends_at)
    return response


async def error_page(view: View, problem: Problem) -> Response:
    """The frame with a problem in it."""
    values = {"problem": problem, "more": dict(problem.more)}
    page = Page("error.html", values, problem.kind.title, problem.kind.status)
    response = await page_response(replace(view, live_seconds=None), page)
    response.headers.update(dict(problem.headers))
    return response

"""The routes of the console: pages, their live streams, actions, and the files that they need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import lru_cache, partial
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from commandbus.errors import CommandBusError
from commandbus.http.auth.scopes import requires
from commandbus.http.console import cookies, sign_in
from commandbus.http.console.actions import add_action
from commandbus.http.console.answers import (
    error_page,
    page_response,
    regions_response,
    session_end,
)
from commandbus.http.console.calling import framed, loaded, view_in
from commandbus.http.console.console import Console
from commandbus.http.console.door import ConsoleDoor
from commandbus.http.console.headers import PAGE_HEADERS, REGIONS_HEADER
from commandbus.http.console.live import Look
from commandbus.http.console.registry import Registry
from commandbus.http.console.rendering import assets, environment, render_regions
from commandbus.http.console.screen import ActionRoute, Page, PageRoute, Screen, signature_of
from commandbus.http.console.view import ROOT, View, view_of
from commandbus.http.openapi import operation_of
from commandbus.http.platform import Platform, platform_of
from commandbus.http.problems import (
    Kind,
    Problem,
    problem_of,
    problem_of_http,
    problem_of_validation,
    unavailable,
)
from commandbus.http.routes.events import EventStream
from commandbus.http.routing import KEPT, Routes, add_routes, made_of


class ConsoleRoute(APIRoute):
    """A route whose errors are pages too: the frame stays, and the region says what is wrong."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, with errors made into pages."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except Problem as problem:
                found = problem
            except RequestValidationError as error:
                found = problem_of_validation(error)
            except HTTPException as error:
                found = problem_of_http(error)
            except CommandBusError as error:
                found = problem_of(error)
            return await error_page(view_of(request), found)

        return shown


def add_console(app: FastAPI, here: Platform, door: ConsoleDoor) -> Console:
    """Add the console to an app; its pages stand under /console."""
    app.state.commandbus_console = console = Console(here, door)
    add_routes(app, _routes(here.prefix, console.registry))
    return console


@lru_cache(KEPT)
def _routes(prefix: str, registry: Registry) -> Routes:
    router = APIRouter(
        prefix=f"{prefix}{ROOT}", route_class=ConsoleRoute, include_in_schema=False,
        generate_unique_id_function=operation_of,
    )  # fmt: skip
    for screen, route in registry.routes():
        if isinstance(route, PageRoute):
            _add_page(router, screen, route)
        else:
            add_action(router, screen, route)
    public = APIRouter(include_in_schema=False)
    public.add_api_route(ROOT, _to_overview, methods=["GET"])
    public.add_api_route(f"{ROOT}/assets/{{name}}", _asset, methods=["GET"])
    public.add_api_route("/", _to_overview, methods=["GET"])
    public.add_api_route("/docs", _show_reference, methods=["GET"])
    door = made_of(sign_in.router, prefix=f"{prefix}{ROOT}")
    return (*router.routes, *door, *made_of(public, prefix=prefix))


# -- pages


def _add_page(router: APIRouter, screen: Screen, route: PageRoute) -> None:
    needed = [requires(route.scope, *route.alternatives)]

    async def show(**given: Any) -> Response:
        view = framed(view_in(given), screen, route)
        if route.live_seconds is not None and view.request.headers.get(REGIONS_HEADER) == "poll":
            return await _glance(route, given, view)
        page = await loaded(route, given, view)
        return await page_response(view, page) if isinstance(page, Page) else cast(Response, page)

    _add(router, route.path, show, route, needed, "GET")
    if route.live_seconds is None:
        return

    async def follow(**given: Any) -> Response:
        view = framed(view_in(given), screen, route)
        return _stream(route, given, view)

    _add(router, f"/live{route.path}", follow, route, needed, "GET", live=True)


def _add(
    router: APIRouter,
    path: str,
    endpoint: Callable[..., Awaitable[Response]],
    route: PageRoute | ActionRoute,
    needed: list[Any],
    method: str,
    *,
    live: bool = False,
) -> None:
    cast(Any, endpoint).__signature__ = signature_of(route.handler)
    endpoint.__name__ = f"console.{route.name}" + (".live" if live else "")
    router.add_api_route(
        path, endpoint, methods=[method], dependencies=needed, response_model=None,
        name=endpoint.__name__,
    )  # fmt: skip


# -- live


def _watched(
    route: PageRoute, given: dict[str, Any], view: View
) -> tuple[Hashable, Callable[[], Awaitable[Look]]]:
    """What a view has in common for all who see the same, and how to look at it for them."""
    watched = view.shared(is_personal=route.is_personal)
    given = dict(given)

    async def look() -> Look:
        page = await loaded(route, given, watched)
        if not isinstance(page, Page):
            raise unavailable("there is nothing to follow here")
        values = {"title": page.title, "is_final": page.is_final, **page.values}
        return Look(render_regions(watched, page.template, values), page.is_final)

    who = view.caller.user_id if route.is_personal else None
    query = tuple(sorted(view.request.query_params.multi_items()))
    path = tuple(sorted((key, str(value)) for key, value in view.request.path_params.items()))
    return (route.name, path, query, view.visibility, who, view.here.root), look


async def _glance(route: PageRoute, given: dict[str, Any], view: View) -> Response:
    """The regions for a page without a stream, from what is looked at for all."""
    key, look = _watched(route, given, view)
    seen = await view.console.live.glance(key, look, seconds=route.live_seconds or 1.0)
    regions = {
        name: view.console.placeholders.filled(markup, view.csrf_tokens)
        for name, markup in seen.look.regions.items()
    }
    return regions_response(view, regions, is_final=seen.look.is_final, at=seen.at)


def _stream(route: PageRoute, given: dict[str, Any], view: View) -> Response:
    key, look = _watched(route, given, view)
    streams = view.console.streams
    events = view.console.live.follow(
        key,
        look,
        seconds=route.live_seconds or 1.0,
        longest=view.here.settings.max_stream_seconds,
        personalise=partial(view.console.placeholders.filled, tokens=view.csrf_tokens),
        is_closing=lambda: streams.is_closing,
        counts=partial(view.console.counts_for, view),
        extras=partial(session_end, view),
    )
    return EventStream(events, streams, headers={"X-Accel-Buffering": "no"})


# -- small things


async def _to_overview(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", "") and not request.url.path.endswith(ROOT):
        raise HTTPException(404)
    return RedirectResponse(platform_of(request).url(f"{ROOT}/"), 307)


async def _show_reference(request: Request) -> Response:
    """The reference of the API. Public, as the document that it is made of."""
    here = platform_of(request)
    console: Console = request.app.state.commandbus_console
    text = (
        environment()
        .get_template("docs.html")
        .render(
            title="commandbus",
            theme=cookies.theme_of(request),
            asset=partial(console.asset_url, here),
            reference=console.reference(request.app),
            home=here.url(f"{ROOT}/"),
            document=here.url("/openapi.json"),
            base=here.url("") or "http://127.0.0.1:8080",
        )
    )
    return HTMLResponse(text, 200, PAGE_HEADERS)


async def _asset(name: str) -> Response:
    found = next((each for each in assets().values() if each.hashed_name == name), None)
    if found is None:
        raise Problem(Kind.NOT_FOUND, "there is no such file; load the page again")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found.content, 200, headers, found.media_type)

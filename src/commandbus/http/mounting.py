"""The service in another app: mounted, or included as a router, before there is a bus.

The lifespan of a mounted app is never run, so it opens nothing: each request says which bus it is
for. The app of a bus is built with the first request for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from commandbus.bus import CommandBus
from commandbus.errors import CommandBusError
from commandbus.http.auth.gate import path_below
from commandbus.http.problems import unavailable

#: Which bus a request is for.
BusOfRequest = Callable[[Request], CommandBus]
#: In the state of a lifespan: why this process is not ready any more.
NOT_READY = "commandbus_not_ready"


class MountedApp:
    """Pure ASGI: the app of the bus that a request is for."""

    def __init__(self, bus_of: BusOfRequest, build: Callable[[CommandBus], FastAPI]) -> None:
        self._bus_of = bus_of
        self._build = build
        self._built: tuple[CommandBus, ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            # Nothing to open for a lifespan, and no routes for web sockets.
            raise RuntimeError(f"commandbus serves http, not {scope['type']}")
        try:
            app = self._app(Request(scope))
        except CommandBusError as error:
            await unavailable(str(error)).response(uuid4().hex)(scope, receive, send)
            return
        reason = scope.get("state", {}).get(NOT_READY)
        if reason and path_below(scope).endswith("/readyz"):
            await unavailable(str(reason)).response(uuid4().hex)(scope, receive, send)
            return
        await app(scope, receive, send)

    def _app(self, request: Request) -> ASGIApp:
        bus = self._bus_of(request)
        if self._built is None or self._built[0] is not bus:
            self._built = (bus, self._build(bus))
        return self._built[1]


class _BelowRouter:
    """Makes a route that takes all paths what a mount would be: the app knows its own root."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        below: str = scope["path_params"]["path"]
        root = scope["path"].removesuffix(below).rstrip("/")
        child: dict[str, Any] = {**scope, "root_path": root, "path_params": {}}
        await self._app(child, receive, send)


def router_of(app: ASGIApp) -> APIRouter:
    """A router of one route that takes all paths: `main.include_router(router, prefix="/bus")`."""
    router = APIRouter()
    # What is no function is called as an ASGI app.
    below: Any = _BelowRouter(app)
    router.add_route("/{path:path}", below, include_in_schema=False)
    return router

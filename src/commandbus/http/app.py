"""create_app: the service on a bus. It does not open or close the bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypedDict, Unpack, overload

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from commandbus import __version__
from commandbus.access.model import Caller
from commandbus.bus import CommandBus
from commandbus.errors import InvalidSettingError
from commandbus.extras import extra, is_installed
from commandbus.http import no_console
from commandbus.http.auth.authenticators import Authenticator, NoAuth
from commandbus.http.auth.gate import Door, GateMiddleware, Strangers
from commandbus.http.auth.scopes import (
    PUBLIC,
    refuse_routes_without_scope,
    requirements_of,
    routes_of,
)
from commandbus.http.auth.tokens import TokenAuth
from commandbus.http.bodies import BodyMiddleware
from commandbus.http.budgets import Budgets, Patience
from commandbus.http.context import ContextMiddleware
from commandbus.http.metrics import new_metrics
from commandbus.http.mounting import BusOfRequest, MountedApp, router_of
from commandbus.http.openapi import add_openapi, operation_of
from commandbus.http.peers import LocalPeersMiddleware
from commandbus.http.platform import Platform, root_of
from commandbus.http.problems import problem_of_http, problem_of_validation
from commandbus.http.protection import CallerMiddleware, CountMiddleware, FramingMiddleware
from commandbus.http.reading import CursorMiddleware, HeadMiddleware
from commandbus.http.routing import (
    API,
    add_routes,
    api_routes,
    governed_routes,
    guarded_metrics,
    health_routes,
    public_metrics,
)
from commandbus.http.settings import HttpSettings
from commandbus.http.waiting import LongPolls
from commandbus.shards.spanning import SpanningBus

#: Paths of the console that need no caller.
CONSOLE_PUBLIC = frozenset({"/", "/console", "/console/assets/{name}", "/console/sign-in", "/docs"})
DESCRIPTION = (
    "Commands, batches, troubleshooting, replies and the audit of a command bus. Every error is a "
    "problem (RFC 9457); `x-scope` names the scope that a route needs."
)


#: Finds who asks for a page of the console; None: nobody who may.
ConsoleAuth = Callable[[Request], Caller | Awaitable[Caller | None] | None]
#: Who may call: an authenticator, or what makes one for a bus, such as `TokenAuth.of`.
Auth = Authenticator | Callable[[CommandBus], Authenticator]


class AppOptions(TypedDict, total=False):
    """How the app of a bus is built; `create_app` explains each."""

    auth: Auth | None
    settings: HttpSettings | None
    prefix: str
    routers: tuple[APIRouter, ...]
    console: bool | None
    console_auth: ConsoleAuth | None


@overload
def create_app(bus: CommandBus, **options: Unpack[AppOptions]) -> FastAPI: ...


@overload
def create_app(bus: BusOfRequest, **options: Unpack[AppOptions]) -> MountedApp: ...


def create_app(
    bus: CommandBus | BusOfRequest, **options: Unpack[AppOptions]
) -> FastAPI | MountedApp:
    """The app of a bus, to serve by itself or to mount in another: `main.mount("/bus", app)`.

    `bus` may be a function of the request, such as `commandbus.fastapi.bus_of_request`: then it can
    be mounted before there is a bus. `auth=None` is for development: every process on this machine
    may do everything, nobody else anything; the settings must name a loopback address and no proxy.
    It may be a function of the bus, such as `TokenAuth.of`. `prefix` goes before every path.
    `routers` are added under /api/v1; each of their routes needs a scope too. Batch types that are
    declared later have no routes. `console` says whether there is the console, a web page under
    /console; None: if its extra is installed. `console_auth` finds the caller of a request to the
    console by the application's own sign-in; without it people sign in with a token.
    A bus over shards has no console; a page says so.
    The bus is not opened and not closed here. What the framework makes of our routes is shared by
    the apps of a process: what patches the framework does it before the first one.
    """
    _check(options)
    if not isinstance(bus, CommandBus):
        return MountedApp(bus, lambda found: _build(found, **options))
    return _build(bus, **options)


def create_router(bus: CommandBus | BusOfRequest, **options: Unpack[AppOptions]) -> APIRouter:
    """The same as a router: `main.include_router(create_router(…), prefix="/bus")`."""
    return router_of(create_app(bus, **options))


def _check(options: AppOptions) -> None:
    settings, prefix = options.get("settings") or HttpSettings(), options.get("prefix", "")
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise InvalidSettingError(f"prefix is {prefix!r}; write it like '/bus', or leave it empty")
    if isinstance(options.get("auth") or NoAuth(), NoAuth):
        _refuse_openness(settings)


def _build(
    bus: CommandBus,
    *,
    auth: Auth | None = None,
    settings: HttpSettings | None = None,
    prefix: str = "",
    routers: tuple[APIRouter, ...] = (),
    console: bool | None = None,
    console_auth: ConsoleAuth | None = None,
) -> FastAPI:
    settings = settings or HttpSettings()
    given: Any = auth or NoAuth()
    who: Authenticator = given if hasattr(given, "authenticate") else given(bus)
    if isinstance(who, NoAuth):
        _refuse_openness(settings)
    app = FastAPI(
        title="commandbus",
        version=__version__,
        summary="A command bus on PostgreSQL and PGMQ",
        description=DESCRIPTION,
        openapi_url=f"{prefix}/openapi.json",
        docs_url=None,  # its page would need scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_of,
    )
    budgets, metrics = Budgets(settings), new_metrics(bus.governance.types)
    polls = LongPolls(budgets.waiting, settings)
    here = Platform(bus, settings, who, budgets, polls, metrics, prefix)
    app.state.commandbus = here
    _add_routes(app, here, routers)
    is_sharded = isinstance(bus, SpanningBus)
    has_console = (is_installed("console") if console is None else console) and not is_sharded
    if is_sharded and console is not False:
        app.include_router(no_console.router, prefix=prefix)
    strangers = Strangers(settings)
    door = _add_console(app, here, strangers, console_auth) if has_console else None
    public = (
        PUBLIC
        | (CONSOLE_PUBLIC if has_console else no_console.PATHS)
        | ({"/metrics"} if settings.metrics_public else frozenset())
    )
    required = requirements_of(app)
    refuse_routes_without_scope(required, prefix, public)
    add_openapi(app, required)
    _add_layers(app, here, public, strangers, door)
    here.revocations.subscribe(polls.check_now)
    if isinstance(who, TokenAuth):
        here.revocations.subscribe(who.forget)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(HTTPException, _refuse)
    return app


def _add_routes(app: FastAPI, here: Platform, routers: tuple[APIRouter, ...]) -> None:
    prefix = here.prefix
    add_routes(app, api_routes(prefix))
    for router in routers:
        app.include_router(router, prefix=f"{prefix}{API}")
    add_routes(app, health_routes(prefix))
    metrics = public_metrics if here.settings.metrics_public else guarded_metrics
    add_routes(app, metrics(prefix))
    if here.bus.governance.is_available:
        add_routes(app, governed_routes(prefix, here.bus.governance.types.all()))


def _add_console(
    app: FastAPI, here: Platform, strangers: Strangers, hook: ConsoleAuth | None
) -> Door:
    with extra("console", "the console"):
        from commandbus.http.console.door import ConsoleDoor  # noqa: PLC0415  (an extra)
        from commandbus.http.console.routes import add_console  # noqa: PLC0415
    door = ConsoleDoor(here, strangers, hook)
    console = add_console(app, here, door)
    here.revocations.subscribe(console.streams.check_now)
    return door


def _refuse_openness(settings: HttpSettings) -> None:
    """Without authentication nobody else may come near."""
    if not settings.is_loopback:
        raise InvalidSettingError(
            f"without authentication the service stays on this machine, not on {settings.host}; "
            "use --auth token, or --host 127.0.0.1"
        )
    if settings.trusted_proxies:
        raise InvalidSettingError(
            "without authentication the service stays on this machine, and trusted_proxies would "
            "bring others; use --auth token, or leave it empty"
        )


def _add_layers(
    app: FastAPI, here: Platform, public: frozenset[str], strangers: Strangers, door: Door | None
) -> None:
    """The innermost first: a request passes them from the last line to the first."""
    settings, prefix = here.settings, here.prefix
    guarded = (
        f"{prefix}/api/",
        *(() if settings.metrics_public else (f"{prefix}/metrics",)),
    )
    app.add_middleware(CursorMiddleware, key=partial(here.bus.tokens.key_for, "cursor"))
    app.add_middleware(
        BodyMiddleware, settings=settings, budgets=here.budgets,
        forms=f"{prefix}/console/",
    )  # fmt: skip
    app.add_middleware(CountMiddleware, governance=here.bus.governance, counted=f"{prefix}{API}/")
    app.add_middleware(
        CallerMiddleware, budgets=here.budgets, patience=Patience(),
        send_timeout_seconds=settings.send_timeout_seconds, apart=f"{prefix}/console/live/",
    )  # fmt: skip
    app.add_middleware(
        GateMiddleware,
        auth=here.auth,
        strangers=strangers,
        guarded=guarded,
        public=frozenset(f"{prefix}{path}" for path in public),
        free=frozenset(f"{prefix}{path}" for path in ("/livez", "/readyz", "/startupz")),
        files=(f"{prefix}/console/assets/",),
        door=door,
    )
    if isinstance(here.auth, NoAuth):
        app.add_middleware(LocalPeersMiddleware)
    app.add_middleware(FramingMiddleware, settings=settings)
    templates = {
        route.endpoint: route.path for route in routes_of(app) if hasattr(route, "endpoint")
    }
    app.add_middleware(
        ContextMiddleware, metrics=here.metrics, templates=templates,
        page_of=None if door is None else app.state.commandbus_console.page_of,
    )  # fmt: skip
    app.add_middleware(HeadMiddleware)


# -- what the framework refuses; the outermost layer makes the response


async def _refuse_form(request: Request, error: Any) -> NoReturn:  # noqa: ARG001
    raise problem_of_validation(error)


async def _refuse(request: Request, error: Any) -> NoReturn:
    raise problem_of_http(error, root_of(request))

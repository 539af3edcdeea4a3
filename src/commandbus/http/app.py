"""create_app: the service on a bus. It does not open or close the bus."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from commandbus import __version__
from commandbus.bus import CommandBus
from commandbus.errors import InvalidSettingError
from commandbus.http.auth.authenticators import Authenticator, NoAuth
from commandbus.http.auth.gate import Attempts, GateMiddleware
from commandbus.http.auth.scopes import PUBLIC, refuse_routes_without_scope, requirements_of
from commandbus.http.context import ContextMiddleware, info_of
from commandbus.http.metrics import Figures, NoMetrics, Refresher, new_metrics
from commandbus.http.openapi import add_openapi
from commandbus.http.platform import Platform
from commandbus.http.problems import Problem, problem_of_http, problem_of_validation
from commandbus.http.protection import BodyMiddleware, ConcurrencyMiddleware, FramingMiddleware
from commandbus.http.ratelimits import RequestCounter, governance_of
from commandbus.http.routes import API_ROUTERS, ROOT_ROUTERS
from commandbus.http.routes.governed import governed_routers
from commandbus.http.routes.health import guarded_metrics, public_metrics
from commandbus.http.settings import HttpSettings
from commandbus.http.waiting import LongPolls

API = "/api/v1"
DESCRIPTION = (
    "Commands, batches, troubleshooting, replies and the audit of a command bus. Every error is a "
    "problem (RFC 9457); `x-scope` names the scope that a route needs."
)


def create_app(
    bus: CommandBus,
    *,
    auth: Authenticator | None = None,
    settings: HttpSettings | None = None,
    prefix: str = "",
    routers: tuple[APIRouter, ...] = (),
) -> FastAPI:
    """The app of a bus, to serve by itself or to mount in another: `main.mount("/bus", app)`.

    `auth=None` is for development: everybody may do everything, and the settings must name a
    loopback address. `prefix` goes before every path. `routers` are further ones under /api/v1;
    each route of theirs needs a scope too. Batch types that are declared later have no routes. The
    bus is not opened and not closed here.
    """
    settings = settings or HttpSettings()
    _check_prefix(prefix)
    if isinstance(auth, NoAuth | None) and not settings.is_loopback:
        raise InvalidSettingError(
            f"without authentication the service stays on this machine, not on {settings.host}; "
            "use --auth token, or --host 127.0.0.1"
        )
    metrics = new_metrics()
    app = FastAPI(
        title="commandbus",
        version=__version__,
        summary="A command bus on PostgreSQL and PGMQ",
        description=DESCRIPTION,
        openapi_url=f"{prefix}/openapi.json",
        docs_url=None,  # its page would need scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: str(route.name),
    )
    app.state.commandbus = _platform(bus, settings, metrics, prefix)
    _add_routes(app, settings, prefix, routers)
    _add_governed(app, bus, prefix)
    public = PUBLIC | ({"/metrics"} if settings.metrics_public else frozenset())
    refuse_routes_without_scope(app, prefix, public)
    add_openapi(app, requirements_of(app))
    _add_layers(app, bus, auth or NoAuth(), settings, metrics, prefix)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Problem, _problem)
    return app


def _check_prefix(prefix: str) -> None:
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise InvalidSettingError(f"prefix is {prefix!r}; write it like '/bus', or leave it empty")


def _add_routes(
    app: FastAPI, settings: HttpSettings, prefix: str, routers: tuple[APIRouter, ...]
) -> None:
    for router in (*API_ROUTERS, *routers):
        app.include_router(router, prefix=f"{prefix}{API}")
    metrics = public_metrics if settings.metrics_public else guarded_metrics
    for router in (*ROOT_ROUTERS, metrics):
        app.include_router(router, prefix=prefix)


def _add_governed(app: FastAPI, bus: CommandBus, prefix: str) -> None:
    governance = governance_of(bus)
    if governance is None:
        return
    own = [str(each.path) for router in API_ROUTERS for each in iter_route_contexts(router.routes)]
    for router in governed_routers(governance.types.all(), [f"{API}{path}" for path in own]):
        app.include_router(router, prefix=prefix)


def _add_layers(
    app: FastAPI,
    bus: CommandBus,
    auth: Authenticator,
    settings: HttpSettings,
    metrics: NoMetrics,
    prefix: str,
) -> None:
    """The innermost first: a request passes them from the last line to the first."""
    guarded = (f"{prefix}/api/",) if settings.metrics_public else (
        f"{prefix}/api/", f"{prefix}/metrics",
    )  # fmt: skip
    app.add_middleware(BodyMiddleware, settings=settings)
    app.add_middleware(
        GateMiddleware,
        auth=auth,
        attempts=Attempts(settings.max_auth_failures),
        counter=RequestCounter(bus),
        guarded=guarded,
        counted=f"{prefix}{API}/",
    )
    app.add_middleware(
        ConcurrencyMiddleware,
        limit=settings.max_concurrency,
        exempt=frozenset(f"{prefix}{path}" for path in ("/livez", "/readyz", "/startupz")),
    )
    app.add_middleware(FramingMiddleware, settings=settings)
    templates: dict[Any, str] = {
        context.endpoint: context.path
        for context in iter_route_contexts(app.routes)
        if isinstance(context.path, str)
    }
    app.add_middleware(ContextMiddleware, metrics=metrics, templates=templates)


def _platform(bus: CommandBus, settings: HttpSettings, metrics: NoMetrics, prefix: str) -> Platform:
    governance = governance_of(bus)

    def declare() -> None:
        if governance is not None:
            metrics.declare([each.name for each in governance.types.all()])

    declare()

    async def read(since: datetime) -> Figures:
        declare()  # an app may declare types after this one was made
        return Figures(
            domains=await bus.upkeep.figures.domains(),
            governed=await bus.upkeep.figures.governed(since),
            pool=bus.upkeep.figures.pool(),
            at=datetime.now(UTC),
        )

    refresher = Refresher(metrics, read, cache_seconds=settings.metrics_cache_seconds)
    polls = LongPolls(settings.max_long_polls)
    return Platform(bus, settings, polls, metrics, refresher, prefix)


# -- what the framework refuses, in our form


def _request_id(request: Request) -> str | None:
    info = info_of(request.scope)
    return None if info is None else info.request_id


async def _invalid(request: Request, error: Any) -> Response:
    return problem_of_validation(error, request).response(_request_id(request))


async def _refused(request: Request, error: Any) -> Response:
    return problem_of_http(error).response(_request_id(request))


async def _problem(request: Request, error: Any) -> Response:
    response: Response = error.response(_request_id(request))
    return response

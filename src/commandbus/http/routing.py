"""The routes that every service has: made once in a process, and shared by all of its apps.

What the framework makes of a route (its parameters, models and validators) costs a millisecond,
and there are hundreds of routes. None of ours knows a bus: each finds its app in the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from commandbus.governance.types import BatchType
from commandbus.http.auth.scopes import routes_of
from commandbus.http.openapi import operation_of
from commandbus.http.routes import API_ROUTERS, health
from commandbus.http.routes.governed import FIXED_ROUTERS, governed_routers

API = "/api/v1"
#: Prefixes whose routes are kept: a process has one, tests have several.
KEPT = 8

#: Routes with their whole paths, to be added to those of an app.
Routes = tuple[Any, ...]


def made_of(*routers: APIRouter, prefix: str, dependencies: tuple[Any, ...] = ()) -> Routes:
    """The routes of routers as an app that includes them would have them."""
    parent = APIRouter(generate_unique_id_function=operation_of)
    for router in routers:
        parent.include_router(router, prefix=prefix, dependencies=dependencies)
    return tuple(parent.routes)


def add_routes(app: FastAPI, routes: Routes) -> None:
    """Add routes that other apps may have too; an app's own list of them stays its own."""
    app.router.routes.extend(routes)


@lru_cache(KEPT)
def api_routes(prefix: str) -> Routes:
    """Those under /api/v1 but the ones of governed batches."""
    return made_of(*API_ROUTERS, prefix=f"{prefix}{API}")


@lru_cache(KEPT)
def health_routes(prefix: str) -> Routes:
    """Those that a platform asks."""
    return made_of(health.router, prefix=prefix)


@lru_cache(KEPT)
def public_metrics(prefix: str) -> Routes:
    """The metrics for everyone."""
    return made_of(health.metrics_router, prefix=prefix)


@lru_cache(KEPT)
def guarded_metrics(prefix: str) -> Routes:
    """The metrics for those who read all domains."""
    guard = (Depends(health.reads_all_domains),)
    return made_of(health.metrics_router, prefix=prefix, dependencies=guard)


def governed_routes(prefix: str, types: Sequence[BatchType]) -> Routes:
    """Those of governed batches of these types."""
    own = _of_types(prefix, types) if types else _without_types(prefix)
    return own + _of_all_types(prefix)


@lru_cache(KEPT)
def _of_all_types(prefix: str) -> Routes:
    return made_of(*FIXED_ROUTERS, prefix=prefix)


@lru_cache(KEPT)
def _without_types(prefix: str) -> Routes:
    return _of_types(prefix, ())


def _of_types(prefix: str, types: Sequence[BatchType]) -> Routes:
    taken = [f"{API}{each.path}" for router in API_ROUTERS for each in routes_of(router)]
    return tuple(each for made in governed_routers(types, taken, prefix) for each in made.routes)

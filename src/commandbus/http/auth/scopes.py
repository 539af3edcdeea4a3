"""Which scope each route needs: named on the route, and checked for every route when the app is
built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import fastapi.routing
from fastapi import Depends, FastAPI, Query
from starlette.requests import Request

from commandbus.access.callers import demand, may_create_domain
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import viewer_of
from commandbus.errors import InvalidSettingError, PermissionDeniedError
from commandbus.http.context import info_of
from commandbus.http.platform import Platform
from commandbus.http.problems import not_found, unauthenticated
from commandbus.http.schemas.base import DomainQuery
from commandbus.models import Viewer

#: Paths that need no caller. Nothing else may do without a scope.
PUBLIC = frozenset({"/livez", "/readyz", "/startupz", "/openapi.json"})


class Requires:
    """The dependency that gives a route its Caller, which the gate has authenticated."""

    def __init__(self, scope: Scope, *alternatives: Scope) -> None:
        self.scope = scope
        #: Each of these is enough too; the service then decides by what is asked for.
        self.alternatives = alternatives

    async def __call__(self, request: Request) -> Caller:
        """The caller, if it has the scope and reaches the domain that the path names."""
        caller = caller_of(request)
        if not any(caller.may(scope) for scope in (self.scope, *self.alternatives)):
            raise PermissionDeniedError(self.scope.value)
        domain = request.path_params.get("domain")
        if domain is not None:
            refuse_domain(caller, domain)
        return caller


def requires(scope: Scope, *alternatives: Scope) -> Any:
    """Name the scope of a route: in the annotation of its caller, or among its dependencies."""
    return Depends(Requires(scope, *alternatives))


#: `caller: Reader` in the signature of a route: the caller, and the scope that the route needs.
Reader = Annotated[Caller, requires(Scope.READ)]
Sender = Annotated[Caller, requires(Scope.SEND)]
Operator = Annotated[Caller, requires(Scope.OPERATE)]
Approver = Annotated[Caller, requires(Scope.APPROVE)]
Admin = Annotated[Caller, requires(Scope.ADMIN)]


def caller_of(request: Request) -> Caller:
    """The caller that the gate has authenticated."""
    info = info_of(request.scope)
    if info is None or info.caller is None:
        raise unauthenticated()
    return info.caller


async def _viewer_of(request: Request) -> Viewer:
    return viewer_of(caller_of(request))


#: `viewer: Sight` in the signature of a route that reads: what of others the caller may see.
Sight = Annotated[Viewer, Depends(_viewer_of)]


async def _may_show_payload(
    request: Request,
    payload: Annotated[
        bool, Query(description="Show payloads too, secrets masked; needs the scope read-payload.")
    ] = False,
) -> bool:
    if payload:
        demand(caller_of(request), Scope.READ_PAYLOAD, "the payload")
    return payload


#: `payload: ShowPayload` in the signature of a route, after its caller.
ShowPayload = Annotated[bool, Depends(_may_show_payload)]


def refuse_domain(caller: Caller, domain: str) -> None:
    """Not found, if the domain of a thing is not one that the caller reaches."""
    if not caller.reaches(domain):
        raise not_found()


async def refuse_new_domain(here: Platform, caller: Caller, domain: str) -> None:
    """Not found, if the domain does not exist and the caller may not create it."""
    if may_create_domain(caller, domain) or await here.bus.upkeep.figures.knows_domain(domain):
        return
    raise not_found(
        "no such domain; it exists once a worker has served it, or a caller with the scope admin "
        "has used it"
    )


def reached_domain(caller: Caller, domain: str | None) -> str | None:
    """The domain to search in; a caller who is limited to several domains must name one."""
    if domain is not None:
        refuse_domain(caller, domain)
        return domain
    if caller.domains is None:
        return None
    if len(caller.domains) == 1:
        return next(iter(caller.domains))
    names = ", ".join(sorted(caller.domains))
    raise InvalidSettingError(f"say which domain to search: add ?domain= with one of {names}")


async def _reached_domain(request: Request, domain: DomainQuery = None) -> str | None:
    return reached_domain(caller_of(request), domain)


#: `domain: ReachedDomain` in the signature of a search: the domain to search in; None: all.
ReachedDomain = Annotated[str | None, Depends(_reached_domain)]


# -- the list of routes


def routes_of(router: Any) -> list[Any]:
    """All routes of an app or a router with their whole paths, in any version of the framework."""
    # Older versions copy the routes of a router that is included; newer ones keep the router, and
    # tell by this function what is in it.
    inside = getattr(fastapi.routing, "iter_route_contexts", iter)
    found = list(inside(router.routes))
    for route in found:
        if not isinstance(getattr(route, "path", None), str):
            # It might be a router whose routes would be public by mistake.
            raise InvalidSettingError(
                f"{type(route).__name__} is no route that commandbus can look into; use an older "
                "version of FastAPI, and please report this"
            )
    return found


#: What each route requires, by path and method; None: it is public.
Requirements = dict[tuple[str, str], Requires | None]


def requirements_of(app: FastAPI) -> Requirements:
    """What each route requires."""
    found: Requirements = {}
    for route in routes_of(app):
        dependant = getattr(route, "dependant", None)
        required = list(_required_below(dependant)) if dependant is not None else []
        if len(required) > 1:
            raise InvalidSettingError(f"{route.path} names several scopes; it needs exactly one")
        path = getattr(route, "path_format", None) or route.path  # as the document writes it
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            found[path, method] = required[0] if required else None
    return found


def _required_below(dependant: Any) -> Iterator[Requires]:
    for child in dependant.dependencies:
        if isinstance(child.call, Requires):
            yield child.call
        yield from _required_below(child)


def refuse_routes_without_scope(
    requirements: Requirements, prefix: str, public: frozenset[str]
) -> None:
    """Raise an error for a route that would be public by mistake."""
    open_paths = {prefix + path for path in public}
    missing = sorted(
        f"{method} {path}"
        for (path, method), required in requirements.items()
        if required is None and path not in open_paths
    )
    if missing:
        raise InvalidSettingError(
            f"routes without a scope: {', '.join(missing)}; add "
            "`caller: Annotated[Caller, requires(Scope.…)]`"
        )

"""The routes of governed batches, made from the batch types that are declared when the app is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from fastapi import APIRouter, Request

from commandbus.access.model import Scope
from commandbus.errors import InvalidSettingError
from commandbus.governance.types import BatchType
from commandbus.http.auth.scopes import Approver, Reader
from commandbus.http.platform import Here, path_of
from commandbus.http.routes import rate_limits
from commandbus.http.routes.events import add_events
from commandbus.http.routes.submissions import add_any_submission, add_submission
from commandbus.http.routes.tickets import BATCHES, Group, add_ticket_routes, ticket_view
from commandbus.http.schemas.base import PageOf100
from commandbus.http.schemas.governed import (
    BatchTypeView,
    ChildStatusQuery,
    ChildView,
    DecisionForm,
    TicketView,
)
from commandbus.http.schemas.submissions import item_schema
from commandbus.http.schemas.views import ListView, PageView

API = "/api/v1/"
TAG = "governed batches"


def governed_routers(types: Sequence[BatchType], taken: Iterable[str]) -> list[APIRouter]:
    """All routes of governed batches. `taken`: paths that the service has already."""
    router = APIRouter(tags=[TAG])
    permissions = frozenset(each.permission for each in types) | {Scope.SEND}
    everything = Group(BATCHES, None, permissions)
    _add_batch_types(router, types)
    add_any_submission(router, BATCHES, types, everything)
    add_ticket_routes(router, everything, "batch")
    _add_details(router, everything)
    add_events(router, everything)
    reserved = {_first(path) for path in (*taken, BATCHES, "/api/v1/batch-types", "/api/v1/admin")}
    return [router, _own_paths(types, reserved), rate_limits.router]


# -- paths of their own


def _own_paths(types: Sequence[BatchType], reserved: set[str]) -> APIRouter:
    """Submission at each path; the rest at each path that is not below another one."""
    router = APIRouter(tags=[TAG])
    paths = list(dict.fromkeys(each.path for each in types if each.path is not None))
    groups = {base: _group(types, base) for base in paths if _base_of(base, paths) == base}
    # All submissions first: "…/batch/power" is no batch_id.
    for path in paths:
        sharing = [each for each in types if each.path == path]
        _check_path(path, sharing, reserved)
        add_submission(
            router, path, sharing, groups[_base_of(path, paths)], f"submit_{_name(path)}"
        )
    for base, group in groups.items():
        add_ticket_routes(router, group, _name(base))
    return router


def _check_path(path: str, sharing: Sequence[BatchType], reserved: set[str]) -> None:
    names = " and ".join(each.name for each in sharing)
    if not path.startswith(API):
        raise InvalidSettingError(f"path of {names} is {path!r}; it must begin with {API}")
    if _first(path) in reserved:
        raise InvalidSettingError(
            f"path of {names} is {path!r}, where the service has routes of its own; choose another "
            f"word after {API}"
        )
    scopes = sorted({each.permission.value for each in sharing})
    if len(scopes) > 1:
        raise InvalidSettingError(
            f"{names} share the path {path} and need different scopes ({', '.join(scopes)}); a "
            "route has one, so give them paths of their own"
        )


def _base_of(path: str, paths: Sequence[str]) -> str:
    above = [each for each in paths if path == each or path.startswith(f"{each}/")]
    return min(above, key=len)


def _group(types: Sequence[BatchType], base: str) -> Group:
    below = [each for each in types if each.path and f"{each.path}/".startswith(f"{base}/")]
    return Group(
        base,
        frozenset(each.name for each in below),
        frozenset(each.permission for each in below),
    )


def _first(path: str) -> str:
    return path.removeprefix(API).partition("/")[0]


def _name(path: str) -> str:
    """For the operationId: different for different paths."""
    parts = path.removeprefix(API).replace("_", "__").replace("-", "_h_").replace(".", "_d_")
    return parts.replace("/", "_")


# -- what only the general path has


def _add_batch_types(router: APIRouter, types: Sequence[BatchType]) -> None:
    schemas = {each.name: item_schema(each) for each in types}

    @router.get("/api/v1/batch-types")
    async def list_batch_types(request: Request, caller: Reader) -> ListView[BatchTypeView]:
        """List the batch types of the domains that the caller reaches."""
        items = [
            BatchTypeView.of(
                each,
                submit_url=path_of(request, each.path or BATCHES),
                item_schema=schemas[each.name],
                example=None if each.example is None else dict(each.example),
            )
            for each in types
            if caller.reaches(each.domain)
        ]
        return ListView[BatchTypeView](items=items)


def _add_details(router: APIRouter, group: Group) -> None:
    @router.get(f"{BATCHES}/{{batch_id}}/children")
    async def list_children(
        batch_id: UUID,
        here: Here,
        caller: Reader,
        paging: PageOf100,
        status: ChildStatusQuery = None,
    ) -> PageView[ChildView]:
        """List the children of a batch, in the order of the request."""
        page = await here.bus.governance.page_children(caller, batch_id, status=status, **paging)
        return PageView[ChildView].of(page)

    @router.post(f"{BATCHES}/{{batch_id}}/decision")
    async def decide_batch(
        batch_id: UUID, form: DecisionForm, request: Request, here: Here, caller: Approver
    ) -> TicketView:
        """Approve or reject a batch that waits for it.

        Nobody decides about their own batch. The same decision again changes nothing; the opposite
        one is 409.
        """
        ticket = await here.bus.governance.decide(
            caller, batch_id, approve=form.decision == "approve", reason=form.reason
        )
        return ticket_view(request, ticket, group)

"""The routes of governed batches, made from the batch types that are declared when the app is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from commandbus.access.model import Caller, Scope
from commandbus.errors import InvalidSettingError
from commandbus.governance.model import Undecided
from commandbus.governance.types import BatchType
from commandbus.http.auth.scopes import Approver, Reader, requires
from commandbus.http.openapi import operation_of, problem_response
from commandbus.http.platform import Here, Platform
from commandbus.http.problems import Kind
from commandbus.http.routes import events, rate_limits
from commandbus.http.routes.submissions import add_submission
from commandbus.http.routes.tickets import ALL, BATCHES, Group, add_ticket_routes
from commandbus.http.schemas.base import Limit, PageOf50, PageOf100
from commandbus.http.schemas.governed import (
    BatchTypeView,
    ChildStatusQuery,
    ChildView,
    ConsiderationView,
    DecisionForm,
    EditDecisionForm,
    ItemChangeView,
    RejectedView,
    ReviewView,
    TicketView,
    UndecidedView,
)
from commandbus.http.schemas.submissions import (
    AnySubmission,
    OperationSubmission,
    Submission,
    item_schema,
)
from commandbus.http.schemas.views import ListView, PageView
from commandbus.http.strict import StrictRoute

API = "/api/v1/"
TAG = "governed batches"
#: What only the general path has.
details = APIRouter(prefix=BATCHES, tags=[TAG], route_class=StrictRoute)
UNDECIDED = "/api/v1/undecided"
undecided = APIRouter(prefix=UNDECIDED, tags=[TAG], route_class=StrictRoute)

ChildNumber = Annotated[
    int, Path(ge=1, le=2_147_483_647, description="Counts from 1, in the order of the request.")
]
#: Those who decide; and those who may see payloads, of what is decided.
_REVIEWER = requires(Scope.APPROVE, Scope.READ_PAYLOAD)


def governed_routers(
    types: Sequence[BatchType], taken: Iterable[str], prefix: str = ""
) -> list[APIRouter]:
    """The routes that depend on the types. `taken` are paths that the service already has."""
    router = _router(prefix)
    others = {each.permission for each in types} - {Scope.SUBMIT}
    _add_batch_types(router, types)
    add_submission(
        router,
        ALL,
        BATCHES,
        types,
        form=AnySubmission,
        caller=requires(Scope.SUBMIT, *sorted(others)),
        name="submit_batch",
        text="Submit a batch of any type. The scope is that of its type.",
    )
    add_ticket_routes(router, ALL, "batch", {Scope.SUBMIT, *others})
    own = (BATCHES, UNDECIDED, "/api/v1/batch-types", "/api/v1/admin")
    reserved = {_first(path) for path in (*taken, *own)}
    return [router, _own_paths(types, reserved, prefix)]


def _router(prefix: str) -> APIRouter:
    # With the whole prefix: what is included elsewhere is made twice.
    return APIRouter(
        prefix=prefix, tags=[TAG], route_class=StrictRoute,
        generate_unique_id_function=operation_of,
    )  # fmt: skip


# -- paths of their own


def _own_paths(types: Sequence[BatchType], reserved: set[str], prefix: str) -> APIRouter:
    """Submission at each path; list, status, retry, cancel at those that are not below another."""
    router = _router(prefix)
    paths = dict.fromkeys(each.path for each in types if each.path is not None)
    base_of = {
        path: min((each for each in paths if f"{path}/".startswith(f"{each}/")), key=len)
        for path in paths
    }
    below = {
        base: [each for each in types if each.path and base_of[each.path] == base]
        for base in base_of.values()
    }
    groups = {base: Group(base, frozenset(each.name for each in below[base])) for base in below}
    # All submissions first: "…/batch/power" is no batch_id.
    for path in paths:
        sharing = [each for each in types if each.path == path]
        _check_path(path, sharing, reserved)
        add_submission(
            router,
            groups[base_of[path]],
            path,
            sharing,
            form=Submission if sharing[0].operation is None else OperationSubmission,
            caller=requires(sharing[0].permission),
            name=f"submit_{_name(path)}",
            text="\n\n".join(
                dict.fromkeys(each.description for each in sharing if each.description)
            ),
        )
    for base, group in groups.items():
        add_ticket_routes(router, group, _name(base), {each.permission for each in below[base]})
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
    async def list_batch_types(here: Here, caller: Reader) -> ListView[BatchTypeView]:
        """List the batch types of the domains that the caller reaches."""
        items = [
            BatchTypeView.of(
                each,
                submit_url=here.url(each.path or BATCHES),
                item_schema=schemas[each.name],
                example=None if each.example is None else dict(each.example),
            )
            for each in types
            if caller.reaches(each.domain)
        ]
        return ListView[BatchTypeView](items=items)


@details.get("/{batch_id}/children")
async def list_children(
    batch_id: UUID, here: Here, caller: Reader, paging: PageOf100, status: ChildStatusQuery = None
) -> PageView[ChildView]:
    """List the children of a batch, in the order of the request."""
    page = await here.bus.governance.page_children(caller, batch_id, status=status, **paging)
    return PageView[ChildView].of(page)


@details.post("/{batch_id}/decision")
async def decide_batch(
    batch_id: UUID, form: DecisionForm, here: Here, caller: Approver
) -> TicketView:
    """Approve or reject a batch that waits for it.

    Nobody decides about their own batch. The same decision again changes nothing; the opposite
    one is 409.
    """
    ticket = await here.bus.governance.decide(
        caller, batch_id,
        approve=form.decision == "approve", reason=form.reason, digest=form.digest,
    )  # fmt: skip
    return ALL.view(here, ticket, TicketView)


@details.get("/{batch_id}/review")
async def review_batch(
    batch_id: UUID, here: Here, paging: PageOf100, caller: Caller = _REVIEWER
) -> ReviewView:
    """Show what a decision is about: the payloads of all children, secrets masked, and edits.

    With the scope `approve`: what waits for a decision. Everything else needs `read-payload`.
    """
    found = await here.bus.governance.review(caller, batch_id, **paging)
    return ALL.view(
        here, found.ticket, ReviewView, children=found.children, next_cursor=found.next_cursor
    )


@details.get("/{batch_id}/consideration")
async def consider_batch(batch_id: UUID, here: Here, caller: Approver) -> ConsiderationView:
    """Show what was decided before, who has looked, and whether you can decide."""
    found = await here.bus.governance.consider(caller, batch_id)
    rejected = found.rejected
    return ConsiderationView.of(
        found,
        ticket=ALL.view(here, found.ticket, TicketView),
        earlier=[ALL.view(here, each, TicketView) for each in found.earlier],
        rejected=rejected
        and RejectedView.of(rejected, ticket=ALL.view(here, rejected.ticket, TicketView)),
    )


@details.get("/{batch_id}/preview", responses={409: problem_response(Kind.CONFLICT)})
async def preview_batch(
    batch_id: UUID,
    here: Here,
    caller: Approver,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Items after this one.")] = 0,
    limit: Limit = 100,
) -> ListView[ItemChangeView]:
    """Show what each item would change, if its batch type can tell; secrets masked."""
    found = await here.bus.governance.preview(caller, batch_id, after=after, limit=limit)
    return ListView[ItemChangeView](items=[ItemChangeView.of(each) for each in found])


@details.post("/{batch_id}/children/{sequence_no}/decision")
async def decide_edit(
    batch_id: UUID, sequence_no: ChildNumber, form: EditDecisionForm, here: Here, caller: Approver
) -> TicketView:
    """Approve or reject the edit of a child.

    Approved, the child is sent again with exactly that payload. Nobody decides about their own
    edit, nor about one in their own batch.
    """
    ticket = await here.bus.governance.decide_edit(
        caller, batch_id, sequence_no,
        approve=form.decision == "approve", reason=form.reason, digest=form.digest,
    )  # fmt: skip
    return ALL.view(here, ticket, TicketView)


@undecided.get("")
async def list_undecided(
    here: Here, caller: Approver, paging: PageOf50, newest_first: bool = False
) -> PageView[UndecidedView]:
    """List what waits for a decision, batches and edits together, oldest first."""
    page = await here.bus.governance.page_undecided(caller, newest_first=newest_first, **paging)
    items = [UndecidedView.of(each, links=_links_of(here, each)) for each in page.items]
    return PageView[UndecidedView].of(page, items=items)


def _links_of(here: Platform, waiting: Undecided) -> dict[str, str]:
    batch = here.url(f"{BATCHES}/{waiting.ticket_id}")
    place = batch if waiting.sequence_no is None else f"{batch}/children/{waiting.sequence_no}"
    return {"self": batch, "review": f"{batch}/review", "decision": f"{place}/decision"}


#: The routes of governed batches that are the same whatever types there are.
FIXED_ROUTERS = (details, undecided, events.router, rate_limits.router)

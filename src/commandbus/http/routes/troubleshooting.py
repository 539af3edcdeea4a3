"""What waits for an operator: look, decide, note; and the causes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Response

from commandbus.access.model import Scope
from commandbus.access.visibility import viewer_of
from commandbus.http.auth.scopes import Operator, ReachedDomain, ShowPayload, Sight, requires
from commandbus.http.openapi import problem_response
from commandbus.http.platform import Here, Platform
from commandbus.http.problems import Kind
from commandbus.http.routes.commands import require_command
from commandbus.http.schemas.base import DomainPath, Limit, PageOf50, TypeQuery
from commandbus.http.schemas.commands import CommandView, WithReason
from commandbus.http.schemas.troubleshooting import (
    CompleteParked,
    Fingerprint,
    GroupAssignee,
    GroupNote,
    GroupsView,
    GroupView,
    NoteText,
    ParkedView,
    RetryParked,
    group_view,
)
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute
from commandbus.models import TroubleshootingItem
from commandbus.troubleshooting.model import FailureGroup

router = APIRouter(tags=["troubleshooting"], route_class=StrictRoute)

GroupPath = Annotated[Fingerprint, Path(description="Its fingerprint, or the beginning of it.")]
GroupQuery = Annotated[Fingerprint | None, Query(description="Only this failure group.")]


async def _view(here: Platform, item: TroubleshootingItem, *, payload: bool) -> ParkedView:
    shown = await here.bus.troubleshooting.masked(item) if payload else None
    return ParkedView.of(item, payload=shown)


def _search(
    viewer: Sight, paging: PageOf50, command_type: TypeQuery = None, group: GroupQuery = None
) -> dict[str, Any]:
    return {"command_type": command_type, "group": group, "viewer": viewer, **paging}


ParkedSearch = Annotated[dict[str, Any], Depends(_search)]


async def _page(
    here: Platform, domain: str | None, search: dict[str, Any], *, payload: bool
) -> PageView[ParkedView]:
    page = await here.bus.troubleshooting.page(domain, **search)
    items = [await _view(here, item, payload=payload) for item in page.items]
    return PageView[ParkedView].of(page, items=items)


@router.get("/troubleshooting", dependencies=[requires(Scope.READ)])
async def list_all_troubleshooting(
    domain: ReachedDomain, here: Here, payload: ShowPayload, search: ParkedSearch
) -> PageView[ParkedView]:
    """List parked commands of all domains, longest parked first."""
    return await _page(here, domain, search, payload=payload)


@router.get("/troubleshooting/{domain}", dependencies=[requires(Scope.READ)])
async def list_troubleshooting(
    domain: DomainPath, here: Here, payload: ShowPayload, search: ParkedSearch
) -> PageView[ParkedView]:
    """List parked commands, longest parked first."""
    return await _page(here, domain, search, payload=payload)


@router.get("/troubleshooting/{domain}/{command_id}", dependencies=[requires(Scope.READ)])
async def get_troubleshooting(
    domain: DomainPath, command_id: UUID, here: Here, viewer: Sight, payload: ShowPayload
) -> ParkedView:
    """Show one parked command."""
    item = await here.bus.troubleshooting.require(domain, command_id, viewer=viewer)
    return await _view(here, item, payload=payload)


@router.post(
    "/troubleshooting/{domain}/{command_id}/retry",
    responses={202: {"model": CommandView, "description": "Its edit waits for an approval."}},
)
async def retry_parked(
    domain: DomainPath, command_id: UUID, form: RetryParked, response: Response, here: Here,
    caller: Operator,
) -> CommandView:  # fmt: skip
    """Send it again, with the same payload or an edited one; the reason becomes a note.

    The edit of a child of a governed batch waits until somebody else has approved it: then the
    answer is 202, and the command stays in troubleshooting.
    """
    operator = caller.user_id
    is_sent = await here.bus.troubleshooting.retry(
        domain, command_id, operator=operator, reset_attempts=form.reset_attempts,
        payload=form.payload, on_behalf=here.bus.governance.on_behalf_of(caller, domain),
    )  # fmt: skip
    if not is_sent:
        response.status_code = 202
    await here.bus.troubleshooting.note(domain, command_id, form.reason, operator=operator)
    return CommandView.of(await require_command(here, domain, command_id, viewer_of(caller)))


@router.post("/troubleshooting/{domain}/{command_id}/cancel")
async def cancel_parked(
    domain: DomainPath, command_id: UUID, form: WithReason, here: Here, caller: Operator
) -> CommandView:
    """End it without success; its reply is published."""
    await here.bus.troubleshooting.cancel(domain, command_id, form.reason, operator=caller.user_id)
    return CommandView.of(await require_command(here, domain, command_id, viewer_of(caller)))


@router.post("/troubleshooting/{domain}/{command_id}/complete")
async def complete_parked(
    domain: DomainPath, command_id: UUID, form: CompleteParked, here: Here, caller: Operator
) -> CommandView:
    """End it as done; its reply is published. The reason becomes a note."""
    operator = caller.user_id
    await here.bus.troubleshooting.complete(domain, command_id, form.result, operator=operator)
    await here.bus.troubleshooting.note(domain, command_id, form.reason, operator=operator)
    return CommandView.of(await require_command(here, domain, command_id, viewer_of(caller)))


@router.post("/troubleshooting/{domain}/{command_id}/notes", status_code=204)
async def note_command(
    domain: DomainPath, command_id: UUID, form: NoteText, here: Here, caller: Operator
) -> None:
    """Leave a note in the audit of a command, whatever its status."""
    await here.bus.troubleshooting.note(domain, command_id, form.text, operator=caller.user_id)


@router.get("/failure-groups", dependencies=[requires(Scope.READ)])
async def list_failure_groups(
    here: Here,
    domain: ReachedDomain,
    viewer: Sight,
    command_type: TypeQuery = None,
    search: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="A text in its message, code or note."),
    ] = None,
    include_empty: bool = False,
    limit: Limit = 50,
) -> GroupsView:
    """List parked commands by cause, largest group first. There is no next page."""
    found = await here.bus.troubleshooting.find_groups(
        domain, search=search, command_type=command_type, include_empty=include_empty,
        viewer=viewer, limit=limit,
    )  # fmt: skip
    return GroupsView(items=[_group(each) for each in found.groups], is_cut=found.is_cut)


@router.get(
    "/failure-groups/{domain}/{fingerprint}",
    dependencies=[requires(Scope.READ)],
    responses={409: problem_response(Kind.CONFLICT)},
)
async def get_failure_group(
    domain: DomainPath, fingerprint: GroupPath, here: Here, viewer: Sight
) -> GroupView:
    """Show one cause, also if nothing of it is parked any more; 409 if there is none."""
    return _group(await here.bus.troubleshooting.require_group(fingerprint, domain, viewer=viewer))


@router.put("/failure-groups/{domain}/{fingerprint}/note")
async def note_failure_group(
    domain: DomainPath, fingerprint: GroupPath, form: GroupNote, here: Here, caller: Operator
) -> GroupView:
    """Put a remark on a cause, for the next person who looks. The audit keeps all of them."""
    queue = here.bus.troubleshooting
    await queue.note_group(domain, fingerprint, form.text, operator=caller.user_id)
    found = await queue.require_group(fingerprint, domain, viewer=viewer_of(caller))
    return _group(found)


@router.put("/failure-groups/{domain}/{fingerprint}/assignee")
async def assign_failure_group(
    domain: DomainPath, fingerprint: GroupPath, form: GroupAssignee, here: Here, caller: Operator
) -> GroupView:
    """Say who looks after a cause."""
    queue = here.bus.troubleshooting
    await queue.assign_group(domain, fingerprint, form.assignee, operator=caller.user_id)
    found = await queue.require_group(fingerprint, domain, viewer=viewer_of(caller))
    return _group(found)


def _group(group: FailureGroup) -> GroupView:
    return group_view(group, datetime.now(UTC))

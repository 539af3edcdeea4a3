"""What waits for an operator: look, decide, note; and the causes."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from commandbus.access.model import Caller, Scope
from commandbus.errors import CommandNotFoundError, PermissionDeniedError
from commandbus.http.platform import Here, Platform
from commandbus.http.schemas.base import Cursor, DomainPath, DomainQuery, Limit, TypeQuery
from commandbus.http.schemas.commands import CommandView, WithReason
from commandbus.http.schemas.troubleshooting import (
    CompleteParked,
    Fingerprint,
    GroupList,
    GroupView,
    NoteText,
    ParkedPageView,
    ParkedView,
    RetryParked,
)
from commandbus.http.security import reached_domain, requires
from commandbus.models import TroubleshootingItem

router = APIRouter(tags=["troubleshooting"])

Reader = Annotated[Caller, requires(Scope.READ)]
Operator = Annotated[Caller, requires(Scope.OPERATE)]
ShowPayload = Annotated[
    bool, Query(description="Show payloads too, secrets masked; needs the scope read-payload.")
]
GroupQuery = Annotated[Fingerprint | None, Query(description="Only this failure group.")]


async def _view(here: Platform, item: TroubleshootingItem, *, payload: bool) -> ParkedView:
    view = ParkedView.model_validate(item)
    if payload:
        view.payload = await here.bus.troubleshooting.masked(item)
    return view


def _refuse_payload(caller: Caller, payload: bool) -> None:
    if payload and not caller.may(Scope.READ_PAYLOAD):
        raise PermissionDeniedError(Scope.READ_PAYLOAD.value, "the payload")


async def _after(here: Platform, domain: str, command_id: UUID) -> CommandView:
    found = await here.bus.get_command(domain, command_id)
    if found is None:
        raise CommandNotFoundError(domain, command_id)
    return CommandView.model_validate(found)


@router.get("/troubleshooting/{domain}")
async def list_troubleshooting(
    domain: DomainPath,
    here: Here,
    caller: Reader,
    command_type: TypeQuery = None,
    group: GroupQuery = None,
    payload: ShowPayload = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ParkedPageView:
    """List what waits, longest first."""
    _refuse_payload(caller, payload)
    page = await here.bus.troubleshooting.page(
        domain, command_type=command_type, group=group, limit=limit, cursor=cursor
    )
    items = [await _view(here, item, payload=payload) for item in page.items]
    return ParkedPageView(items=items, next_cursor=page.next_cursor)


@router.get("/troubleshooting/{domain}/{command_id}")
async def get_troubleshooting(
    domain: DomainPath,
    command_id: UUID,
    here: Here,
    caller: Reader,
    payload: ShowPayload = False,
) -> ParkedView:
    """Show one that waits."""
    _refuse_payload(caller, payload)
    item = await here.bus.troubleshooting.require(domain, command_id)
    return await _view(here, item, payload=payload)


@router.post("/troubleshooting/{domain}/{command_id}/retry")
async def retry_parked(
    domain: DomainPath, command_id: UUID, form: RetryParked, here: Here, caller: Operator
) -> CommandView:
    """Send it again, with the same payload or an edited one; the reason becomes a note."""
    await here.bus.operator_retry(
        domain,
        command_id,
        operator=caller.user_id,
        reset_attempts=form.reset_attempts,
        payload=form.payload,
    )
    await here.bus.troubleshooting.note(domain, command_id, form.reason, operator=caller.user_id)
    return await _after(here, domain, command_id)


@router.post("/troubleshooting/{domain}/{command_id}/cancel")
async def cancel_parked(
    domain: DomainPath, command_id: UUID, form: WithReason, here: Here, caller: Operator
) -> CommandView:
    """End it without success; its reply goes out."""
    await here.bus.operator_cancel(domain, command_id, form.reason, operator=caller.user_id)
    return await _after(here, domain, command_id)


@router.post("/troubleshooting/{domain}/{command_id}/complete")
async def complete_parked(
    domain: DomainPath, command_id: UUID, form: CompleteParked, here: Here, caller: Operator
) -> CommandView:
    """End it as done; its reply goes out. The reason becomes a note."""
    await here.bus.operator_complete(domain, command_id, form.result, operator=caller.user_id)
    await here.bus.troubleshooting.note(domain, command_id, form.reason, operator=caller.user_id)
    return await _after(here, domain, command_id)


@router.post("/troubleshooting/{domain}/{command_id}/notes", status_code=204)
async def note_command(
    domain: DomainPath, command_id: UUID, form: NoteText, here: Here, caller: Operator
) -> None:
    """Leave a remark in the audit of a command, in whichever state it is."""
    await here.bus.troubleshooting.note(domain, command_id, form.text, operator=caller.user_id)


@router.get("/failure-groups")
async def list_failure_groups(
    here: Here,
    caller: Reader,
    domain: DomainQuery = None,
    command_type: TypeQuery = None,
    include_empty: bool = False,
    limit: Limit = 50,
) -> GroupList:
    """List what waits by cause, largest first."""
    found = await here.bus.troubleshooting.groups(
        reached_domain(caller, domain),
        command_type=command_type,
        include_empty=include_empty,
        limit=limit,
    )
    return GroupList(items=[GroupView.model_validate(group) for group in found])

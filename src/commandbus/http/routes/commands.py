"""Send commands, find them, cancel them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Response

from commandbus.access.model import Scope
from commandbus.access.visibility import viewer_of
from commandbus.errors import InvalidInputError
from commandbus.http.auth.scopes import (
    Operator,
    ReachedDomain,
    Reader,
    Sender,
    ShowPayload,
    Sight,
    refuse_domain,
    refuse_new_domain,
    requires,
)
from commandbus.http.platform import Here, Platform, accepted
from commandbus.http.schemas.base import DomainPath, Moment, PageOf50, PageOf100, TypeQuery
from commandbus.http.schemas.commands import (
    Accepted,
    AuditEventView,
    CancelForm,
    CommandDetail,
    CommandView,
    FormerPayloadView,
    LifeView,
    ProgressView,
    SendCommand,
    ShownReplyView,
)
from commandbus.http.schemas.flow import NewPriority, Reschedule
from commandbus.http.schemas.views import ListView, SearchPageView
from commandbus.http.strict import StrictRoute
from commandbus.models import CommandMetadata, CommandStatus, Viewer
from commandbus.names import NO_REPLY, new_id

router = APIRouter(prefix="/commands", tags=["commands"], route_class=StrictRoute)


async def require_command(
    here: Platform, domain: str, command_id: UUID, viewer: Viewer
) -> CommandMetadata:
    """A command; CommandNotFoundError if there is none that may be seen."""
    return await here.bus.search.require(domain, command_id, viewer=viewer)


@router.post("", status_code=202)
async def send_command(
    form: SendCommand,
    response: Response,
    here: Here,
    caller: Sender,
    idempotency_key: Annotated[
        UUID | None, Header(description="The same as command_id, for clients that have it.")
    ] = None,
) -> Accepted:
    """Send a command.

    A repeat by the same user (same id, type, payload, times, priority and keys) gets the command in
    its current state, and creates nothing, for as long as the id is known. Every other use of a
    known id is 409. A governed command type is 403: submit it as a batch. With a unique_key
    that another command holds it is 409, or, with `on_duplicate`, that other command is the answer.
    """
    refuse_domain(caller, form.domain)
    here.charge_commands(1)
    await refuse_new_domain(here, caller, form.domain)
    command_id = _chosen_id(form, idempotency_key)
    reply_to = None if form.wants_reply else NO_REPLY
    sent = await here.bus.governance.send(
        caller, form.domain, form.command_type, command_id, form.data, reply_to,
        form.correlation_id, max_attempts=form.max_attempts, options=form.options(),
    )  # fmt: skip
    url = here.url(f"/api/v1/commands/{form.domain}/{sent.command_id}")
    accepted(response, url)
    return Accepted(
        domain=form.domain,
        command_id=sent.command_id,
        command_type=form.command_type,
        status=sent.status,
        is_repeat=sent.is_repeat,
        outcome=sent.outcome,
        status_url=url,
    )


def _chosen_id(form: SendCommand, idempotency_key: UUID | None) -> UUID:
    if form.command_id is not None and idempotency_key not in {None, form.command_id}:
        raise InvalidInputError("command_id and Idempotency-Key differ; send one of them")
    return form.command_id or idempotency_key or new_id()


def _criteria(
    domain: ReachedDomain,
    viewer: Sight,
    command_type: TypeQuery = None,
    status: CommandStatus | None = None,
    error_code: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    correlation_id: UUID | None = None,
    batch_id: UUID | None = None,
    command_id: UUID | None = None,
    created_after: Moment = None,
    created_before: Moment = None,
    history: Annotated[
        bool, Query(description="Those that retention has moved to the history.")
    ] = False,
) -> dict[str, Any]:
    return {
        "domain": domain, "command_type": command_type, "status": status,
        "error_code": error_code, "correlation_id": correlation_id, "batch_id": batch_id,
        "command_id": command_id, "created_after": created_after,
        "created_before": created_before, "history": history, "viewer": viewer,
    }  # fmt: skip


#: What a search, and an export, of commands is given.
CommandCriteria = Annotated[dict[str, Any], Depends(_criteria)]


@router.get("", dependencies=[requires(Scope.READ)])
async def search_commands(
    here: Here, criteria: CommandCriteria, paging: PageOf50
) -> SearchPageView[CommandView]:
    """Search commands, newest first; those in troubleshooting by when they were parked."""
    page = await here.bus.search.commands(**criteria, **paging)
    return SearchPageView[CommandView].of(page)


@router.get("/{domain}/{command_id}", dependencies=[requires(Scope.READ)])
async def get_command(
    domain: DomainPath, command_id: UUID, here: Here, viewer: Sight, payload: ShowPayload
) -> CommandDetail:
    """Show a command."""
    found = await require_command(here, domain, command_id, viewer)
    shown = await here.bus.search.payload(domain, command_id) if payload else None
    return await _detail(here, found, shown)


@router.get("/{domain}/{command_id}/life")
async def command_life(
    domain: DomainPath, command_id: UUID, here: Here, caller: Reader
) -> LifeView:
    """Show what happened to a command, with the time between, and why it stands where it stands."""
    life = await here.bus.troubleshooting.life(
        domain, command_id, viewer=viewer_of(caller), domains=caller.domains
    )
    return LifeView.of(life)


@router.get("/{domain}/{command_id}/reply", dependencies=[requires(Scope.READ)])
async def command_reply(
    domain: DomainPath, command_id: UUID, here: Here, viewer: Sight, payload: ShowPayload
) -> ShownReplyView:
    """Show where the reply of a command is, and what it says while it is there."""
    await require_command(here, domain, command_id, viewer)
    found = await here.bus.search.reply(domain, command_id)
    return ShownReplyView.of(found, data=found.data if payload else None)


@router.get("/{domain}/{command_id}/payloads", dependencies=[requires(Scope.READ_PAYLOAD)])
async def former_payloads(
    domain: DomainPath, command_id: UUID, here: Here, viewer: Sight
) -> ListView[FormerPayloadView]:
    """List what a command had before each of its last 20 edits, newest first, secrets masked."""
    await require_command(here, domain, command_id, viewer)
    found = await here.bus.search.former_payloads(domain, command_id)
    return ListView[FormerPayloadView](items=[FormerPayloadView.of(each) for each in found])


async def _detail(here: Platform, command: CommandMetadata, payload: Any = None) -> CommandDetail:
    url = here.url(f"/api/v1/commands/{command.domain}/{command.command_id}")
    stack = None
    if command.last_error_code is not None:
        stack = await here.bus.search.stack(command.domain, command.command_id)
    child = None
    if command.batch_id is not None and here.bus.governance.is_available:
        child = await here.bus.governance.child(command.batch_id, command.command_id)
    told = None
    if command.leased_by is not None:
        found = await here.bus.search.progress(command.domain, [command.command_id])
        told = found.get(command.command_id)
    return CommandDetail.of(
        command, payload=payload, stack=stack, status_url=url,
        meta=await here.bus.search.meta(command.domain, command.command_id),
        progress=None if told is None else ProgressView.of(told),
        parent_ticket_id=None if child is None else child.parent_ticket_id,
        sequence_no=None if child is None else child.sequence_no,
    )  # fmt: skip


@router.post(
    "/{domain}/{command_id}/cancel",
    responses={202: {"model": CommandDetail, "description": "Its worker is asked to end it."}},
)
async def cancel_command(
    domain: DomainPath,
    command_id: UUID,
    form: CancelForm,
    response: Response,
    here: Here,
    caller: Operator,
    viewer: Sight,
) -> CommandDetail:
    """Cancel a command that no worker has leased.

    One that runs is refused, unless `running` is `request`: then its worker is asked to end it, and
    the answer is 202. It may still succeed.
    """
    answer = await here.bus.cancel(
        domain, command_id, form.reason, running=form.running, operator=caller.user_id
    )
    if answer == "requested":
        response.status_code = 202
    return await _detail(here, await require_command(here, domain, command_id, viewer))


@router.post("/{domain}/{command_id}/reschedule")
async def reschedule_command(
    domain: DomainPath,
    command_id: UUID,
    form: Reschedule,
    here: Here,
    caller: Operator,
    viewer: Sight,
) -> CommandDetail:
    """Give a command that no worker has leased another time, or make it due now."""
    await require_command(here, domain, command_id, viewer)
    await here.bus.reschedule(domain, command_id, **form.arguments(), operator=caller.user_id)
    return await _detail(here, await require_command(here, domain, command_id, viewer))


@router.post("/{domain}/{command_id}/priority")
async def set_priority(
    domain: DomainPath,
    command_id: UUID,
    form: NewPriority,
    here: Here,
    caller: Operator,
    viewer: Sight,
) -> CommandDetail:
    """Give a command that no worker has leased another level of priority."""
    await require_command(here, domain, command_id, viewer)
    await here.bus.set_priority(domain, command_id, form.priority, operator=caller.user_id)
    return await _detail(here, await require_command(here, domain, command_id, viewer))


@router.get("/{domain}/{command_id}/audit", dependencies=[requires(Scope.READ)])
async def command_audit(
    domain: DomainPath, command_id: UUID, here: Here, viewer: Sight, paging: PageOf100
) -> SearchPageView[AuditEventView]:
    """List the events of a command, oldest first."""
    if paging["cursor"] is None:
        await require_command(here, domain, command_id, viewer)
    page = await here.bus.search.audit(
        command_id=command_id, domain=domain, newest_first=False, viewer=viewer, **paging
    )
    return SearchPageView[AuditEventView].of(page)

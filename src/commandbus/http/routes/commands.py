"""Send commands, find them, cancel them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response

from commandbus.access.model import Caller, Scope
from commandbus.errors import (
    CommandNotFoundError,
    DuplicateCommandError,
    InvalidInputError,
    PermissionDeniedError,
)
from commandbus.http.platform import Here, Platform, path_of
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import (
    Cursor,
    DomainPath,
    DomainQuery,
    Limit,
    Moment,
    TypeQuery,
)
from commandbus.http.schemas.commands import (
    Accepted,
    AuditEventView,
    AuditPageView,
    CommandDetail,
    CommandPageView,
    CommandView,
    SendCommand,
    WithReason,
)
from commandbus.http.security import reached_domain, refuse_domain, requires
from commandbus.models import CommandMetadata, CommandStatus
from commandbus.names import NO_REPLY, new_id

router = APIRouter(prefix="/commands", tags=["commands"])

Reader = Annotated[Caller, requires(Scope.READ)]
Sender = Annotated[Caller, requires(Scope.SEND)]
Operator = Annotated[Caller, requires(Scope.OPERATE)]

#: Seconds after which to look at a new command.
POLL_HINT = 2


@router.post("", status_code=202)
async def send_command(
    form: SendCommand,
    request: Request,
    response: Response,
    here: Here,
    caller: Sender,
    idempotency_key: Annotated[
        UUID | None, Header(description="The same as command_id, for clients that have it.")
    ] = None,
) -> Accepted:
    """Send a command.

    A repeat of the same request (same id, type and payload) gets the command as it stands now, and
    creates nothing. The same id with another type or payload is 409.
    """
    refuse_domain(caller, form.domain)
    await refuse_unknown_domain(here, caller, form.domain)
    command_id = _chosen_id(form, idempotency_key)
    reply_to = None if form.wants_reply else NO_REPLY
    is_repeat = False
    try:
        await here.bus.send(
            form.domain, form.command_type, command_id, form.data, reply_to, form.correlation_id,
            max_attempts=form.max_attempts,
        )  # fmt: skip
        status = CommandStatus.PENDING
    except DuplicateCommandError:
        original = await here.bus.search.original_of_repeat(
            form.domain, form.command_type, command_id, form.data
        )
        status, is_repeat = original.status, True
    url = path_of(request, f"/api/v1/commands/{form.domain}/{command_id}")
    response.headers["Location"] = url
    response.headers["Retry-After"] = str(POLL_HINT)
    return Accepted(
        domain=form.domain,
        command_id=command_id,
        command_type=form.command_type,
        status=status,
        is_repeat=is_repeat,
        status_url=url,
    )


async def refuse_unknown_domain(here: Platform, caller: Caller, domain: str) -> None:
    """A first use of a domain makes its queues: not for everybody who can spell a new name."""
    is_named = caller.domains is not None and domain in caller.domains
    if is_named or caller.may(Scope.ADMIN) or await here.bus.upkeep.figures.knows_domain(domain):
        return
    raise not_found(
        "no such domain; it is there once a worker has served it, or somebody with the scope "
        "admin has used it"
    )


def _chosen_id(form: SendCommand, idempotency_key: UUID | None) -> UUID:
    if form.command_id is not None and idempotency_key not in {None, form.command_id}:
        raise InvalidInputError("command_id and Idempotency-Key differ; send one of them")
    return form.command_id or idempotency_key or new_id()


@router.get("")
async def search_commands(
    here: Here,
    caller: Reader,
    domain: DomainQuery = None,
    command_type: TypeQuery = None,
    status: CommandStatus | None = None,
    error_code: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    correlation_id: UUID | None = None,
    batch_id: UUID | None = None,
    command_id: UUID | None = None,
    created_after: Moment = None,
    created_before: Moment = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> CommandPageView:
    """Search commands, newest first; those in troubleshooting by when they were parked."""
    page = await here.bus.search.commands(
        domain=reached_domain(caller, domain), command_type=command_type, status=status,
        error_code=error_code, correlation_id=correlation_id, batch_id=batch_id,
        command_id=command_id, created_after=created_after, created_before=created_before,
        limit=limit, cursor=cursor,
    )  # fmt: skip
    return CommandPageView(
        items=[CommandView.model_validate(command) for command in page.commands],
        next_cursor=page.next_cursor,
        searched_back_to=page.searched_back_to,
    )


@router.get("/{domain}/{command_id}")
async def get_command(
    domain: DomainPath,
    command_id: UUID,
    request: Request,
    here: Here,
    caller: Reader,
    payload: Annotated[
        bool, Query(description="Show the payload too; needs the scope read-payload.")
    ] = False,
) -> CommandDetail:
    """Show a command."""
    if payload and not caller.may(Scope.READ_PAYLOAD):
        raise PermissionDeniedError(Scope.READ_PAYLOAD.value, "the payload")
    found = await here.bus.get_command(domain, command_id)
    if found is None:
        raise CommandNotFoundError(domain, command_id)
    shown = await here.bus.search.payload(domain, command_id) if payload else None
    return _detail(request, found, shown)


def _detail(request: Request, command: CommandMetadata, payload: Any) -> CommandDetail:
    values = CommandView.model_validate(command).model_dump()
    url = path_of(request, f"/api/v1/commands/{command.domain}/{command.command_id}")
    return CommandDetail(**values, payload=payload, status_url=url)


@router.post("/{domain}/{command_id}/cancel")
async def cancel_command(
    domain: DomainPath,
    command_id: UUID,
    form: WithReason,
    request: Request,
    here: Here,
    caller: Operator,
) -> CommandDetail:
    """Cancel a command that no worker holds yet."""
    await here.bus.cancel(domain, command_id, form.reason, operator=caller.user_id)
    found = await here.bus.get_command(domain, command_id)
    if found is None:
        raise CommandNotFoundError(domain, command_id)
    return _detail(request, found, None)


@router.get("/{domain}/{command_id}/audit")
async def command_audit(
    domain: DomainPath,
    command_id: UUID,
    here: Here,
    caller: Reader,  # noqa: ARG001  (asked for its check)
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPageView:
    """The life of a command, oldest event first."""
    if cursor is None and await here.bus.get_command(domain, command_id) is None:
        raise CommandNotFoundError(domain, command_id)
    page = await here.bus.search.audit(
        command_id=command_id, domain=domain, newest_first=False, limit=limit, cursor=cursor
    )
    return AuditPageView(
        items=[AuditEventView.model_validate(event) for event in page.events],
        next_cursor=page.next_cursor,
        searched_to=page.searched_to,
    )

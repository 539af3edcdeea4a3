"""Submission: one transaction that knows repeats, compares with the limits, checks and creates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID, uuid4

from commandbus.access.model import Caller
from commandbus.commands.preparing import Preparer
from commandbus.database import encoding
from commandbus.database.store import Store
from commandbus.errors import (
    BatchSizeExceededError,
    DatabaseUnavailableError,
    InvalidBatchRequestError,
    InvalidInputError,
    RateLimitExceededError,
    TicketNotFoundError,
)
from commandbus.governance.items import check_items, digest_of, fitting_errors, refused
from commandbus.governance.model import BatchTicket, Item, ItemError, Submission, TicketStatus
from commandbus.governance.tickets import limits_of, tickets_by_id
from commandbus.governance.types import BatchType
from commandbus.models import NewCommand
from commandbus.names import check_text, check_uuid
from commandbus.privacy.redaction import redact_text

if TYPE_CHECKING:
    from commandbus.database.gateway import Session

#: Seconds that a type's own check may take: other submissions wait for it.
CHECK_SECONDS = 5.0

_BEGIN: LiteralString = (
    "select * from {schema}.begin_submission(%s, %s, %s, cast(%s as uuid), %s, cast(%s as jsonb))"
)
_CREATE: LiteralString = (
    "select t.created_at, t.limits, t.content_digest, t.expires_at from {schema}.create_ticket("
    "%s, %s, cast(%s as jsonb), %s, %s, cast(%s as text), cast(%s as uuid), %s, %s,"
    " cast(%s as jsonb), cast(%s as jsonb), %s) t"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose form is right."""

    caller: Caller
    batch_type: BatchType
    items: Sequence[Item]
    commands: Sequence[NewCommand]
    digest: bytes
    #: Items that do not fit their type. Told only after repeat and limits.
    errors: Sequence[ItemError]
    request_id: UUID | None
    reason: str | None


def check_request(
    caller: Caller,
    batch_type: BatchType,
    items: Sequence[Item],
    request_id: UUID | None,
    reason: str | None,
    preparer: Preparer,
) -> Request:
    """Check all that can be checked without the database."""
    try:
        key = None if request_id is None else check_uuid(request_id, "request_id")
    except InvalidInputError as error:
        raise InvalidBatchRequestError(str(error)) from None
    text = None if reason is None else check_reason(reason)
    commands = check_items(batch_type, items, preparer)
    digest, errors = digest_of(batch_type, items, text), fitting_errors(batch_type, items)
    return Request(caller, batch_type, items, commands, digest, errors, key, text)


def check_reason(reason: Any) -> str:
    """The reason of a caller, redacted."""
    try:
        return redact_text(check_text(reason, "reason"))
    except InvalidInputError as error:
        raise InvalidBatchRequestError(str(error)) from None


async def submit(
    store: Store, request: Request, defaults: Mapping[str, int], expires_seconds: float
) -> Submission:
    """Create the batch of a request, find the one that it created before, or raise."""
    gateway, domain = store.gateway, request.batch_type.domain
    limits = encoding.dump(dict(defaults))
    # The queues of a new domain are made beforehand: DDL has no place in the transaction.
    await gateway.ensure_domain(domain)
    async with gateway.transaction(domain) as session:
        ((admission, ticket_id, refusal, states),) = await session.rows(
            _BEGIN,
            (
                request.caller.user_id, request.batch_type.name, len(request.items),
                request.request_id, request.digest, limits,
            ),
        )  # fmt: skip
        if admission == "replay":
            found = await tickets_by_id(session, [ticket_id])
            if not found:
                raise TicketNotFoundError(ticket_id)
            return Submission(found[0], True, limits_of(states))
        _refuse(request, admission, refusal)
        await _check_items(request, session.conn)
        return await _create(session, request, limits, expires_seconds)


def _refuse(request: Request, admission: str, refusal: Mapping[str, Any]) -> None:
    match admission:
        case "mismatch":
            raise InvalidBatchRequestError(
                f"request_id {request.request_id} was used before with another body; repeat a "
                "request as it was, or take a new request_id"
            )
        case "size":
            size = len(request.items)
            raise BatchSizeExceededError(size, refusal["max_value"], contact_admin=True)
        case "limit":
            raise RateLimitExceededError(
                refusal["limit_type"],
                refusal["scope"],
                refusal["current_value"],
                refusal["max_value"],
                max(1, refusal["retry_after"]),
                contact_admin=refusal["scope"] == "user",
            )
        case _:
            return


async def _check_items(request: Request, conn: Any) -> None:
    batch_type = request.batch_type
    if request.errors:
        raise refused(request.errors)
    if batch_type.check is None:
        return
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            errors = await batch_type.check(conn, request.caller, request.items)
    except TimeoutError:
        raise DatabaseUnavailableError(
            f"the check of {batch_type.name} took more than {CHECK_SECONDS:g} s; nothing was "
            "created, repeat the request"
        ) from None
    if errors:
        raise refused(errors)


async def _create(
    session: Session, request: Request, limits: str, expires_seconds: float
) -> Submission:
    batch_type, caller = request.batch_type, request.caller
    ticket_id = uuid4()
    details = {} if caller.token_id is None else {"token_id": caller.token_id}
    ((created_at, states, content_digest, expires_at),) = await session.rows(
        _CREATE,
        (
            batch_type.domain, ticket_id, encoding.sends(request.commands),
            batch_type.name, caller.user_id, request.reason, request.request_id,
            request.digest, batch_type.requires_approval, encoding.dump(details), limits,
            expires_seconds or None,
        ),
        domain=batch_type.domain,
    )  # fmt: skip
    is_waiting = batch_type.requires_approval
    ticket = BatchTicket(
        ticket_id=ticket_id,
        domain=batch_type.domain,
        batch_type=batch_type.name,
        child_count=len(request.items),
        success_count=0,
        failed_count=0,
        pending_count=len(request.items),
        canceled_count=0,
        status=TicketStatus.PENDING_APPROVAL if is_waiting else TicketStatus.IN_PROGRESS,
        reason=request.reason,
        created_by=caller.user_id,
        created_at=created_at,
        updated_at=created_at,
        requires_approval=is_waiting,
        request_id=request.request_id,
        content_digest=content_digest,
        expires_at=expires_at,
    )
    return Submission(ticket, False, limits_of(states))

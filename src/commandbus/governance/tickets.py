"""Tickets and limits as the database gives them: rows become values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString, cast
from uuid import UUID

from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    ChildTicket,
    LimitState,
    LimitType,
    TicketStatus,
)

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

#: In the order of BatchTicket.
TICKET_COLUMNS: LiteralString = (
    "t.ticket_id, t.domain, t.batch_type, t.child_count, t.success_count, t.failed_count,"
    " t.pending_count, t.canceled_count, t.status, t.reason, t.created_by, t.created_at,"
    " t.updated_at, t.completed_at, t.requires_approval, t.decided_by, t.decided_at,"
    " t.decision_reason, t.request_id"
)
_BY_ID: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + TICKET_COLUMNS
    + " from {schema}.batch_approval_tickets t where t.ticket_id = any(cast(%s as uuid[]))"
)


async def tickets_by_id(
    statements: Statements, ticket_ids: Sequence[UUID], *, conn: Any = None
) -> list[BatchTicket]:
    """Those of these tickets that are there, for every caller."""
    return await statements.rows(_BY_ID, (list(ticket_ids),), into=ticket_of, conn=conn)


def ticket_of(*row: Any) -> BatchTicket:
    """A row of TICKET_COLUMNS."""
    values = cast("Any", (*row[:8], TicketStatus(row[8]), *row[9:]))
    return BatchTicket(*values)


def child_of(*row: Any) -> ChildTicket:
    """A row with the columns of a ChildTicket."""
    values = cast("Any", (*row[:3], ChildStatus(row[3]), *row[4:]))
    return ChildTicket(*values)


def limit_of(limit_type: str, scope: str, *values: Any, **named: Any) -> LimitState:
    """A row, or an object of a JSON list, with the columns of a LimitState."""
    return LimitState(LimitType(limit_type), scope, *values, **named)


def limits_of(document: Iterable[Mapping[str, Any]]) -> tuple[LimitState, ...]:
    """The limits that a submission gets, as JSON."""
    return tuple(limit_of(**state) for state in document)

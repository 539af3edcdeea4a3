"""Reading tickets and children. Who may see them is checked by the service."""

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
from commandbus.paging import Page, page_of, position_of, read_key, read_number

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

# In the order of BatchTicket.
_COLUMNS: LiteralString = (
    "t.ticket_id, t.domain, t.batch_type, t.child_count, t.success_count, t.failed_count,"
    " t.pending_count, t.canceled_count, t.status, t.reason, t.created_by, t.created_at,"
    " t.updated_at, t.completed_at, t.requires_approval, t.decided_by, t.decided_at,"
    " t.decision_reason, t.request_id, t.content_digest, t.edit_count, t.expires_at"
)
_TICKETS: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.batch_approval_tickets t where "
)
_BY_ID: LiteralString = _TICKETS + "t.ticket_id = any(cast(%s as uuid[]))"
_PAGE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + _COLUMNS
    + " from {schema}.list_tickets(%s, cast(%s as text[]), cast(%s as text[]), %s,"
    " cast(%s as timestamptz), cast(%s as uuid), %s) l"
    " join {schema}.batch_approval_tickets t on t.ticket_id = l.ticket_id"
    " order by l.created_at desc, l.ticket_id desc"
)
_CHILD_COLUMNS: LiteralString = (
    "select c.ticket_id, c.parent_ticket_id, c.sequence_no, c.status, c.error_message,"
    " c.attempt_count, c.last_attempt_at from {schema}."
)
_CHILDREN: LiteralString = _CHILD_COLUMNS + "approval_tickets c where c.parent_ticket_id = %s"
#: Those that are in the history.
_MOVED: LiteralString = _CHILD_COLUMNS + "command_bus_moved_ticket c where c.parent_ticket_id = %s"
_ONE: LiteralString = " and c.ticket_id = %s"
_SOME: LiteralString = (
    " and c.sequence_no > %s"
    " and (cast(%s as text) is null or c.status = %s) order by c.sequence_no limit %s"
)
_CHILD: LiteralString = _CHILDREN + _ONE
_MOVED_CHILD: LiteralString = _MOVED + _ONE
_PAGE_CHILDREN: LiteralString = "(" + _CHILDREN + _SOME + ") union all (" + _MOVED + _SOME + ")"


async def tickets_by_id(
    statements: Statements, ticket_ids: Sequence[UUID], *, conn: Any = None
) -> list[BatchTicket]:
    """Those of these tickets that exist."""
    return await statements.rows(_BY_ID, (list(ticket_ids),), into=_ticket_of, conn=conn)


async def page_tickets(
    statements: Statements,
    owner: str | None,
    domains: frozenset[str] | None,
    batch_types: frozenset[str] | None,
    status: TicketStatus | None,
    *,
    limit: int,
    cursor: str | None,
) -> Page[BatchTicket]:
    """Tickets, newest first. None: of all owners, domains, types or statuses."""
    # Sorted: the order of a set is another one in another process, and is part of the cursor.
    places = None if domains is None else sorted(domains)
    types = None if batch_types is None else sorted(batch_types)
    bound = ("tickets", owner, places, types, status)
    at, ticket_id = position_of(cursor, bound, read_key) or (None, None)
    params = (owner, places, types, status, at, ticket_id, limit + 1)
    found = await statements.rows(_PAGE, params, into=_ticket_of)
    return page_of(found, limit, bound, lambda ticket: [ticket.created_at, ticket.ticket_id])


async def child_of(statements: Statements, ticket_id: UUID, command_id: UUID) -> ChildTicket | None:
    """The child that a command is, or None if its batch is not governed."""
    found = await statements.row(_CHILD, (ticket_id, command_id), into=_child_of)
    if found is None:
        found = await statements.row(_MOVED_CHILD, (ticket_id, command_id), into=_child_of)
    return found


async def page_children(
    statements: Statements,
    ticket_id: UUID,
    *,
    status: ChildStatus | None,
    limit: int,
    cursor: str | None,
) -> Page[ChildTicket]:
    """Children in the order of the request."""
    bound = ("children", ticket_id, status)
    after = position_of(cursor, bound, read_number) or 0
    params = (ticket_id, after, status, status, limit + 1)
    found = await statements.rows(_PAGE_CHILDREN, params + params, into=_child_of)
    found = sorted(found, key=lambda child: child.sequence_no)[: limit + 1]
    return page_of(found, limit, bound, lambda child: [child.sequence_no])


def _ticket_of(*row: Any) -> BatchTicket:
    values = cast("Any", (*row[:8], TicketStatus(row[8]), *row[9:]))
    return BatchTicket(*values)


def _child_of(*row: Any) -> ChildTicket:
    values = cast("Any", (*row[:3], ChildStatus(row[3]), *row[4:]))
    return ChildTicket(*values)


def limit_of(limit_type: str, scope: str, *values: Any, **named: Any) -> LimitState:
    """A row, or an object of a JSON list, with the columns of a LimitState."""
    return LimitState(LimitType(limit_type), scope, *values, **named)


def limits_of(document: Iterable[Mapping[str, Any]]) -> tuple[LimitState, ...]:
    """The limits that a submission gets, as JSON."""
    return tuple(limit_of(**state) for state in document)

"""Reading bulk operations: one, a page, those of a failure group, and the items of one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, LiteralString, cast
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import BulkOperationNotFoundError, InvalidInputError
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import check_choice_or_none, check_domain, check_reach, check_uuid
from commandbus.paging import Page, check_page, page_of, position_of, read_key, read_number
from commandbus.troubleshooting.groups import check_fingerprint
from commandbus.troubleshooting.model import (
    BulkItem,
    BulkOperation,
    BulkOutcome,
    BulkStatus,
    BulkVerb,
)

_OPERATIONS: LiteralString = (
    "select o.operation_id, o.domain, o.verb, o.filter, o.arguments, o.rate, o.actor, o.status,"
    " o.total, o.done, o.skipped, o.failed, o.executor, o.heartbeat_at, o.created_at,"
    " o.started_at, o.finished_at, o.reason, o.item_limit, o.starts_at, o.resumed_at,"
    " o.resumed_from, o.stopped_by, o.stopped_at from {schema}.command_bus_bulk_operation o"
)
# One that touches governed batches is for those who see the batches of all owners.
_SEEN: LiteralString = " where (cast(%s as text) is null or not o.is_governed)"
_GET: LiteralString = _OPERATIONS + _SEEN + " and o.operation_id = %s"
_STATE: LiteralString = " and (cast(%s as text) is null or o.status = %s)"
_NEWEST: LiteralString = (
    " and (cast(%s as timestamptz) is null or (o.created_at, o.operation_id) < (%s, %s))"
    " order by o.created_at desc, o.operation_id desc limit %s"
)
_PAGE: LiteralString = (
    _OPERATIONS
    + _SEEN
    + _STATE
    + " and (cast(%s as text[]) is null or o.domain = any(cast(%s as text[])))"
    + _NEWEST
)
# In the words of ix_bulk_group.
_PAGE_OF_GROUP: LiteralString = (
    _OPERATIONS
    + _SEEN
    + _STATE
    + " and o.domain = %s and o.filter ? 'group' and o.filter ->> 'group' = %s"
    + _NEWEST
)
_PAGE_ITEMS: LiteralString = (
    "select i.item_no, i.command_id, i.outcome, i.detail, i.acted_at"
    " from {schema}.command_bus_bulk_item i where i.operation_id = %s"
    " and (cast(%s as text) is null or i.outcome = %s) and i.item_no > %s"
    " order by i.item_no limit %s"
)


class BulkReads:
    """Shows bulk operations."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, operation_id: UUID, *, viewer: Viewer = EVERYTHING) -> BulkOperation | None:
        """One operation, or None."""
        wanted = check_uuid(operation_id, "operation_id")
        return await self._store.gateway.row(_GET, (viewer.owner, wanted), into=_operation_of)

    async def require(self, operation_id: UUID, *, viewer: Viewer = EVERYTHING) -> BulkOperation:
        """One operation; raises BulkOperationNotFoundError if there is none."""
        found = await self.get(operation_id, viewer=viewer)
        if found is None:
            raise BulkOperationNotFoundError(check_uuid(operation_id, "operation_id"))
        return found

    async def page(
        self,
        domain: str | None = None,
        *,
        domains: Collection[str] | None = None,
        status: BulkStatus | None = None,
        group: str | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BulkOperation]:
        """Operations, newest first, page by page; `domains`: only of one of these.

        `group`, with its domain: those whose filter names this failure group, by its whole
        fingerprint. Operations with another filter may have acted on its commands as well.
        """
        state = check_choice_or_none(BulkStatus, status, "status")
        place = None if domain is None else check_domain(domain)
        cause = None if group is None else check_fingerprint(group)
        if cause is not None and place is None:
            raise InvalidInputError("the operations of a group need its domain")
        places = check_reach(place, domains)
        reach = [] if domains is None else [places]
        bound = ("bulk operations", place, state, viewer.owner, *([cause] if cause else []), *reach)
        check_page(limit)
        at, last_id = position_of(cursor, bound, read_key) or (None, None)
        params: tuple[Any, ...]
        first = (viewer.owner, state, state)
        last = (at, at, last_id, limit + 1)
        if cause is None:
            statement, params = _PAGE, (*first, places, places, *last)
        else:
            statement, params = _PAGE_OF_GROUP, (*first, place, cause, *last)
        found = await self._store.gateway.rows(statement, params, into=_operation_of)
        return page_of(found, limit, bound, lambda last: [last.created_at, last.operation_id])

    async def page_items(
        self,
        operation_id: UUID,
        *,
        outcome: BulkOutcome | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BulkItem]:
        """The commands of an operation and what became of each, in their order, page by page."""
        wanted = (await self.require(operation_id)).operation_id
        kind = check_choice_or_none(BulkOutcome, outcome, "outcome")
        bound = ("bulk items", str(wanted), kind)
        check_page(limit)
        after = position_of(cursor, bound, read_number) or 0
        found = await self._store.gateway.rows(
            _PAGE_ITEMS, (wanted, kind, kind, after, limit + 1), into=_item_of
        )
        return page_of(found, limit, bound, lambda last: [last.item_no])


def _operation_of(*row: Any) -> BulkOperation:
    """A row of _OPERATIONS, without the values of an edit: they may be secret."""
    arguments = {name: value for name, value in row[4].items() if name != "on_behalf"}
    if "edit" in arguments:
        arguments["edit"] = {"paths": arguments["edit"]["paths"]}
    head = (*row[:2], BulkVerb(row[2]), row[3], arguments, *row[5:7], BulkStatus(row[7]))
    values = cast("Any", (*head, *row[8:]))
    return BulkOperation(*values)


def _item_of(*row: Any) -> BulkItem:
    """A row of _PAGE_ITEMS."""
    outcome = None if row[2] is None else BulkOutcome(row[2])
    return BulkItem(row[0], row[1], outcome, *row[3:])

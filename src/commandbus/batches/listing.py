"""Listings of batches and of their commands, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString
from uuid import UUID

from commandbus.database.rows import BATCH_COLUMNS, BATCHES_WHERE, COMMAND_COLUMNS, command_of
from commandbus.models import BatchMetadata, BatchStatus, CommandMetadata, CommandStatus, Viewer
from commandbus.names import check_choice_or_none
from commandbus.paging import (
    Page,
    check_page,
    cursor_of,
    page_of,
    position_of,
    read_key,
    read_moment,
    read_number,
)

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

#: Commands of a batch that one call looks at when it looks for a status.
SCAN_LIMIT = 20_000

_PAGE: LiteralString = (
    BATCHES_WHERE + "b.domain = %s and (cast(%s as text) is null or b.status = %s)"
    " and (cast(%s as timestamptz) is null or (b.created_at, b.batch_id) < (%s, %s))"
    " order by b.created_at desc, b.batch_id desc limit %s"
)
_FILTER: LiteralString = (
    " and (cast(%s as text) is null or b.status = %s)"
    " and (cast(%s as timestamptz) is null or (b.created_at, b.batch_id) < (%s, %s))"
    " order by b.created_at desc, b.batch_id desc limit %s"
)
# Of governed batches those of one owner alone: each half has an index, and reads a page of it.
_PAGE_SEEN: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + BATCH_COLUMNS
    + " from ((select b.* from {schema}.command_bus_batch b"
    " where b.domain = %s and b.batch_type is null"
    + _FILTER
    + ") union all (select b.* from {schema}.command_bus_batch b"
    " where b.created_by = %s and b.domain = %s and b.batch_type is not null"
    + _FILTER
    + ")) b order by b.created_at desc, b.batch_id desc limit %s"
)
_PAGE_COMMANDS: LiteralString = (
    "select p.place, "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + ", p.moved_at from {schema}.page_batch_commands("
    "%s, %s, %s, cast(%s as int), cast(%s as timestamptz), cast(%s as uuid), %s, %s) p"
    " cross join lateral (select (p.command).*) c"
)


async def page_batches(
    statements: Statements,
    domain: str,
    status: BatchStatus | None,
    viewer: Viewer,
    *,
    limit: int,
    cursor: str | None,
) -> Page[BatchMetadata]:
    """Batches of a domain, newest first."""
    check_page(limit)
    state = check_choice_or_none(BatchStatus, status, "batch status")
    bound = ("batches", domain, state, viewer.owner)
    at, batch_id = position_of(cursor, bound, read_key) or (None, None)
    rest = (state, state, at, at, batch_id, limit + 1)
    if viewer.owner is None:
        found = await statements.rows(_PAGE, (domain, *rest), into=BatchMetadata)
    else:
        params = (domain, *rest, viewer.owner, domain, *rest, limit + 1)
        found = await statements.rows(_PAGE_SEEN, params, into=BatchMetadata)
    return page_of(found, limit, bound, lambda last: [last.created_at, last.batch_id])


async def page_batch_commands(
    statements: Statements,
    domain: str,
    batch_id: UUID,
    status: CommandStatus | None,
    require: Callable[[], Awaitable[object]],
    *,
    limit: int,
    cursor: str | None,
) -> Page[CommandMetadata]:
    """Commands of a batch in their order; those that were sent into it later come last.

    `require` raises if the batch is not there, and is called when all that was asked is in order.
    """
    check_page(limit)
    state = check_choice_or_none(CommandStatus, status, "status")
    bound = ("batch commands", domain, str(batch_id), state)
    after = position_of(cursor, bound, _read_place) or (None, None, None)
    await require()
    rows = await statements.rows(
        _PAGE_COMMANDS, (domain, batch_id, state, *after, limit + 1, SCAN_LIMIT)
    )
    found = [(row[0], command_of(*row[1:])) for row in rows if row[1] is not None]
    if len(rows) > len(found) and len(found) <= limit:
        # A last row without a command: the next look begins at this number.
        return Page([each for _, each in found], cursor_of([rows[-1][0], None, None], bound))
    page = page_of(
        found, limit, bound, lambda last: [last[0], last[1].created_at, last[1].command_id]
    )
    return Page([each for _, each in page.items], page.next_cursor)


def _read_place(
    number: int, moment: str | None, key: str | None
) -> tuple[int, datetime | None, UUID | None]:
    if read_number(number) >= 2**31:
        raise ValueError("not the number of a command")
    if moment is None or key is None:
        return number, None, None
    return number, read_moment(moment), UUID(key)

"""Reading what a decision is about: children with their payloads, edits, and what waits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

import orjson

from commandbus.database.store import Store
from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    Edit,
    Review,
    ReviewedChild,
    Undecided,
)
from commandbus.paging import Page, page_of, position_of, read_key, read_number
from commandbus.privacy.redaction import redact_payload
from commandbus.privacy.values import MASK
from commandbus.troubleshooting.edits import difference

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

_CHILDREN: LiteralString = "select * from {schema}.review_children(%s, %s, %s, %s, %s)"
_UNDECIDED: LiteralString = (
    "select * from {schema}.page_undecided(cast(%s as text[]), %s, cast(%s as timestamptz),"
    " cast(%s as uuid), %s)"
)


@dataclass(frozen=True, slots=True)
class StoredChild:
    """A row of review_children: with its payload as it is, which nobody may be shown.

    What is said of an edit is there only if it has `edit_data`.
    """

    sequence_no: int
    command_id: UUID
    command_type: str
    status: str
    digest: str | None
    data: str | None
    is_edited: bool
    edit_data: str | None
    edit_digest: str
    editor: str
    edited_at: datetime
    edit_expires_at: datetime | None
    edit_changes: dict[str, Any]


async def children_of(
    store: Store, ticket: BatchTicket, *, only_edits: bool, limit: int, cursor: str | None
) -> Page[StoredChild]:
    """The children of a ticket in the order of the request."""
    bound = ("review", ticket.ticket_id, only_edits)
    after = position_of(cursor, bound, read_number) or 0
    params = (ticket.domain, ticket.ticket_id, only_edits, after, limit + 1)
    found = await store.gateway.rows(_CHILDREN, params, into=StoredChild, domain=ticket.domain)
    return page_of(found, limit, bound, lambda child: [child.sequence_no])


def review_of(ticket: BatchTicket, page: Page[StoredChild], marked: Collection[str]) -> Review:
    """What may be shown of them: secrets masked."""
    shown = tuple(_shown(each, marked) for each in page.items)
    return Review(ticket, shown, page.next_cursor)


def _shown(child: StoredChild, marked: Collection[str]) -> ReviewedChild:
    before = None if child.data is None else orjson.loads(child.data)
    shown, masked = _masked(before, marked)
    return ReviewedChild(
        child.command_id, child.sequence_no, ChildStatus(child.status), child.digest, shown, masked,
        child.is_edited,
        None if child.edit_data is None else _edit_of(before, child, child.edit_data, marked),
    )  # fmt: skip


async def page_undecided(
    statements: Statements,
    domains: frozenset[str] | None,
    *,
    newest_first: bool,
    limit: int,
    cursor: str | None,
) -> Page[Undecided]:
    """What waits for a decision, in these domains (None: all)."""
    places = None if domains is None else sorted(domains)
    bound = ("undecided", places, newest_first)
    after = position_of(cursor, bound, read_key) or (None, None)
    found = await statements.rows(
        _UNDECIDED, (places, newest_first, *after, limit + 1), into=Undecided
    )
    return page_of(found, limit, bound, lambda it: [it.created_at, it.command_id or it.ticket_id])


def _edit_of(before: Any, child: StoredChild, data: str, marked: Collection[str]) -> Edit:
    changes = child.edit_changes
    after = orjson.loads(data)
    shown, masked = _masked(after, marked)
    if "paths" in changes:  # of a bulk operation, which keeps no values
        changes = {**_visible(difference(before, after, marked)), **changes}
    return Edit(
        child.editor, child.edited_at, child.edit_expires_at, child.edit_digest, changes, shown,
        masked,
    )  # fmt: skip


def _visible(changes: dict[str, Any]) -> dict[str, Any]:
    """Without the secret fields: whether one differs would tell an editor whether a guess is right.

    The list that was made from what the editor gave has them.
    """
    kept = {
        kind: [each for each in listed if {*each.values()} - {each["path"], MASK}]
        for kind, listed in changes.items()
        if isinstance(listed, list)
    }
    return {kind: listed for kind, listed in kept.items() if listed}


def _masked(data: Any, marked: Collection[str]) -> tuple[Any, int]:
    """What may be shown, and how many values of it are not what they are."""
    shown = None if data is None else redact_payload(data, marked)
    return shown, _hidden(data, shown)


def _hidden(data: Any, shown: Any) -> int:
    if isinstance(data, dict) and isinstance(shown, dict) and data.keys() == shown.keys():
        return sum(_hidden(data[key], shown[key]) for key in data)
    if isinstance(data, list) and isinstance(shown, list) and len(data) == len(shown):
        return sum(_hidden(*pair) for pair in zip(data, shown, strict=True))
    return int(data != shown)

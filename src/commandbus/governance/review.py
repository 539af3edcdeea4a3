"""Reading what a decision is about: children with their payloads, edits, and what waits."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, LiteralString

import orjson

from commandbus.database.store import Store
from commandbus.governance.model import BatchTicket, ChildStatus, Edit, ReviewedChild, Undecided
from commandbus.paging import Page, page_of, position_of, read_key, read_number
from commandbus.privacy.redaction import redact_value
from commandbus.privacy.values import MASK
from commandbus.troubleshooting.edits import difference

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

_CHILDREN: LiteralString = "select * from {schema}.review_children(%s, %s, %s, %s, %s)"
_UNDECIDED: LiteralString = (
    "select * from {schema}.page_undecided(cast(%s as text[]), %s, cast(%s as timestamptz),"
    " cast(%s as uuid), %s)"
)


async def reviewed_children(
    store: Store,
    ticket: BatchTicket,
    marked: Collection[str],
    *,
    only_edits: bool,
    limit: int,
    cursor: str | None,
) -> Page[ReviewedChild]:
    """The children of a ticket in the order of the request, secrets masked."""
    bound = ("review", ticket.ticket_id, only_edits)
    after = position_of(cursor, bound, read_number) or 0

    def child_of(*row: Any) -> ReviewedChild:
        sequence_no, command_id, _, status, digest, data, is_edited, edit_data, *edit = row
        before = None if data is None else orjson.loads(data)
        shown, masked = _masked(before, marked)
        return ReviewedChild(
            command_id, sequence_no, ChildStatus(status), digest, shown, masked, is_edited,
            None if edit_data is None else _edit_of(before, edit_data, marked, edit),
        )  # fmt: skip

    params = (ticket.domain, ticket.ticket_id, only_edits, after, limit + 1)
    found = await store.gateway.rows(_CHILDREN, params, into=child_of, domain=ticket.domain)
    return page_of(found, limit, bound, lambda child: [child.sequence_no])


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


def _edit_of(before: Any, data: str, marked: Collection[str], rest: list[Any]) -> Edit:
    digest, editor, created_at, expires_at, changes = rest
    after = orjson.loads(data)
    shown, masked = _masked(after, marked)
    if "paths" in changes:  # of a bulk operation, which keeps no values
        changes = {**_visible(difference(before, after, marked)), **changes}
    return Edit(editor, created_at, expires_at, digest, changes, shown, masked)


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
    shown = None if data is None else redact_value(data, marked=marked)
    return shown, _hidden(data, shown)


def _hidden(data: Any, shown: Any) -> int:
    if isinstance(data, dict) and isinstance(shown, dict) and data.keys() == shown.keys():
        return sum(_hidden(data[key], shown[key]) for key in data)
    if isinstance(data, list) and isinstance(shown, list) and len(data) == len(shown):
        return sum(_hidden(*pair) for pair in zip(data, shown, strict=True))
    return int(data != shown)

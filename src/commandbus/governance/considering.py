"""Considering a decision: what was decided before, who has looked, and what would change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.errors import DatabaseUnavailableError, InvalidOperationError
from commandbus.governance.deciding import Among, Deciding, present
from commandbus.governance.model import BatchTicket, Review, Undecided
from commandbus.governance.review import reviewed_children
from commandbus.governance.tickets import page_tickets
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_payload, redact_text
from commandbus.troubleshooting.edits import difference

#: Earlier tickets that are looked through, and of them those that are shown.
MAX_EARLIER, SHOWN_EARLIER = 50, 10
#: Items of one page.
MAX_ITEMS = 200
#: Seconds that a preview may take.
PREVIEW_SECONDS = 10.0

_LOOK: LiteralString = "select {schema}.look_at_ticket(%s, %s, cast(%s as text))"
_LOOKS: LiteralString = (
    "select l.user_id, l.digest, l.first_at, l.last_at from {schema}.command_bus_look l"
    " where l.batch_id = %s order by l.first_at, l.user_id limit 100"
)
_REJECTED: LiteralString = (
    "select b.batch_id from {schema}.command_bus_batch b"
    " where b.batch_id = any(cast(%s as uuid[])) and b.decision = 'reject'"
)
_CHILDREN: LiteralString = (
    "select r.sequence_no, r.data from {schema}.review_children(%s, %s, false, %s, %s) r"
)


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody who may decide has seen what a ticket consists of."""

    user_id: str
    #: Of what was seen.
    digest: str | None
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request of the same user and type that was rejected last, and what differs from it."""

    ticket: BatchTicket
    #: By the number of the item, masked; None: the payloads of that request are no longer kept.
    changes: dict[int, dict[str, Any]] | None
    #: How many items it had.
    child_count: int


@dataclass(frozen=True, slots=True)
class Consideration:
    """What an approver should know beside the items."""

    ticket: BatchTicket
    description: str
    #: Its type is marked so: ask for the number of items to be typed.
    is_dangerous: bool
    #: Its type can say what each item would change.
    has_preview: bool
    looks: tuple[Look, ...]
    #: Decided tickets of the same type, newest first.
    earlier: tuple[BatchTicket, ...]
    rejected: Rejected | None
    #: Why this caller cannot decide; None: they can.
    why_not: str | None


@dataclass(frozen=True, slots=True)
class ItemChange:
    """What one item would change, secrets masked; `problem`: it cannot be told, or not be done."""

    sequence_no: int
    before: Any
    after: Any
    problem: str | None = None


class Considering(Deciding):
    """Reads for those who decide."""

    async def review(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        limit: int = 200,
        cursor: str | None = None,
        among: Among = None,
    ) -> Review:
        """What a decision is about: the ticket, its children, their payloads with secrets masked.

        Callers with the scope `approve` see what waits for a decision: the whole batch, or the
        children whose edits wait. Everything else needs the scope `read-payload`. That somebody
        who may decide has looked is kept with the ticket, see `consider`.
        """
        found = await super().review(caller, ticket_id, limit=limit, cursor=cursor, among=among)
        ticket = found.ticket
        if (
            ticket.is_undecided
            and caller.may(Scope.APPROVE)
            and caller.user_id != ticket.created_by
        ):
            params = (ticket.ticket_id, caller.user_id, ticket.content_digest)
            await self._store.gateway.rows(_LOOK, params)
        return found

    async def consider(self, caller: Caller, ticket_id: UUID) -> Consideration:
        """What was decided before, who has looked, and whether the caller can decide."""
        demand(caller, Scope.APPROVE, "considering a decision")
        ticket = present(await self._visible(caller, ticket_id), ticket_id)
        declared = self.types.get(ticket.batch_type)
        earlier = await self._earlier(ticket, None)
        looks = await self._store.gateway.rows(_LOOKS, (ticket.ticket_id,), into=Look)
        return Consideration(
            ticket=ticket,
            description="" if declared is None else declared.description,
            is_dangerous=declared is not None and declared.is_dangerous,
            has_preview=declared is not None and declared.preview is not None,
            looks=tuple(looks),
            earlier=tuple(each for each in earlier if each.decided_at is not None)[:SHOWN_EARLIER],
            rejected=await self._rejected(ticket),
            why_not=self._why_not(caller, ticket),
        )

    async def preview(
        self, caller: Caller, ticket_id: UUID, *, after: int = 0, limit: int = MAX_ITEMS
    ) -> list[ItemChange]:
        """What each item of a ticket that waits would change, as its batch type says; masked.

        The hook of the type runs in a read-only transaction. `after`: the number of an item.
        """
        demand(caller, Scope.APPROVE, "previewing a batch")
        check_page(limit)
        ticket = present(await self._visible(caller, ticket_id), ticket_id)
        declared = self.types.get(ticket.batch_type)
        if declared is None or declared.preview is None:
            raise InvalidOperationError(f"{ticket.batch_type} cannot say what it would change")
        if not ticket.is_undecided:
            raise InvalidOperationError(f"batch {ticket.ticket_id} does not wait for a decision")
        marked = await self._secret_keys(ticket)
        async with self._store.gateway.snapshot() as session:
            params = (ticket.domain, ticket.ticket_id, after, min(limit, MAX_ITEMS))
            rows = await session.rows(_CHILDREN, params, domain=ticket.domain)
            items = [{} if data is None else orjson.loads(data) for _, data in rows]
            try:
                async with asyncio.timeout(PREVIEW_SECONDS):
                    told = list(await declared.preview(session.conn, items))
            except TimeoutError:
                raise DatabaseUnavailableError(
                    f"the preview of {declared.name} took more than {PREVIEW_SECONDS:g} s"
                ) from None
        if len(told) != len(items):
            raise InvalidOperationError(
                f"the preview of {declared.name} answered {len(told)} of {len(items)} items"
            )
        numbers = [number for number, _ in rows]
        return [_shown(number, each, marked) for number, each in zip(numbers, told, strict=True)]

    def why_not_decide(self, caller: Caller, waiting: Undecided) -> str | None:
        """Why this caller cannot decide about what waits; None: they can. Reads nothing."""
        if waiting.editor == caller.user_id:
            return "you proposed this edit; somebody else must decide"
        if waiting.created_by == caller.user_id and not self._self_approval:
            return "you submitted it; somebody else must decide"
        return None

    async def _earlier(self, ticket: BatchTicket, owner: str | None) -> Sequence[BatchTicket]:
        page = await page_tickets(
            self._store.gateway, owner, frozenset({ticket.domain}), frozenset({ticket.batch_type}),
            None, limit=MAX_EARLIER, cursor=None,
        )  # fmt: skip
        return [each for each in page.items if each.created_at < ticket.created_at]

    async def _rejected(self, ticket: BatchTicket) -> Rejected | None:
        before = await self._earlier(ticket, ticket.created_by)
        ids = [each.ticket_id for each in before]
        found = {row[0] for row in await self._store.gateway.rows(_REJECTED, (ids,))}
        last = next((each for each in before if each.ticket_id in found), None)
        if last is None:
            return None
        marked = await self._secret_keys(ticket)
        options: Any = {"only_edits": False, "limit": MAX_ITEMS, "cursor": None}
        old = await reviewed_children(self._store, last, marked, **options)
        new = await reviewed_children(self._store, ticket, marked, **options)
        if any(child.payload is None for child in old.items):
            return Rejected(last, None, last.child_count)
        payloads = {child.sequence_no: child.payload for child in old.items}
        changes = {
            child.sequence_no: difference(payloads.get(child.sequence_no), child.payload, marked)
            for child in new.items
        }
        return Rejected(last, {n: each for n, each in changes.items() if each}, last.child_count)

    def _why_not(self, caller: Caller, ticket: BatchTicket) -> str | None:
        if not ticket.is_undecided:
            return f"it is {ticket.status}, and does not wait for a decision"
        if ticket.created_by == caller.user_id and not self._self_approval:
            return "you submitted it; somebody else must decide"
        return None


def _shown(number: int, told: Any, marked: frozenset[str]) -> ItemChange:
    """What the hook said of one item: a mapping with before and after, or a text: the problem."""
    if isinstance(told, Mapping):
        before, after = (redact_payload(told.get(name), marked) for name in ("before", "after"))
        return ItemChange(number, before, after)
    return ItemChange(number, None, None, redact_text(str(told)))

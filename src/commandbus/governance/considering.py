"""Considering a decision: what was decided before, who has looked, and what would change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

import orjson

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible
from commandbus.database import encoding
from commandbus.errors import (
    DatabaseUnavailableError,
    InvalidOperationError,
    TicketNotFoundError,
)
from commandbus.governance.deciding import Among, Deciding, present
from commandbus.governance.model import BatchTicket, LimitState, Review, Undecided
from commandbus.governance.tickets import limits_of, tickets_by_id
from commandbus.governance.types import BatchType
from commandbus.names import check_uuid
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_payload, redact_text
from commandbus.troubleshooting.edits import difference

if TYPE_CHECKING:
    from commandbus.database.gateway import Session

#: Earlier tickets that are looked through, and of them those that are shown.
MAX_EARLIER, SHOWN_EARLIER = 50, 10
#: Items of one page.
MAX_ITEMS = 200
#: Seconds that a preview may take.
PREVIEW_SECONDS = 10.0

_LOOK: LiteralString = "select {schema}.look_at_ticket(%s, %s, cast(%s as text))"
_ABOUT: LiteralString = "select * from {schema}.consider_ticket(%s, cast(%s as jsonb), %s, %s)"
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
    #: How full the limits of its owner are.
    limits: tuple[LimitState, ...] = ()


@dataclass(frozen=True, slots=True)
class About:
    """A row of consider_ticket."""

    command_type: str
    secret_keys: list[str]
    looks: list[dict[str, Any]]
    limits: list[dict[str, Any]]
    earlier: list[UUID]
    rejected: UUID | None
    rejected_items: list[tuple[int, str | None]] | None
    items: list[tuple[int, str | None]] | None


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
        await self._look(caller, found.ticket)
        return found

    async def _look(self, caller: Caller, ticket: BatchTicket) -> None:
        """Keep that somebody who may decide has looked."""
        if (
            ticket.is_undecided
            and caller.may(Scope.APPROVE)
            and caller.user_id != ticket.created_by
        ):
            params = (ticket.ticket_id, caller.user_id, ticket.content_digest)
            await self._store.gateway.rows(_LOOK, params)

    async def consider(self, caller: Caller, ticket_id: UUID) -> Consideration:
        """What was decided before, who has looked, and whether the caller can decide."""
        return (await self._considered(caller, ticket_id))[0]

    async def _considered(
        self, caller: Caller, ticket_id: UUID
    ) -> tuple[Consideration, frozenset[str]]:
        """The same, and the keys of its payloads that are secret."""
        demand(caller, Scope.APPROVE, "considering a decision")
        wanted = check_uuid(ticket_id, "ticket_id")
        params = (wanted, encoding.dump(self._defaults), MAX_EARLIER, MAX_ITEMS)
        gateway = self._store.gateway
        about = await gateway.row(_ABOUT, params, into=About)
        if about is None:
            raise TicketNotFoundError(wanted)
        ids = [wanted, *about.earlier[:SHOWN_EARLIER], *filter(None, [about.rejected])]
        found = {each.ticket_id: each for each in await tickets_by_id(gateway, ids)}
        ticket = found.get(wanted)
        if ticket is None or not is_visible(caller, ticket):
            raise TicketNotFoundError(wanted)
        declared = self.types.get(ticket.batch_type)
        marked = self._marked(ticket, about.command_type, about.secret_keys)
        # A ticket that went meanwhile is left out.
        earlier = (found.get(each) for each in about.earlier[:SHOWN_EARLIER])
        rejected = None if about.rejected is None else found.get(about.rejected)
        told = Consideration(
            ticket=ticket,
            description="" if declared is None else declared.description,
            is_dangerous=declared is not None and declared.is_dangerous,
            has_preview=declared is not None and declared.preview is not None,
            looks=tuple(_look_of(**each) for each in about.looks),
            earlier=tuple(each for each in earlier if each is not None),
            rejected=None if rejected is None else _compared(rejected, about, marked),
            why_not=self._why_not(caller, ticket),
            limits=limits_of(about.limits),
        )
        return told, marked

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
            return await previewed(session, declared, rows, marked)

    def why_not_decide(self, caller: Caller, waiting: Undecided) -> str | None:
        """Why this caller cannot decide about what waits; None: they can. Reads nothing."""
        if waiting.editor == caller.user_id:
            return "you proposed this edit; somebody else must decide"
        if waiting.created_by == caller.user_id and not self._self_approval:
            return "you submitted it; somebody else must decide"
        return None

    def _why_not(self, caller: Caller, ticket: BatchTicket) -> str | None:
        if not ticket.is_undecided:
            return f"it is {ticket.status}, and does not wait for a decision"
        if ticket.created_by == caller.user_id and not self._self_approval:
            return "you submitted it; somebody else must decide"
        return None


async def previewed(
    session: Session,
    declared: BatchType,
    rows: Sequence[tuple[int, str | None]],
    marked: frozenset[str],
) -> list[ItemChange]:
    """What the hook of a type says of these items, [number, payload], in a read-only session."""
    if declared.preview is None:
        return []
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
    return [_shown(number, each, marked) for (number, _), each in zip(rows, told, strict=True)]


def _look_of(user_id: str, digest: str | None, first_at: str, last_at: str) -> Look:
    return Look(user_id, digest, datetime.fromisoformat(first_at), datetime.fromisoformat(last_at))


def _compared(before: BatchTicket, about: About, marked: frozenset[str]) -> Rejected:
    """What differs from a request that was rejected, item by item."""
    old = about.rejected_items or []
    if any(data is None for _, data in old):
        return Rejected(before, None, before.child_count)
    payloads = {number: _masked(data, marked) for number, data in old}
    changes = {
        number: difference(payloads.get(number), _masked(data, marked), marked)
        for number, data in about.items or []
    }
    return Rejected(before, {n: each for n, each in changes.items() if each}, before.child_count)


def _masked(data: str | None, marked: frozenset[str]) -> Any:
    return None if data is None else redact_payload(orjson.loads(data), marked)


def _shown(number: int, told: Any, marked: frozenset[str]) -> ItemChange:
    """What the hook said of one item: a mapping with before and after, or a text: the problem."""
    if isinstance(told, Mapping):
        before, after = (redact_payload(told.get(name), marked) for name in ("before", "after"))
        return ItemChange(number, before, after)
    return ItemChange(number, None, None, redact_text(str(told)))

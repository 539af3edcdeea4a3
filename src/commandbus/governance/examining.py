"""Examining: the whole page before a decision, in four statements however much it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.errors import DatabaseUnavailableError, InvalidOperationError
from commandbus.governance.considering import (
    PREVIEW_SECONDS,
    Consideration,
    Considering,
    ItemChange,
    previewed,
)
from commandbus.governance.deciding import may_review, present, sees_only_edits
from commandbus.governance.model import BatchTicket, Review
from commandbus.governance.review import StoredChild, children_of, review_of
from commandbus.paging import check_page


@dataclass(frozen=True, slots=True)
class Examination:
    """A ticket, and all of it that its viewer may see."""

    ticket: BatchTicket
    #: For those who may decide.
    consideration: Consideration | None
    #: A page of its items; None: the viewer may not see payloads.
    review: Review | None
    #: What each of these items would change, if its type can tell.
    changes: tuple[ItemChange, ...] = ()
    #: Why it could not.
    preview_problem: str = ""


class Examining(Considering):
    """What `consider`, `review` and `preview` tell, for one page."""

    async def examine(
        self,
        caller: Caller,
        ticket_id: UUID,
        *,
        limit: int = 100,
        cursor: str | None = None,
        preview_seconds: float = PREVIEW_SECONDS,
    ) -> Examination:
        """All that the caller may see of a ticket; a preview that is late or fails is left out."""
        check_page(limit)
        considered, marked = None, None
        if caller.may(Scope.APPROVE):
            considered, marked = await self._considered(caller, ticket_id)
            ticket = considered.ticket
        else:
            demand(caller, Scope.READ, "looking at a batch")
            ticket = present(await self._visible(caller, ticket_id), ticket_id)
        if not may_review(caller, ticket):
            return Examination(ticket, considered, None)
        if marked is None:
            marked = await self._secret_keys(ticket)
        only_edits = sees_only_edits(caller, ticket)
        page = await children_of(
            self._store, ticket, only_edits=only_edits, limit=limit, cursor=cursor
        )
        await self._look(caller, ticket)
        changes: tuple[ItemChange, ...] = ()
        problem = ""
        if considered is not None and considered.has_preview and ticket.is_undecided:
            try:
                async with asyncio.timeout(preview_seconds):
                    changes = await self._previewed(ticket, page.items, marked)
            except (TimeoutError, DatabaseUnavailableError):
                problem = "it did not answer in time"
            except InvalidOperationError as error:
                problem = str(error)
        return Examination(ticket, considered, review_of(ticket, page, marked), changes, problem)

    async def _previewed(
        self, ticket: BatchTicket, children: Sequence[StoredChild], marked: frozenset[str]
    ) -> tuple[ItemChange, ...]:
        declared = self.types.get(ticket.batch_type)
        if declared is None or not children:
            return ()
        rows = [(each.sequence_no, each.data) for each in children]
        async with self._store.gateway.snapshot() as session:
            return tuple(await previewed(session, declared, rows, marked))

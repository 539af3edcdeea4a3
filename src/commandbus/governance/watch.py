"""Waiting for a change of a ticket: one loop per process asks for all tickets that are waited for.

A batch that ends notifies; what happens before that is found by looking, at first quickly. So a
hundred waiting callers cost one small query per look, not a hundred.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from uuid import UUID

from commandbus.database.store import Listener
from commandbus.governance.model import BatchTicket, TicketStatus
from commandbus.loops import Watcher
from commandbus.names import batches_channel
from commandbus.store.governing import GovernanceStore

#: First and longest wait between two looks, in seconds.
POLL_SECONDS = (0.02, 0.5)

#: Not yet ended: something is still pending.
OPEN = frozenset({TicketStatus.PENDING_APPROVAL, TicketStatus.IN_PROGRESS})


def version(ticket: BatchTicket) -> str:
    """A text that is another one whenever anything that is shown of the ticket has changed."""
    # The same instant must give the same text, whatever zone the session was in.
    values = [
        value.astimezone(UTC) if isinstance(value, datetime) else value for value in astuple(ticket)
    ]
    return hashlib.sha256(repr(values).encode()).hexdigest()[:20]


@dataclass(eq=False, slots=True)
class _Waiter:
    seen: str | None
    found: asyncio.Future[BatchTicket | None]

    def is_answered_by(self, ticket: BatchTicket | None) -> bool:
        if ticket is None:
            return True
        return ticket.status not in OPEN if self.seen is None else version(ticket) != self.seen


class Watch(Watcher):
    """The tickets that somebody waits for, and the loop that looks at them."""

    name = "tickets"

    def __init__(self, store: GovernanceStore, listener: Callable[[], Listener]) -> None:
        super().__init__(listener, POLL_SECONDS)
        self._store = store
        self._waiters: dict[UUID, set[_Waiter]] = defaultdict(set)

    async def wait(
        self, ticket: BatchTicket, seen: str | None, timeout_seconds: float
    ) -> BatchTicket | None:
        """The ticket once it is another than `seen` (None: has ended), or None if it is gone.

        Raises TimeoutError if that does not come in time.
        """
        waiter = _Waiter(seen, asyncio.get_running_loop().create_future())
        if waiter.is_answered_by(ticket):
            return ticket
        self._waiters[ticket.ticket_id].add(waiter)
        self.watch(batches_channel(ticket.domain))
        try:
            return await asyncio.wait_for(waiter.found, timeout_seconds)
        finally:
            self._waiters[ticket.ticket_id].discard(waiter)
            if not self._waiters[ticket.ticket_id]:
                del self._waiters[ticket.ticket_id]

    async def step(self) -> float | None:
        """Look once at all of them."""
        ids = list(self._waiters)
        if not ids:
            return 60.0  # the next caller wakes the loop
        found = {each.ticket_id: each for each in await self._store.get_tickets(ids)}
        for ticket_id in ids:
            ticket = found.get(ticket_id)
            for waiter in list(self._waiters.get(ticket_id, ())):
                if waiter.is_answered_by(ticket) and not waiter.found.done():
                    waiter.found.set_result(ticket)
        return self._polls.next()

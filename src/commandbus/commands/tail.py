"""Following the audit: `bus.search.tail`. First the latest events, then new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from commandbus.models import AuditEvent

if TYPE_CHECKING:
    from commandbus.commands.search import Search

#: Numbers that each look goes back: events that had a number by then and were not committed.
OVERLAP = 1_000
_PAGE = 1_000


class AuditTail:
    """What is written to the audit, look by look.

    An event may be committed after one with a larger number. So each look begins some numbers
    before the end of the look before it, and passes over what was seen.
    """

    def __init__(
        self,
        search: Search,
        limit: int,
        criteria: dict[str, Any],
        cursor_after: Callable[[int], str],
    ) -> None:
        self._search = search
        self._limit = limit
        self._criteria = criteria
        #: The cursor that continues after an event, oldest first.
        self._cursor_after = cursor_after
        self._floor: int | None = None
        self._seen: set[int] = set()

    async def look(self) -> list[AuditEvent]:
        """What is new since the last look, oldest first; the first look has the latest events."""
        newest = (await self._search.audit(limit=1)).items
        floor = max(newest[0].audit_id - OVERLAP, 0) if newest else 0
        if self._floor is None:
            # The latest are read last: what is committed in between is new to the next look.
            self._seen = {event.audit_id for event in await self._after(floor)}
            found = (await self._search.audit(**self._criteria, limit=self._limit)).items[::-1]
        else:
            events = await self._after(self._floor)
            found = [event for event in events if event.audit_id not in self._seen]
        self._seen |= {event.audit_id for event in found}
        self._seen = {number for number in self._seen if number > floor}
        self._floor = floor
        return found

    async def _after(self, number: int) -> list[AuditEvent]:
        """All events with a larger number."""
        events: list[AuditEvent] = []
        cursor: str | None = self._cursor_after(number)
        while cursor is not None:
            page = await self._search.audit(
                **self._criteria, newest_first=False, limit=_PAGE, cursor=cursor
            )
            events += page.items
            cursor = page.next_cursor
        return events

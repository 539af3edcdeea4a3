"""Timetable: the commands of a domain that are due later, and those that wait for something else.

Part of `bus.search`. One call walks SCAN_LIMIT messages at most, as a search does.
"""

from __future__ import annotations

from typing import Any, LiteralString

from commandbus.database.rows import COMMAND_COLUMNS, command_of
from commandbus.database.store import Store
from commandbus.models import EVERYTHING, CommandMetadata, Viewer
from commandbus.names import check_domain, check_names
from commandbus.paging import Page, check_page, cursor_of, position_of, read_moment

#: Messages that one call looks at: those that are leased are due later too, and passed over.
SCAN_LIMIT = 10_000

_SCHEDULED: LiteralString = (
    "select s.place, s.msg_id, "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + " from {schema}.scheduled_commands(%s, cast(%s as text), cast(%s as timestamptz),"
    " cast(%s as bigint), %s, %s, cast(%s as text)) s"
    " cross join lateral (select (s.command).*) c order by s.place, s.msg_id"
)
_WAITING: LiteralString = (
    "select s.gate, s.seq, s.msg_id, "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + " from {schema}.waiting_commands(%s, cast(%s as text), cast(%s as text), cast(%s as bigint),"
    " cast(%s as bigint), %s, cast(%s as text)) s"
    " cross join lateral (select (s.command).*) c order by s.gate, s.seq, s.msg_id"
)


class Timetable:
    """What has not started yet, and why."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def scheduled(
        self,
        domain: str,
        *,
        command_type: str | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands that are due later, because they were delayed or back off; the next one first.

        Each has its `due_at`. A page may have few commands or none and still a cursor, if it
        looked at many that workers have leased.
        """
        check_names(check_domain(domain), command_type)
        check_page(limit)
        bound = ("scheduled", domain, command_type, viewer.owner)
        at, after = position_of(cursor, bound, _read_place) or (None, None)
        rows = await self._store.gateway.rows(
            _SCHEDULED, (domain, command_type, at, after, limit, SCAN_LIMIT, viewer.owner)
        )
        # A last row without a command says how far it looked before it stopped early.
        found = [command_of(*row[2:]) for row in rows if row[2] is not None]
        if len(rows) > len(found):
            return Page(found, cursor_of(list(rows[-1][:2]), bound), rows[-1][0])
        if len(found) < limit:
            return Page(found, None)
        return Page(found, cursor_of(list(rows[-1][:2]), bound))

    async def waiting(
        self,
        domain: str,
        *,
        command_type: str | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands that may not start though they are due, by what they wait for, first come first.

        Each says in `waiting_for` what that is: others of its ordering key, a limit, a pause of its
        type. What a pause of the whole domain holds up is not among them.
        """
        check_names(check_domain(domain), command_type)
        check_page(limit)
        bound = ("waiting", domain, command_type, viewer.owner)
        start = position_of(cursor, bound, _read_gate) or (None, None, None)
        rows = await self._store.gateway.rows(
            _WAITING, (domain, command_type, *start, limit, viewer.owner)
        )
        found = [command_of(*row[3:]) for row in rows]
        is_last = len(found) < limit
        return Page(found, None if is_last else cursor_of(list(rows[-1][:3]), bound))


def _read_place(at: str, msg_id: int) -> tuple[Any, int]:
    return read_moment(at), int(msg_id)


def _read_gate(gate: str, seq: int, msg_id: int) -> tuple[str, int, int]:
    return str(gate), int(seq), int(msg_id)

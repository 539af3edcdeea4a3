"""Search: `bus.search`. Commands and audit events by what is known of them, in pages.

No search reads a whole table: where no index helps, one call reads SCAN_LIMIT rows at most. Its
page then says in `searched_to` how far it looked, and the next call continues there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.commands.contents import Contents, SecretKeys
from commandbus.commands.people import People, audit_criteria, check_ids, check_range
from commandbus.commands.tail import AuditTail
from commandbus.commands.timetable import Timetable
from commandbus.database.rows import (
    AUDIT_COLUMNS,
    COMMAND_COLUMNS,
    COMMANDS_WHERE,
    HISTORY_COLUMNS,
    HISTORY_WHERE,
    command_of,
)
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, DuplicateCommandError
from commandbus.models import (
    EVERYTHING,
    AuditEvent,
    AuditEventType,
    CommandMetadata,
    CommandStatus,
    Progress,
    Viewer,
)
from commandbus.names import (
    check_choice_or_none,
    check_domain,
    check_names,
    check_reach,
    check_text,
    check_uuid,
)
from commandbus.paging import (
    EVERY_LIMIT,
    Page,
    check_page,
    cursor_of,
    every,
    position_of,
    read_moment,
    read_number,
)

#: Rows that one call of a search reads at most.
SCAN_LIMIT = 100_000

_CRITERIA: LiteralString = (
    "%s, %s, %s, cast(%s as uuid), cast(%s as uuid), cast(%s as timestamptz),"
    " cast(%s as timestamptz), cast(%s as uuid), %s, cast(%s as timestamptz),"
    " cast(%s as uuid), %s, %s, cast(%s as text)) s cross join lateral (select (s.command).*) c"
)
_SEARCH_COMMANDS: LiteralString = (
    "select s.place, " + COMMAND_COLUMNS + " from {schema}.search_commands(" + _CRITERIA  # noqa: S608  (literals only)
)
_SEARCH_HISTORY: LiteralString = (
    "select s.place, " + HISTORY_COLUMNS + " from {schema}.search_history(" + _CRITERIA  # noqa: S608  (literals only)
)
_LIST_AUDIT: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + AUDIT_COLUMNS
    + " from {schema}.list_audit(%s, cast(%s as uuid), cast(%s as uuid), %s,"
    " cast(%s as text[]), cast(%s as timestamptz), cast(%s as timestamptz),"
    " cast(%s as bigint), %s, %s, %s, cast(%s as text), %s, cast(%s as text[])) a"
)
_SEEN_COMMAND: LiteralString = (
    COMMANDS_WHERE + "c.domain = %s and c.command_id = %s"
    " and {schema}.visible_batch(%s, c.batch_id)"
)
_SEEN_MOVED: LiteralString = (
    HISTORY_WHERE + "c.domain = %s and c.command_id = %s and {schema}.visible_batch(%s, c.batch_id)"
)
_FAILURE_STACK: LiteralString = "select {schema}.failure_stack(%s, %s)"
_FIND_DOMAINS: LiteralString = "select * from {schema}.find_domains(%s)"


class Search(Contents, Timetable, People):
    """Searches that never read a whole table. `bus.search`; all but `progress` need PostgreSQL."""

    def __init__(self, store: Store, secret_keys: SecretKeys) -> None:
        super().__init__(store)
        self._secret_keys = secret_keys

    async def progress(self, domain: str, command_ids: Iterable[UUID]) -> dict[UUID, Progress]:
        """How far those of these commands have come that run, and whose handlers said so."""
        ids = [check_uuid(command_id) for command_id in command_ids]
        return await self._store.progress(check_domain(domain), ids)

    async def commands(  # noqa: PLR0913  (each is a criterion)
        self,
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        batch_id: UUID | None = None,
        domain: str | None = None,
        command_type: str | None = None,
        status: CommandStatus | None = None,
        error_code: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        history: bool = False,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands by what is known of them, newest first; `history`: those that were moved there.

        A page may have few commands or none and still a cursor, if the search stopped early. Parked
        commands are sorted by the time when they were parked.
        """
        state = check_choice_or_none(CommandStatus, status, "status")
        check_names(domain, command_type)
        check_ids(command_id=command_id, batch_id=batch_id, correlation_id=correlation_id)
        first, last = check_range(created_after=created_after, created_before=created_before)
        if error_code is not None:
            check_text(error_code, "error_code", max_length=200)
        check_page(limit)
        # In the order of search_commands.
        criteria = (
            domain, command_type, state, batch_id, correlation_id, first, last, command_id,
            error_code,
        )  # fmt: skip
        bound = (criteria, viewer.owner, *(["history"] if history else []))
        at, after = position_of(cursor, bound, _read_place) or (None, None)
        rows = await self._store.gateway.patient.rows(
            _SEARCH_HISTORY if history else _SEARCH_COMMANDS,
            (*criteria, at, after, limit, SCAN_LIMIT, viewer.owner),
        )
        # A last row without a command says how far the search looked before it stopped early.
        found = [command_of(*row[1:]) for row in rows if row[1] is not None]
        places = [[row[0], each.command_id] for row, each in zip(rows, found, strict=False)]
        if len(rows) > len(found):
            searched_to: datetime = rows[-1][0]
            cursor = cursor_of([searched_to, None], bound)
            return Page(found, cursor, searched_to, places, bound)
        more = cursor_of(places[-1], bound) if len(found) == limit else None
        return Page(found, more, None, places, bound)

    async def audit(  # noqa: PLR0913  (each is a criterion)
        self,
        *,
        command_id: UUID | None = None,
        batch_id: UUID | None = None,
        domain: str | None = None,
        domains: Collection[str] | None = None,
        actor: str | None = None,
        event_types: Iterable[AuditEventType] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = True,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AuditEvent]:
        """Audit events by what is known of them; `domains`: only of one of these."""
        check_page(limit)
        criteria = audit_criteria(
            command_id=command_id, batch_id=batch_id, domain=domain, actor=actor,
            event_types=event_types, since=since, until=until,
        )  # fmt: skip
        wanted = check_reach(None, domains)
        bound = (criteria, newest_first, viewer, *([] if wanted is None else [wanted]))
        start = position_of(cursor, bound, read_number)
        rows = await self._store.gateway.patient.rows(
            _LIST_AUDIT,
            (
                *criteria, start, newest_first, limit, SCAN_LIMIT, viewer.owner,
                not viewer.sees_access, wanted,
            ),
        )  # fmt: skip
        # A last row without a domain says how far the search looked before it stopped early.
        events = [AuditEvent(*row) for row in rows if row[1] is not None]
        places = [[each.audit_id] for each in events]
        if len(rows) > len(events):
            return Page(events, cursor_of([rows[-1][0]], bound), rows[-1][4], places, bound)
        more = cursor_of(places[-1], bound) if len(events) == limit else None
        return Page(events, more, None, places, bound)

    def every_command(self, **criteria: Any) -> AsyncGenerator[CommandMetadata]:
        """All commands that `commands` finds with these criteria, page after page.

        A command that changes meanwhile is as it was when its page was read.
        """
        return every(lambda cursor: self.commands(**criteria, limit=EVERY_LIMIT, cursor=cursor))

    def every_event(self, **criteria: Any) -> AsyncGenerator[AuditEvent]:
        """All events that `audit` finds with these criteria, page after page."""
        return every(lambda cursor: self.audit(**criteria, limit=EVERY_LIMIT, cursor=cursor))

    def tail(self, *, limit: int = 50, **criteria: Any) -> AuditTail:
        """The latest events, and new ones as they happen; `criteria` as for `audit`."""
        bound = (audit_criteria(**criteria), False, EVERYTHING)
        return AuditTail(self, limit, criteria, lambda number: cursor_of([number], bound))

    async def require(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING
    ) -> CommandMetadata:
        """One command; CommandNotFoundError if there is none that the viewer may see."""
        wanted = check_uuid(command_id)
        if viewer.owner is None:
            found = await self._store.get_command(check_domain(domain), wanted)
        else:
            params = (check_domain(domain), wanted, viewer.owner)
            found = await self._store.gateway.row(_SEEN_COMMAND, params, into=command_of)
            if found is None:
                found = await self._store.gateway.row(_SEEN_MOVED, params, into=command_of)
        if found is None:
            raise CommandNotFoundError(domain, wanted)
        return found

    async def domains(self, command_id: UUID) -> list[str]:
        """The domains that know this id."""
        rows = await self._store.gateway.rows(_FIND_DOMAINS, (check_uuid(command_id),))
        return [row[0] for row in rows]

    async def stack(self, domain: str, command_id: UUID) -> dict[str, Any] | None:
        """Where in the code the last failure of a command was raised; None if code did not."""
        params = (check_domain(domain), check_uuid(command_id))
        found: dict[str, Any] | None = await self._store.gateway.value(_FAILURE_STACK, params)
        return found

    async def original_of_repeat(
        self, domain: str, command_type: str, command_id: UUID, data: Mapping[str, Any]
    ) -> CommandMetadata:
        """The command that was sent before under this id, if it is the same one.

        For callers that repeat a request because its response was lost. Another type or another
        payload raises DuplicateCommandError. The payload of a command that has ended may be gone;
        then the type alone must match.
        """
        wanted = check_uuid(command_id)
        found = await self._store.get_command(check_domain(domain), wanted)
        if found is None or found.command_type != command_type:
            raise DuplicateCommandError(domain, [wanted])
        payload = await self._store.get_payload(domain, wanted)
        if payload is not None and orjson.loads(payload) != orjson.loads(orjson.dumps(data)):
            raise DuplicateCommandError(domain, [wanted])
        return found


def _read_place(at: str, command_id: str | None) -> tuple[datetime, UUID | None]:
    return read_moment(at), None if command_id is None else UUID(command_id)

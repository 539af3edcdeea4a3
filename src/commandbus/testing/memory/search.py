# ruff: noqa: D102  (each verb is documented once, in store/searching.py)
"""Searching in memory: what sql/functions/search.sql answers. A dictionary needs no bounds."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from commandbus.errors import CommandNotFoundError
from commandbus.models import AuditEvent, AuditEventType, CommandStatus
from commandbus.store.searching import (
    SCAN_LIMIT,
    AuditSearch,
    CommandSearch,
    FoundCommands,
    FoundEvents,
    Place,
)
from commandbus.testing.memory.engine import MemoryEngine
from commandbus.testing.memory.reads import matches
from commandbus.testing.memory.tables import CommandRow, State


class MemorySearch(MemoryEngine):
    """Implements commandbus.store.searching.SearchingStore."""

    async def search_commands(
        self,
        criteria: CommandSearch,
        *,
        start: Place | None,
        limit: int,
        scan: int = SCAN_LIMIT,  # noqa: ARG002
    ) -> FoundCommands:
        return self._read(search_commands, criteria, start, limit)

    async def list_audit(
        self,
        criteria: AuditSearch,
        *,
        start: int | None,
        newest_first: bool,
        limit: int,
        scan: int = SCAN_LIMIT,  # noqa: ARG002
    ) -> FoundEvents:
        return self._read(list_audit, criteria, start, newest_first, limit)

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        await self._run(add_note, domain, command_id, text, actor)

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        def declare(state: State) -> None:
            for kind, names in keys.items():
                known = state.secret_keys.get((domain, kind), frozenset())
                state.secret_keys[domain, kind] = known | frozenset(names)

        await self._run(declare)

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        return self._read(lambda s: s.secret_keys.get((domain, command_type), frozenset()))


def search_commands(
    state: State, criteria: CommandSearch, start: Place | None, limit: int
) -> FoundCommands:
    """Commands, newest first; those in troubleshooting by when they were parked."""

    def place_of(row: CommandRow) -> datetime:
        if criteria.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
            return state.parked[row.key].parked_at
        return row.created_at

    def is_beyond(row: CommandRow) -> bool:
        if start is None or place_of(row) < start.at:
            return True
        is_same = place_of(row) == start.at and start.command_id is not None
        return is_same and row.command_id > start.command_id  # type: ignore[operator]

    found = [
        row
        for row in state.commands.values()
        if matches(row, criteria)
        and criteria.command_id in {None, row.command_id}
        and criteria.error_code in {None, row.last_error_code}
        and is_beyond(row)
    ]
    found.sort(key=lambda row: row.command_id)
    found.sort(key=place_of, reverse=True)  # and, among equals, as before
    page = found[:limit]
    last = Place(place_of(page[-1]), page[-1].command_id) if len(page) == limit else None
    return FoundCommands([row.metadata() for row in page], last)


def list_audit(
    state: State, criteria: AuditSearch, start: int | None, newest_first: bool, limit: int
) -> FoundEvents:
    """Events in the order of writing, or the other way round."""

    def is_wanted(event: AuditEvent) -> bool:
        wanted = (
            (criteria.domain, event.domain),
            (criteria.command_id, event.command_id),
            (criteria.batch_id, event.batch_id),
            (criteria.actor, event.actor),
        )
        is_beyond = start is None or (
            event.audit_id < start if newest_first else event.audit_id > start
        )
        return (
            all(want is None or want == has for want, has in wanted)
            and is_beyond
            and (criteria.event_types is None or event.event_type in criteria.event_types)
            and (criteria.since is None or event.ts >= criteria.since)
            and (criteria.until is None or event.ts < criteria.until)
        )

    events = [event for event in state.audit if is_wanted(event)]
    if newest_first:
        events.reverse()
    page = [replace(e, details=copy.deepcopy(e.details)) for e in events[:limit]]
    return FoundEvents(page, page[-1].audit_id if len(page) == limit else None)


def add_note(state: State, domain: str, command_id: UUID, text: str, actor: str | None) -> None:
    """Put a remark into the audit of a command."""
    row = state.commands.get((domain, command_id))
    if row is None:
        raise CommandNotFoundError(domain, command_id)
    state.record(row, AuditEventType.NOTE, state.clock.now(), {"text": text}, actor)

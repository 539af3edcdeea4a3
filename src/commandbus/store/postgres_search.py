"""Searching on PostgreSQL: each verb is one statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.gateway import Row
from commandbus.models import AuditEvent
from commandbus.store.postgres_batches import metadata_of
from commandbus.store.searching import (
    SCAN_LIMIT,
    AuditSearch,
    CommandSearch,
    FoundCommands,
    FoundEvents,
    Place,
)


class PostgresSearch(ABC):
    """Implements commandbus.store.searching.SearchingStore."""

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    async def search_commands(
        self,
        criteria: CommandSearch,
        *,
        start: Place | None,
        limit: int,
        scan: int = SCAN_LIMIT,
    ) -> FoundCommands:
        status = None if criteria.status is None else criteria.status.value
        rows = await self._call(
            "search",
            (
                criteria.domain, criteria.command_type, status, criteria.batch_id,
                criteria.correlation_id, criteria.created_after, criteria.created_before,
                criteria.command_id, criteria.error_code,
                None if start is None else start.at,
                None if start is None else start.command_id, limit, scan,
            ),
        )  # fmt: skip
        # A last row without a command says how far a bounded search came.
        found = [metadata_of(row[1:]) for row in rows if row[1] is not None]
        if len(rows) > len(found):
            return FoundCommands(found, Place(rows[-1][0]))
        is_full = len(found) == limit
        return FoundCommands(found, Place(rows[-1][0], found[-1].command_id) if is_full else None)

    async def list_audit(
        self,
        criteria: AuditSearch,
        *,
        start: int | None,
        newest_first: bool,
        limit: int,
        scan: int = SCAN_LIMIT,
    ) -> FoundEvents:
        kinds = None if criteria.event_types is None else list(criteria.event_types)
        rows = await self._call(
            "list_audit",
            (
                criteria.domain, criteria.command_id, criteria.batch_id, criteria.actor, kinds,
                criteria.since, criteria.until, start, newest_first, limit, scan,
            ),
        )  # fmt: skip
        events = [AuditEvent(*row) for row in rows if row[1] is not None]
        if len(rows) > len(events):
            return FoundEvents(events, rows[-1][0], rows[-1][4])
        return FoundEvents(events, events[-1].audit_id if len(events) == limit else None)

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        await self._call("add_note", (domain, command_id, text, actor), domain=domain)

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        document = encoding.dump({kind: sorted(names) for kind, names in keys.items()})
        await self._call("declare_secrets", (domain, document))

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        rows = await self._call("secret_keys", (domain, command_type))
        return frozenset(row[0] for row in rows)

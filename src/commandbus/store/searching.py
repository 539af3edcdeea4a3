"""What services ask of a store to search, to read the audit, and to note: part of `Store`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from commandbus.models import AuditEvent, CommandMetadata, CommandStatus

#: Rows that one call of a search looks at, before it says how far it came.
SCAN_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class CommandFilter:
    """Which commands to list; None means any."""

    domain: str | None = None
    command_type: str | None = None
    status: CommandStatus | None = None
    batch_id: UUID | None = None
    correlation_id: UUID | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class CommandSearch(CommandFilter):
    """Which commands to search for; None means any."""

    command_id: UUID | None = None
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search stands: after this command, or, without an id, before this moment."""

    at: datetime
    command_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class FoundCommands:
    """One page of a search, and where to go on; None: this was all."""

    commands: list[CommandMetadata]
    next_place: Place | None


@dataclass(frozen=True, slots=True)
class AuditSearch:
    """Which events to list; None means any."""

    domain: str | None = None
    command_id: UUID | None = None
    batch_id: UUID | None = None
    actor: str | None = None
    event_types: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """One page of the audit, and after which event to go on; None: this was all.

    `searched_to` is there if the page is short because the search was bounded.
    """

    events: list[AuditEvent]
    next_id: int | None
    searched_to: datetime | None = None


class SearchingStore(Protocol):
    """The verbs of searching and noting."""

    async def search_commands(
        self,
        criteria: CommandSearch,
        *,
        start: Place | None,
        limit: int,
        scan: int = SCAN_LIMIT,
    ) -> FoundCommands:
        """Commands, newest first; those in troubleshooting by when they were parked."""

    async def list_audit(
        self,
        criteria: AuditSearch,
        *,
        start: int | None,
        newest_first: bool,
        limit: int,
        scan: int = SCAN_LIMIT,
    ) -> FoundEvents:
        """Events in the order of writing, or the other way round."""

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        """Put a remark into the audit of a command."""

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        """Remember, by command type, which keys of payloads must not be shown."""

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys that were declared for a command type."""

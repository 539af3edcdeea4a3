"""`bus.search` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.models import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime
    from typing import Any
    from uuid import UUID
    from commandbus.commands.contents import FormerPayload, ShownReply
    from commandbus.commands.people import Identified, PersonEvent
    from commandbus.commands.search import Search
    from commandbus.commands.tail import AuditTail
    from commandbus.models import (
        AuditEvent, AuditEventType, CommandMetadata, CommandStatus, Progress, Viewer,
    )
    from commandbus.paging import Page


class BlockingAuditTail(BlockingFacet["AuditTail"]):
    """What is written to the audit, look by look."""

    def look(self) -> list[AuditEvent]:
        """What is new since the last look, oldest first; the first look has the latest events."""
        return self._bridge.run(self._facet.look())


class BlockingSearch(BlockingFacet["Search"]):
    """Searches that never read a whole table. `bus.search`; all but `progress` need PostgreSQL."""

    def people(
        self, *, domains: Collection[str] | None = None, actor: str | None = None,
        event_types: Iterable[AuditEventType] | None = None, since: datetime | None = None,
        until: datetime | None = None, viewer: Viewer = EVERYTHING, limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PersonEvent]:
        """What people did, newest first: all events that name an actor, but sends."""
        return self._bridge.run(self._facet.people(
            domains=domains, actor=actor, event_types=event_types, since=since, until=until,
            viewer=viewer, limit=limit, cursor=cursor,
        ))

    def identify(
        self, some_id: UUID, *, domains: Collection[str] | None = None,
        viewer: Viewer = EVERYTHING,
    ) -> list[Identified]:
        """What this id is the id of, in these domains; nothing that the viewer may not see."""
        return self._bridge.run(self._facet.identify(some_id, domains=domains, viewer=viewer))

    def scheduled(
        self, domain: str, *, command_type: str | None = None, viewer: Viewer = EVERYTHING,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands that are due later, because they were delayed or back off; the next one
        first."""
        return self._bridge.run(self._facet.scheduled(
            domain, command_type=command_type, viewer=viewer, limit=limit, cursor=cursor,
        ))

    def waiting(
        self, domain: str, *, command_type: str | None = None, viewer: Viewer = EVERYTHING,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands that may not start though they are due, by what they wait for, first come
        first."""
        return self._bridge.run(self._facet.waiting(
            domain, command_type=command_type, viewer=viewer, limit=limit, cursor=cursor,
        ))

    def payload(self, domain: str, command_id: UUID) -> Any:
        """The payload of a command with its secrets masked; None if it is gone."""
        return self._bridge.run(self._facet.payload(domain, command_id))

    def former_payloads(self, domain: str, command_id: UUID) -> list[FormerPayload]:
        """What a command had before each edit, masked: the last 20, the newest first."""
        return self._bridge.run(self._facet.former_payloads(domain, command_id))

    def reply(self, domain: str, command_id: UUID) -> ShownReply:
        """Where the reply of a command is, and what it says while it is there. It is left
        there."""
        return self._bridge.run(self._facet.reply(domain, command_id))

    def meta(self, domain: str, command_id: UUID) -> dict[str, str] | None:
        """What travels with a command beside its payload; None if that is nothing, or gone."""
        return self._bridge.run(self._facet.meta(domain, command_id))

    def progress(self, domain: str, command_ids: Iterable[UUID]) -> dict[UUID, Progress]:
        """How far those of these commands have come that run, and whose handlers said so."""
        return self._bridge.run(self._facet.progress(domain, command_ids))

    def commands(
        self, *, command_id: UUID | None = None, correlation_id: UUID | None = None,
        batch_id: UUID | None = None, domain: str | None = None, command_type: str | None = None,
        status: CommandStatus | None = None, error_code: str | None = None,
        created_after: datetime | None = None, created_before: datetime | None = None,
        history: bool = False, viewer: Viewer = EVERYTHING, limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands by what is known of them, newest first; `history`: those that were moved
        there."""
        return self._bridge.run(self._facet.commands(
            command_id=command_id, correlation_id=correlation_id, batch_id=batch_id, domain=domain,
            command_type=command_type, status=status, error_code=error_code,
            created_after=created_after, created_before=created_before, history=history,
            viewer=viewer, limit=limit, cursor=cursor,
        ))

    def audit(
        self, *, command_id: UUID | None = None, batch_id: UUID | None = None,
        domain: str | None = None, domains: Collection[str] | None = None,
        actor: str | None = None, event_types: Iterable[AuditEventType] | None = None,
        since: datetime | None = None, until: datetime | None = None, newest_first: bool = True,
        viewer: Viewer = EVERYTHING, limit: int = 100, cursor: str | None = None,
    ) -> Page[AuditEvent]:
        """Audit events by what is known of them; `domains`: only of one of these."""
        return self._bridge.run(self._facet.audit(
            command_id=command_id, batch_id=batch_id, domain=domain, domains=domains, actor=actor,
            event_types=event_types, since=since, until=until, newest_first=newest_first,
            viewer=viewer, limit=limit, cursor=cursor,
        ))

    def every_command(self, **criteria: Any) -> Iterator[CommandMetadata]:
        """All commands that `commands` finds with these criteria, page after page."""
        return self._bridge.iterate(self._facet.every_command(**criteria))

    def every_event(self, **criteria: Any) -> Iterator[AuditEvent]:
        """All events that `audit` finds with these criteria, page after page."""
        return self._bridge.iterate(self._facet.every_event(**criteria))

    def tail(self, *, limit: int = 50, **criteria: Any) -> BlockingAuditTail:
        """The latest events, and new ones as they happen; `criteria` as for `audit`."""
        tail = self._facet.tail(limit=limit, **criteria)
        return BlockingAuditTail(self._bridge, lambda: tail)

    def require(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING,
    ) -> CommandMetadata:
        """One command; CommandNotFoundError if there is none that the viewer may see."""
        return self._bridge.run(self._facet.require(domain, command_id, viewer=viewer))

    def domains(self, command_id: UUID) -> list[str]:
        """The domains that know this id."""
        return self._bridge.run(self._facet.domains(command_id))

    def stack(self, domain: str, command_id: UUID) -> dict[str, Any] | None:
        """Where in the code the last failure of a command was raised; None if code did not."""
        return self._bridge.run(self._facet.stack(domain, command_id))

    def original_of_repeat(
        self, domain: str, command_type: str, command_id: UUID, data: Mapping[str, Any],
    ) -> CommandMetadata:
        """The command that was sent before under this id, if it is the same one."""
        return self._bridge.run(self._facet.original_of_repeat(
            domain, command_type, command_id, data,
        ))

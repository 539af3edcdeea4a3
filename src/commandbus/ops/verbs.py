"""The verbs of operators and readers as CommandBus shows them (document 004 §8.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from commandbus.commands.audit import Reading, check_status
from commandbus.commands.search import AuditPage, CommandPage, Searching
from commandbus.database.store import CommandFilter
from commandbus.models import AuditEvent, CommandMetadata, TroubleshootingItem
from commandbus.store.searching import AuditSearch, CommandSearch
from commandbus.troubleshooting.queue import Troubleshooting


class OperatorVerbs:
    """Part of CommandBus."""

    _troubleshooting: Troubleshooting
    _reading: Reading
    _searching: Searching

    async def list_troubleshooting(
        self,
        domain: str,
        *,
        type: str | None = None,  # noqa: A002  (the name is part of the contract, 004 §8.2)
        limit: int = 100,
        offset: int = 0,
        group: str | None = None,
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first, with its payload.

        `group`: only this failure group, by its whole fingerprint.
        """
        return await self._troubleshooting.list(
            domain, command_type=type, limit=limit, offset=offset, group=group
        )

    async def operator_retry(
        self,
        domain: str,
        command_id: UUID,
        *,
        operator: str | None = None,
        reset_attempts: bool = True,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a parked command again, with the same payload or with an edited one.

        The audit gets the difference, redacted; the old payload stays in PGMQ's archive. Fields of
        an edited payload that stand as they were shown, masked, keep their real values.
        """
        await self._troubleshooting.retry(
            domain, command_id, operator=operator, reset_attempts=reset_attempts, payload=payload
        )

    async def operator_cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None = None
    ) -> None:
        """End a parked command as CANCELED; its reply goes out."""
        await self._troubleshooting.cancel(domain, command_id, reason, operator=operator)

    async def operator_complete(
        self, domain: str, command_id: UUID, result_data: Any = None, *, operator: str | None = None
    ) -> None:
        """End a parked command as COMPLETED with this result; its reply goes out."""
        await self._troubleshooting.complete(domain, command_id, result_data, operator=operator)

    async def note(
        self, domain: str, command_id: UUID, text: str, *, operator: str | None = None
    ) -> None:
        """Put a remark into the audit of a command, in any state; nothing else changes."""
        await self._troubleshooting.note(domain, command_id, text, operator=operator)

    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""
        return await self._reading.command(domain, command_id)

    async def query_commands(
        self,
        *,
        domain: str | None = None,
        command_type: str | None = None,
        status: str | None = None,
        batch_id: UUID | None = None,
        correlation_id: UUID | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[CommandMetadata]:
        """Commands by what is known of them, newest first."""
        criteria = CommandFilter(
            domain, command_type, check_status(status), batch_id, correlation_id,
            created_after, created_before,
        )  # fmt: skip
        return await self._reading.commands(criteria, limit=limit, offset=offset)

    async def get_audit_trail(
        self, command_id: UUID, domain: str | None = None, *, limit: int = 1_000
    ) -> list[AuditEvent]:
        """The life of a command, oldest event first."""
        return await self._reading.trail(command_id, domain=domain, limit=limit)

    async def search_commands(  # noqa: PLR0913  (each is a criterion)
        self,
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        batch_id: UUID | None = None,
        domain: str | None = None,
        command_type: str | None = None,
        status: str | None = None,
        error_code: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> CommandPage:
        """Commands by what is known of them, newest first, page by page.

        Good for very large tables: what no index helps to find is searched for in steps, and a page
        says how far back it looked. Commands in troubleshooting come by when they were parked.
        """
        criteria = CommandSearch(
            domain, command_type, check_status(status), batch_id, correlation_id,
            created_after, created_before, command_id, error_code,
        )  # fmt: skip
        return await self._searching.commands(criteria, limit=limit, cursor=cursor)

    async def list_audit(
        self,
        *,
        command_id: UUID | None = None,
        batch_id: UUID | None = None,
        domain: str | None = None,
        actor: str | None = None,
        event_types: Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = True,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        """The audit by what is known of its events, page by page."""
        kinds = None if event_types is None else tuple(event_types)
        criteria = AuditSearch(domain, command_id, batch_id, actor, kinds, since, until)
        return await self._searching.audit(
            criteria, newest_first=newest_first, limit=limit, cursor=cursor
        )

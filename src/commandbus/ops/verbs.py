"""The verbs of operators and readers as CommandBus shows them (document 004 §8.2)."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from commandbus.models import AuditEvent, CommandMetadata, TroubleshootingItem
from commandbus.ops.audit import Reading, check_status
from commandbus.ops.troubleshooting import Troubleshooting
from commandbus.store.base import CommandFilter


class OperatorVerbs:
    """Part of CommandBus."""

    _troubleshooting: Troubleshooting
    _reading: Reading

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
    ) -> None:
        """Send a parked command again, with the same payload."""
        await self._troubleshooting.retry(
            domain, command_id, operator=operator, reset_attempts=reset_attempts
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

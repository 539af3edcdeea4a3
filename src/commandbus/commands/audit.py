"""Reading what is known of commands: the row, the listing, the trail."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from commandbus.database.store import CommandFilter, Store
from commandbus.errors import InvalidSettingError
from commandbus.models import AuditEvent, CommandMetadata, CommandStatus
from commandbus.names import check_command_type, check_domain, check_uuid
from commandbus.paging import check_page


def check_status(status: str | None) -> CommandStatus | None:
    """Return the status, or raise with the list of those there are."""
    try:
        return None if status is None else CommandStatus(status)
    except ValueError:
        names = ", ".join(CommandStatus)
        raise InvalidSettingError(f"no status {status!r}; use one of {names}") from None


class Reading:
    """Queries that change nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""
        return await self._store.get_command(check_domain(domain), check_uuid(command_id))

    async def commands(
        self, criteria: CommandFilter, *, limit: int, offset: int
    ) -> list[CommandMetadata]:
        """Commands, newest first."""
        if criteria.domain is not None:
            check_domain(criteria.domain)
        if criteria.command_type is not None:
            check_command_type(criteria.command_type)
        for name in ("batch_id", "correlation_id"):
            if getattr(criteria, name) is not None:
                check_uuid(getattr(criteria, name), name)
        for name in ("created_after", "created_before"):
            if not isinstance(getattr(criteria, name), datetime | None):
                raise InvalidSettingError(f"{name} must be a datetime, with a time zone")
        check_page(limit, offset)
        return await self._store.query_commands(criteria, limit=limit, offset=offset)

    async def trail(self, command_id: UUID, *, domain: str | None, limit: int) -> list[AuditEvent]:
        """The events of a command, oldest first."""
        if domain is not None:
            check_domain(domain)
        check_page(limit)
        return await self._store.get_audit_trail(check_uuid(command_id), domain=domain, limit=limit)

"""What the command core reads on PostgreSQL: commands, what is parked, batches, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID

from commandbus.database.gateway import Gateway
from commandbus.database.model import MarkedPayload
from commandbus.database.rows import (
    AUDIT_COLUMNS,
    BATCHES_WHERE,
    COMMAND_COLUMNS,
    COMMANDS_WHERE,
    HISTORY_WHERE,
    command_of,
    parked_item_of,
)
from commandbus.models import (
    AuditEvent,
    BatchMetadata,
    CommandMetadata,
    CommandStatus,
    Progress,
    TroubleshootingItem,
)

_GET_COMMAND: LiteralString = COMMANDS_WHERE + "c.domain = %s and c.command_id = %s"
_GET_MOVED: LiteralString = HISTORY_WHERE + "c.domain = %s and c.command_id = %s"
_PROGRESS: LiteralString = (
    "select command_id, fraction, message, at"
    " from {schema}.progress_of(cast(%s as text), cast(%s as uuid[]))"
)
_GET_PAYLOAD: LiteralString = "select {schema}.command_payload(%s, %s)"
_MARKED_PAYLOAD: LiteralString = "select * from {schema}.marked_payload(%s, %s)"
_GET_META: LiteralString = "select {schema}.command_meta(%s, %s)"
_LIST_TROUBLESHOOTING: LiteralString = (
    "select t.*, {schema}.failure_stack(t.domain, t.command_id)"
    " from {schema}.list_troubleshooting(%s, %s, %s, %s) t"
)
_AUDIT_TRAIL: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + AUDIT_COLUMNS
    + " from {schema}.command_bus_audit a where a.command_id = %s"
    " and (cast(%s as text) is null or a.domain = %s) order by a.ts, a.audit_id limit %s"
)
_MARKED_KEYS: LiteralString = (
    "select k.key from {schema}.command_bus_secret_key k"
    " where k.domain = %s and k.command_type = %s"
)
_GET_BATCH: LiteralString = BATCHES_WHERE + "b.domain = %s and b.batch_id = %s"
_LIST_BATCHES: LiteralString = (
    BATCHES_WHERE + "b.domain = %s and (cast(%s as text) is null or b.status = %s)"
    " order by b.created_at desc, b.batch_id limit %s offset %s"
)
_LIST_BATCH_COMMANDS: LiteralString = (
    COMMANDS_WHERE + "c.batch_id = %s and c.domain = %s"
    " and not exists (select from {schema}.command_bus_batch b"
    "                  where b.batch_id = %s and b.pruning_since is not null)"
    " and (cast(%s as text) is null or c.status = %s)"
    " order by c.sequence_no, c.created_at, c.command_id limit %s offset %s"
)
#: The same of a batch whose commands are in the history, or on their way there.
_LIST_MOVED: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + ", p.moved_at from {schema}.page_batch_commands("
    "%s, %s, %s, null, null, null, %s, 2147483647) p"
    " cross join lateral (select (p.command).*) c offset %s"
)
_CLOSED_BATCHES: LiteralString = (
    BATCHES_WHERE + "b.batch_id = any(%s) and b.completed_at is not null"
)


class PostgresReads:
    """The reading half of commandbus.database.store.Store."""

    gateway: Gateway

    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        found = await self.gateway.row(_GET_COMMAND, (domain, command_id), into=command_of)
        if found is None:
            found = await self.gateway.row(_GET_MOVED, (domain, command_id), into=command_of)
        return found

    async def progress(self, domain: str, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        rows = await self.gateway.rows(_PROGRESS, (domain, list(ids)))
        return {command_id: Progress(*told) for command_id, *told in rows}

    async def get_payload(self, domain: str, command_id: UUID) -> str | None:
        payload: str | None = await self.gateway.value(_GET_PAYLOAD, (domain, command_id))
        return payload

    async def marked_payload(self, domain: str, command_id: UUID) -> MarkedPayload | None:
        found = await self.gateway.rows(_MARKED_PAYLOAD, (domain, command_id))
        if not found:
            return None
        ((command_type, data, keys),) = found
        return MarkedPayload(command_type, data, frozenset(keys))

    async def get_meta(self, domain: str, command_id: UUID) -> str | None:
        meta: str | None = await self.gateway.value(_GET_META, (domain, command_id))
        return meta

    async def get_audit_trail(
        self, command_id: UUID, *, domain: str | None, limit: int
    ) -> list[AuditEvent]:
        params = (command_id, domain, domain, limit)
        return await self.gateway.rows(_AUDIT_TRAIL, params, into=AuditEvent)

    async def list_troubleshooting(
        self, domain: str, *, command_type: str | None, limit: int, offset: int
    ) -> list[TroubleshootingItem]:
        params = (domain, command_type, limit, offset)
        return await self.gateway.rows(
            _LIST_TROUBLESHOOTING, params, into=parked_item_of, domain=domain
        )

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        rows = await self.gateway.rows(_MARKED_KEYS, (domain, command_type))
        return frozenset(row[0] for row in rows)

    # -- batches

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        return await self.gateway.row(_GET_BATCH, (domain, batch_id), into=BatchMetadata)

    async def list_batches(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        params = (domain, status, status, limit, offset)
        return await self.gateway.rows(_LIST_BATCHES, params, into=BatchMetadata)

    async def list_batch_commands(
        self, domain: str, batch_id: UUID, *, status: CommandStatus | None, limit: int, offset: int
    ) -> list[CommandMetadata]:
        params = (batch_id, domain, batch_id, status, status, limit, offset)
        found = await self.gateway.rows(_LIST_BATCH_COMMANDS, params, into=command_of)
        if not found and (status is None or status.is_terminal):
            moved = (domain, batch_id, status, limit + offset, offset)
            found = await self.gateway.rows(_LIST_MOVED, moved, into=command_of)
        return found

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        return await self.gateway.rows(_CLOSED_BATCHES, (list(batch_ids),), into=BatchMetadata)

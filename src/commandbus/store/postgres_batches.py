"""The verbs of batches on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from commandbus.commands.payload import decode_payload
from commandbus.database import encoding
from commandbus.database.gateway import Row, Statement, run_on_foreign
from commandbus.database.sqlstate import translated
from commandbus.errors import DuplicateCommandError, InvalidPayloadError
from commandbus.models import (
    BatchMetadata,
    CommandMetadata,
    CommandStatus,
    NewBatch,
    NewCommand,
    ParkReason,
    TroubleshootingItem,
)


class PostgresBatches(ABC):
    """Implements the batches of commandbus.database.store.Store."""

    _sql: dict[str, Statement]

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    @abstractmethod
    async def ensure_domain(self, domain: str) -> None: ...

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        rows = await self._call("get_batch", (domain, batch_id))
        return BatchMetadata(*rows[0]) if rows else None

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> str | None:
        await self.ensure_domain(batch.domain)
        params = (
            batch.domain, batch.batch_id, encoding.sends(commands), batch.name,
            _text(batch.custom_data), batch.created_by, _text(batch.on_complete), batch.notifies,
        )  # fmt: skip
        if conn is None:
            raise_if_known(
                batch.domain, await self._call("create_batch", params, domain=batch.domain)
            )
            return None
        with translated(batch.domain):
            rows = await run_on_foreign(conn, self._sql["create_batch"], params)
            raise_if_known(batch.domain, rows)
            if not batch.notifies:
                return None
            transaction: str = (await run_on_foreign(conn, self._sql["transaction"], ()))[0][0]
            return transaction

    async def settled_batches(self, transactions: Mapping[UUID, str]) -> dict[UUID, bool]:
        params = (list(transactions), list(transactions.values()))
        return {row[0]: row[1] for row in await self._call("settled_batches", params)}

    async def list_batches(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        rows = await self._call("list_batches", (domain, status, status, limit, offset))
        return [BatchMetadata(*row) for row in rows]

    async def list_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        limit: int,
        offset: int,
    ) -> list[CommandMetadata]:
        wanted = None if status is None else status.value
        params = (batch_id, domain, wanted, wanted, limit, offset)
        return [metadata_of(row) for row in await self._call("list_batch_commands", params)]

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        rows = await self._call("cancel_batch", (domain, batch_id, reason, actor), domain=domain)
        return int(rows[0][0])

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        rows = await self._call("retry_batch", (domain, batch_id, actor), domain=domain)
        return int(rows[0][0])

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        rows = await self._call("closed_batches", (list(batch_ids),))
        return [BatchMetadata(*row) for row in rows]


def raise_if_known(domain: str, rows: list[Row]) -> None:
    """Refuse what offer_commands and create_batch did not create, because ids were known."""
    known = rows[0][0]
    if known:
        raise DuplicateCommandError(domain, [UUID(str(command_id)) for command_id in known])


def metadata_of(row: Row) -> CommandMetadata:
    """A row of COMMAND_COLUMNS."""
    values = cast("Any", (*row[:5], CommandStatus(row[5]), *row[6:]))
    return CommandMetadata(*values)


def parked_item_of(row: Row) -> TroubleshootingItem:
    """A row of list_troubleshooting."""
    try:
        data = None if row[14] is None else decode_payload(row[14])
    except InvalidPayloadError:
        data = None  # it may be the very reason why the command is here
    values = cast("Any", (*row[:3], ParkReason(row[3]), *row[4:14], data))
    return TroubleshootingItem(*values)


def _text(encoded: bytes | None) -> str | None:
    return None if encoded is None else encoded.decode()

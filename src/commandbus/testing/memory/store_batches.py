# ruff: noqa: D102  (each verb is documented once, in store/base.py)
"""The verbs of batches in memory; part of InMemoryStore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from commandbus.commands.payload import encode_json
from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus, NewBatch, NewCommand
from commandbus.testing.clock import FakeClock
from commandbus.testing.memory import batches
from commandbus.testing.memory.engine import MemoryEngine
from commandbus.testing.memory.sending import ensure_domain
from commandbus.testing.memory.tables import IdScope
from commandbus.testing.memory.transaction import MemoryConnection


class MemoryBatches(MemoryEngine):
    """Implements the batches of commandbus.database.store.Store."""

    def __init__(
        self, clock: FakeClock | None = None, *, command_id_scope: IdScope = "domain"
    ) -> None:
        super().__init__(clock, command_id_scope=command_id_scope)
        self._open: dict[str, MemoryConnection] = {}  # transactions that a batch depends on

    def add_batch(
        self,
        domain: str,
        batch_id: UUID | None = None,
        *,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
    ) -> UUID:
        """For tests: create an empty batch; commands join it with `send(…, batch_id=…)`."""
        new = NewBatch(
            batch_id=batch_id or uuid4(),
            domain=domain,
            name=name,
            custom_data=None
            if custom_data is None
            else encode_json(custom_data, what="custom_data"),
            created_by=None,
            on_complete=None,
            notifies=False,
        )
        self._commit(lambda state: batches.create_batch(state, new, ()))
        return new.batch_id

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> str | None:
        await self._run(ensure_domain, batch.domain)
        await self._run_on(conn, batches.create_batch, batch, commands)
        if not (batch.notifies and isinstance(conn, MemoryConnection)):
            return None
        self._open[conn.name] = conn
        return conn.name

    async def settled_batches(self, transactions: Mapping[UUID, str]) -> dict[UUID, bool]:
        ended = {name for name in transactions.values() if self._open[name].is_closed}
        for name in ended:
            del self._open[name]
        return {
            batch_id: self._read(batches.has_batch, batch_id)
            for batch_id, name in transactions.items()
            if name in ended
        }

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        return self._read(batches.get_batch, domain, batch_id)

    async def list_batches(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        return self._read(batches.list_batches, domain, status=status, limit=limit, offset=offset)

    async def list_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        limit: int,
        offset: int,
    ) -> list[CommandMetadata]:
        return self._read(
            batches.list_batch_commands,
            domain,
            batch_id,
            status=status,
            limit=limit,
            offset=offset,
        )

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        return await self._run(batches.cancel_batch, domain, batch_id, reason=reason, actor=actor)

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        return await self._run(batches.retry_batch, domain, batch_id, actor=actor)

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        return self._read(batches.closed_batches, batch_ids)

"""The verbs of loading on PostgreSQL, a part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.connections import Row
from commandbus.loads.model import LoadMetadata, LoadStart, LoadStatus, NewLoad, RowFormat
from commandbus.models import NewCommand


class PostgresLoading(ABC):
    """Implements commandbus.database.store.LoadingStore."""

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    @abstractmethod
    async def ensure_domain(self, domain: str) -> None: ...

    async def begin_load(self, load: NewLoad) -> None:
        await self.ensure_domain(load.domain)
        params = (
            load.domain, load.batch_id, load.source, encoding.dump(asdict(load.row_format)),
            load.start.value, load.checkpoint_size, load.name,
            None if load.custom_data is None else load.custom_data.decode(), load.created_by,
            None if load.on_complete is None else load.on_complete.decode(),
        )  # fmt: skip
        await self._call("begin_load", params, domain=load.domain)

    async def load_chunk(
        self,
        domain: str,
        batch_id: UUID,
        commands: Sequence[NewCommand],
        *,
        checkpoint: int,
        first_row: int,
        digest: bytes,
    ) -> bool:
        params = (domain, batch_id, checkpoint, first_row, encoding.sends(commands), digest)
        rows = await self._call("load_chunk", params, domain=domain)
        return bool(rows[0][0] == "committed")

    async def seal_load(self, domain: str, batch_id: UUID, rows: int) -> None:
        await self._call("seal_load", (domain, batch_id, rows), domain=domain)

    async def dispatch_load(self, domain: str, batch_id: UUID, limit: int) -> int:
        rows = await self._call("dispatch_load", (domain, batch_id, limit), domain=domain)
        return int(rows[0][0])

    async def fail_load(self, domain: str, batch_id: UUID, error: str) -> None:
        await self._call("fail_load", (domain, batch_id, error), domain=domain)

    async def get_load(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        rows = await self._call("get_load", (domain, batch_id), domain=domain)
        if not rows:
            return None
        row = rows[0]
        words: Any = (RowFormat(**row[3]), LoadStart(row[4]), LoadStatus(row[5]))
        return LoadMetadata(*row[:3], *words, *row[6:])

"""What the HTTP service asks, on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from commandbus.database.gateway import AsyncPool, Row
from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus, TroubleshootingItem
from commandbus.store.postgres_batches import metadata_of, parked_item_of
from commandbus.store.serving import (
    DomainFigures,
    GovernedFigures,
    Key,
    LeasedReply,
    TroubleshootingSearch,
)


class PostgresServing(ABC):
    """Implements commandbus.store.serving.ServingStore."""

    _pool: AsyncPool

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    async def page_troubleshooting(
        self, criteria: TroubleshootingSearch, *, after: Key | None, limit: int
    ) -> list[TroubleshootingItem]:
        at, command_id = after or (None, None)
        rows = await self._call(
            "page_troubleshooting",
            (
                criteria.domain, criteria.command_type, criteria.group, criteria.command_id,
                at, command_id, limit,
            ),
            domain=criteria.domain,
        )  # fmt: skip
        return [parked_item_of(row) for row in rows]

    async def page_batches(
        self, domain: str, *, status: str | None, before: Key | None, limit: int
    ) -> list[BatchMetadata]:
        at, batch_id = before or (None, None)
        rows = await self._call("page_batches", (domain, status, status, at, at, batch_id, limit))
        return [BatchMetadata(*row) for row in rows]

    async def page_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        after: tuple[int, datetime, UUID] | None,
        limit: int,
    ) -> list[tuple[int, CommandMetadata]]:
        name = None if status is None else status.value
        number, at, command_id = after or (None, None, None)
        rows = await self._call(
            "page_batch_commands",
            (batch_id, domain, name, name, number, number, number, at, command_id, limit),
        )
        return [(row[0], metadata_of(row[1:])) for row in rows]

    async def lease_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[LeasedReply]:
        rows = await self._call("lease_replies", (queue, vt_seconds, quantity))
        return [LeasedReply(*row) for row in rows]

    async def acknowledge_replies(self, queue: str, receipts: Mapping[int, int]) -> set[int]:
        ordered = sorted(receipts.items())
        params = (queue, [key for key, _ in ordered], [receipt for _, receipt in ordered])
        return {row[0] for row in await self._call("acknowledge_replies", params)}

    async def knows_domain(self, domain: str) -> bool:
        return bool((await self._call("knows_domain", (domain,)))[0][0])

    async def domain_figures(self) -> list[DomainFigures]:
        return [DomainFigures(*row) for row in await self._call("domain_figures", ())]

    async def governed_figures(self, since: datetime) -> list[GovernedFigures]:
        rows = await self._call("governed_figures", (since,))
        return [GovernedFigures(*row) for row in rows]

    def pool_figures(self) -> dict[str, int]:
        stats = self._pool.get_stats()
        return {
            "max": self._pool.max_size,
            "size": stats.get("pool_size", 0),
            "available": stats.get("pool_available", 0),
            "waiting": stats.get("requests_waiting", 0),
        }

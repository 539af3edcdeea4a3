"""Failure groups and bulk operations on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.connections import Row
from commandbus.troubleshooting.model import (
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkStatus,
    BulkStep,
    BulkVerb,
    FailureGroup,
    NewBulk,
)


class PostgresBulk(ABC):
    """Implements BulkStore, and the groups of Store."""

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    async def list_failure_groups(
        self,
        domain: str | None,
        *,
        command_type: str | None,
        include_empty: bool,
        limit: int,
        prefix: str = "",
    ) -> list[FailureGroup]:
        params = (domain, command_type, include_empty, limit, prefix)
        return [FailureGroup(*row) for row in await self._call("list_failure_groups", params)]

    async def preview_bulk(self, domain: str, conditions: dict[str, Any]) -> list[BulkMatch]:
        rows = await self._call("preview_bulk", (domain, encoding.dump(conditions)), domain=domain)
        return [BulkMatch(*row) for row in rows]

    async def start_bulk(self, bulk: NewBulk) -> UUID:
        params = (
            bulk.operation_id, bulk.domain, bulk.verb.value, bulk.conditions.decode(),
            bulk.arguments.decode(), bulk.rate, bulk.actor, bulk.everything,
        )  # fmt: skip
        rows = await self._call("start_bulk", params, domain=bulk.domain)
        return UUID(str(rows[0][0]))

    async def run_bulk_chunk(self, operation_id: UUID, *, limit: int, executor: str) -> BulkStep:
        rows = await self._call("run_bulk_chunk", (operation_id, limit, executor))
        status, acted, wait_seconds = rows[0]
        return BulkStep(BulkStatus(status), acted, wait_seconds)

    async def next_bulk(self, domain: str, executor: str) -> UUID | None:
        found: UUID | None = (await self._call("next_bulk", (domain, executor)))[0][0]
        return found

    async def stop_bulk(self, operation_id: UUID, *, actor: str | None) -> None:
        await self._call("stop_bulk", (operation_id, actor))

    async def resume_bulk(
        self, operation_id: UUID, *, actor: str | None, rate: float | None
    ) -> None:
        await self._call("resume_bulk", (operation_id, actor, rate))

    async def get_bulk(self, operation_id: UUID) -> BulkOperation | None:
        rows = await self._call("get_bulk", (operation_id,))
        return _operation(rows[0]) if rows else None

    async def list_bulks(
        self, domain: str | None, *, status: BulkStatus | None, limit: int, before: UUID | None
    ) -> list[BulkOperation]:
        wanted = None if status is None else status.value
        params = (domain, domain, wanted, wanted, before, before, limit)
        return [_operation(row) for row in await self._call("list_bulks", params)]

    async def list_bulk_items(
        self, operation_id: UUID, *, outcome: BulkOutcome | None, after: int, limit: int
    ) -> list[BulkItem]:
        wanted = None if outcome is None else outcome.value
        rows = await self._call("list_bulk_items", (operation_id, after, wanted, wanted, limit))
        return [
            BulkItem(no, command_id, None if found is None else BulkOutcome(found), detail, at)
            for no, command_id, found, detail, at in rows
        ]


def _operation(row: Row) -> BulkOperation:
    values = cast("Any", (*row[:2], BulkVerb(row[2]), *row[3:7], BulkStatus(row[7]), *row[8:]))
    return BulkOperation(*values)

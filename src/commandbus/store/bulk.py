"""What bulk operations ask of a store. The in-memory store does not implement it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from commandbus.troubleshooting.model import (
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkStatus,
    BulkStep,
    NewBulk,
)


@runtime_checkable
class BulkStore(Protocol):
    """The verbs of bulk operations."""

    async def preview_bulk(self, domain: str, conditions: dict[str, Any]) -> list[BulkMatch]:
        """What matches now, by failure group, most first."""

    async def start_bulk(self, bulk: NewBulk) -> UUID:
        """Freeze what matches; returns the id of the operation, which may run already."""

    async def run_bulk_chunk(self, operation_id: UUID, *, limit: int, executor: str) -> BulkStep:
        """Act on the next items, in one transaction."""

    async def next_bulk(self, domain: str, executor: str) -> UUID | None:
        """An operation of the domain that this executor may go on with."""

    async def stop_bulk(self, operation_id: UUID, *, actor: str | None) -> None:
        """Act on no further item; one that is finished is refused."""

    async def resume_bulk(
        self, operation_id: UUID, *, actor: str | None, rate: float | None
    ) -> None:
        """Go on where it was left, at another rate if one is given."""

    async def get_bulk(self, operation_id: UUID) -> BulkOperation | None:
        """One operation, or None."""

    async def list_bulks(
        self, domain: str | None, *, status: BulkStatus | None, limit: int, before: UUID | None
    ) -> list[BulkOperation]:
        """Operations, newest first; those after this one in that order."""

    async def list_bulk_items(
        self, operation_id: UUID, *, outcome: BulkOutcome | None, after: int, limit: int
    ) -> list[BulkItem]:
        """Items in their order, after this number."""

"""Failure groups and bulk operations as CommandBus shows them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.troubleshooting.bulk import Bulk, BulkArguments, BulkProgress
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkOperation,
    BulkPreview,
    FailureGroup,
)


class BulkVerbs:
    """Part of CommandBus."""

    _groups: Groups
    _bulk: Bulk

    async def list_failure_groups(
        self,
        domain: str | None = None,
        *,
        type: str | None = None,  # noqa: A002  (the name that list_troubleshooting has)
        include_empty: bool = False,
        limit: int = 100,
    ) -> list[FailureGroup]:
        """Parked commands by cause, largest group first; it reads no command.

        `include_empty`: also the causes of which nothing is parked any more.
        """
        return await self._groups.list(
            domain, command_type=type, include_empty=include_empty, limit=limit
        )

    async def find_failure_group(self, group: str, domain: str | None = None) -> FailureGroup:
        """The one group whose fingerprint begins so."""
        return await self._groups.find(domain, group)

    async def preview_bulk(self, chosen: BulkFilter) -> BulkPreview:
        """What a bulk operation with this filter would act on now: exact counts, by group."""
        return await self._bulk.preview(chosen)

    async def start_bulk(
        self,
        verb: str,
        chosen: BulkFilter,
        *,
        reason: str | None = None,
        result_data: Any = None,
        reset_attempts: bool = True,
        rate: float | None = None,
        operator: str | None = None,
        operation_id: UUID | None = None,
        everything: bool = False,
    ) -> BulkOperation:
        """Decide for many parked commands: "retry", "cancel" (with a reason) or "complete".

        What matches now is frozen. Workers of the domain then act on it, or `run_bulk` does, at
        `rate` commands per second. With an `operation_id` of your own a repeat is the same
        operation; so is a start while the same decision on the same filter still runs.
        A filter that matches nothing is refused, and one that matches all there is, unless
        `everything` says that it is meant.
        """
        return await self._bulk.start(
            verb,
            chosen,
            BulkArguments(reason, result_data, reset_attempts),
            rate=rate,
            operator=operator,
            operation_id=operation_id,
            everything=everything,
        )

    async def run_bulk(
        self, operation_id: UUID, *, on_progress: BulkProgress | None = None
    ) -> BulkOperation:
        """Act on a bulk operation here, until it is finished or somebody stops it."""
        return await self._bulk.run(operation_id, on_progress=on_progress)

    async def stop_bulk(self, operation_id: UUID, *, operator: str | None = None) -> BulkOperation:
        """Stop a bulk operation: once this returns, no further item is acted on."""
        return await self._bulk.stop(operation_id, operator=operator)

    async def resume_bulk(
        self, operation_id: UUID, *, rate: float | None = None, operator: str | None = None
    ) -> BulkOperation:
        """Let a stopped bulk operation go on where it was left, at another rate if one is given."""
        return await self._bulk.resume(operation_id, rate=rate, operator=operator)

    async def get_bulk(self, operation_id: UUID) -> BulkOperation | None:
        """One bulk operation and how far it is, or None."""
        return await self._bulk.find(operation_id)

    async def list_bulks(
        self,
        domain: str | None = None,
        *,
        status: str | None = None,
        limit: int = 100,
        before: UUID | None = None,
    ) -> list[BulkOperation]:
        """Bulk operations, newest first; the next page begins `before` the last one of this."""
        return await self._bulk.operations(domain, status=status, limit=limit, before=before)

    async def list_bulk_items(
        self, operation_id: UUID, *, outcome: str | None = None, after: int = 0, limit: int = 100
    ) -> list[BulkItem]:
        """Items of a bulk operation; the next page comes `after` the last item_no of this."""
        return await self._bulk.items(operation_id, outcome=outcome, after=after, limit=limit)

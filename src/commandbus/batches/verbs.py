"""The verbs of batches as CommandBus shows them (document 000), and what we add to them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.batches.batch import Batches
from commandbus.models import (
    BatchCommand,
    BatchCompletionCallback,
    BatchMetadata,
    CommandMetadata,
)
from commandbus.ops.audit import check_status


class BatchVerbs:
    """Part of CommandBus."""

    _batches: Batches

    async def create_batch(
        self,
        domain: str,
        commands: list[BatchCommand],
        *,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | None = None,
        created_by: str | None = None,
        max_attempts: int | None = None,
        conn: Any = None,
    ) -> UUID:
        """Create a batch with all commands atomically; returns the batch_id.

        `on_complete` is called in this process when the batch ends, whoever ends it, as long as
        the process lives. `on_complete_command` survives everything: it is sent in the very commit
        that ends the batch, with an id of its own and the batch_id as correlation_id. With `conn`
        the batch joins the caller's transaction.
        """
        return await self._batches.create(
            domain,
            commands,
            name=name,
            custom_data=custom_data,
            on_complete=on_complete,
            on_complete_command=on_complete_command,
            created_by=created_by,
            max_attempts=max_attempts,
            conn=conn,
        )

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        """Get batch metadata by ID."""
        return await self._batches.get(domain, batch_id)

    async def list_batches(
        self,
        domain: str,
        *,
        status: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[BatchMetadata]:
        """List batches for a domain, newest first."""
        return await self._batches.page(domain, status=status, limit=limit, offset=offset)

    async def list_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[CommandMetadata]:
        """List commands in a batch, in the order in which they were given."""
        return await self._batches.commands(
            domain, batch_id, status=check_status(status), limit=limit, offset=offset
        )

    async def cancel_batch(
        self, domain: str, batch_id: UUID, reason: str, *, operator: str | None = None
    ) -> int:
        """Cancel the commands of a batch that nobody works on; returns how many."""
        return await self._batches.cancel(domain, batch_id, reason, operator=operator)

    async def retry_batch(self, domain: str, batch_id: UUID, *, operator: str | None = None) -> int:
        """Send the failed and the parked commands of a batch again; returns how many.

        All in one transaction. A batch that had ended is open again, and ends, and calls back,
        once more. A second click finds nothing to do.
        """
        return await self._batches.retry(domain, batch_id, operator=operator)

    async def wait_batch(
        self, domain: str, batch_id: UUID, *, timeout: float | None = None
    ) -> BatchMetadata:
        """Wait until a batch has ended, in whichever process it is worked on."""
        return await self._batches.wait(domain, batch_id, timeout_seconds=timeout)

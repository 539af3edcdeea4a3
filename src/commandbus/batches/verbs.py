"""The verbs of batches as CommandBus shows them (document 000), and what we add to them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.batches.batch import Batches, BatchOptions
from commandbus.commands.audit import check_status
from commandbus.loads.model import LoadMetadata, LoadResult, OnProgress, RowFormat
from commandbus.models import (
    BatchCommand,
    BatchCompletionCallback,
    BatchMetadata,
    CommandMetadata,
)


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
            BatchOptions(
                name, custom_data, on_complete, on_complete_command, created_by, max_attempts
            ),
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

    # -- very large batches

    async def load_batch(  # noqa: PLR0913  (what a batch is, what a row is, how to load)
        self,
        domain: str,
        source: object,
        *,
        command_type: str | None = None,
        id_column: str | None = None,
        type_column: str | None = None,
        start: str = "sealed",
        checkpoint_size: int | None = None,
        batch_id: UUID | None = None,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
        created_by: str | None = None,
        on_complete_command: BatchCommand | None = None,
        on_progress: OnProgress | None = None,
    ) -> LoadResult:
        """Create a batch of any size from a source, in checkpoints, without holding it in memory.

        `source`: a path (.jsonl, .ndjson, .csv; .parquet and .arrow with pyarrow), a pyarrow
        table, an iterable or an async iterable of BatchCommand or dicts. A row is an object with
        `command_type`, `data` and perhaps `command_id`; or, given `command_type` or `type_column`,
        it is the data itself. A row without an id gets one from the batch_id and its position.

        `start="sealed"`: workers see nothing until the whole source is in, so that a bad row
        half-way has started nothing; "as_it_loads": they begin with the first checkpoint. Either
        way the batch does not end before everything is in. `checkpoint_size`: rows per commit;
        None begins with 1,000 and aims at half a second.

        A bad row, a duplicate id, a source that fails: the result is partial_success with the line
        and the reason, nothing of its checkpoint was created, earlier ones stay. Mend it and call
        `resume_load`. Give a `batch_id` of your own, and after a crash the very same call goes on
        after the last checkpoint.
        """
        loader = self._batches.loader
        new = loader.prepare(
            domain,
            source,
            RowFormat(command_type, id_column, type_column),
            start=start,
            checkpoint_size=checkpoint_size,
            batch_id=batch_id,
            name=name,
            custom_data=custom_data,
            created_by=created_by,
            on_complete_command=on_complete_command,
        )
        return await loader.load(new, source, on_progress)

    async def resume_load(
        self,
        domain: str,
        batch_id: UUID,
        source: object,
        *,
        on_progress: OnProgress | None = None,
    ) -> LoadResult:
        """Go on with a load after its last checkpoint; `source` is the same, from its beginning.

        Rows that are committed are passed over, the last checkpoint's are compared. A load that is
        complete is left as it is.
        """
        return await self._batches.loader.resume(domain, batch_id, source, on_progress)

    async def get_load(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        """How far a load is, from any process; None if there is no such load."""
        return await self._batches.loader.get(domain, batch_id)

"""Batches of one transaction: create, look, cancel, retry."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from commandbus.batches.callbacks import Completions
from commandbus.commands.payload import encode_json
from commandbus.commands.preparing import Preparer, check_batch_command
from commandbus.database.store import Store
from commandbus.errors import BatchNotFoundError, InvalidInputError, InvalidSettingError
from commandbus.loads.load import Loader
from commandbus.models import (
    BatchCommand,
    BatchCompletionCallback,
    BatchMetadata,
    BatchStatus,
    CommandMetadata,
    CommandStatus,
    NewBatch,
    NewCommand,
)
from commandbus.names import check_domain, check_text, check_uuid
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings
from commandbus.store.dispatching import CreationMetric

_log = logging.getLogger("commandbus.batches")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is. Rate and time left are None until something has ended."""

    total: int
    ended: int
    in_troubleshooting: int
    per_second: float | None
    seconds_left: float | None

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.ended / self.total if self.total else 1.0


def progress_of(batch: BatchMetadata, now: datetime | None = None) -> BatchProgress:
    """Work out how fast a batch goes and how long it still needs at that rate."""
    ended = batch.completed_count + batch.failed_count + batch.canceled_count
    until = batch.completed_at or now or datetime.now(UTC)
    elapsed = (until - batch.started_at).total_seconds() if batch.started_at else 0.0
    rate = ended / elapsed if ended and elapsed > 0 else None
    open_count = batch.total_count - ended - batch.in_troubleshooting_count
    return BatchProgress(
        total=batch.total_count,
        ended=ended,
        in_troubleshooting=batch.in_troubleshooting_count,
        per_second=rate,
        seconds_left=None if rate is None else open_count / rate,
    )


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What may be said of a batch at its creation."""

    name: str | None = None
    custom_data: dict[str, Any] | None = None
    on_complete: BatchCompletionCallback | None = None
    on_complete_command: BatchCommand | None = None
    created_by: str | None = None
    max_attempts: int | None = None


def log_creation(batch_id: UUID, metric: CreationMetric) -> None:
    """The line of 002's monitoring: readable, and with every figure as a field of its own."""
    _log.info(
        "batch %s of %d commands created (%s) in %.1f ms",
        batch_id, metric.batch_size, metric.pattern, metric.total_ms,
        extra={"batch_id": str(batch_id), **asdict(metric)},
    )  # fmt: skip


class Batches:
    """The verbs of a batch."""

    def __init__(
        self, store: Store, preparer: Preparer, settings: Settings, completions: Completions
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._settings = settings
        self._completions = completions
        self.loader = Loader(store, preparer)

    async def create(
        self, domain: str, commands: Sequence[BatchCommand], options: BatchOptions, *, conn: Any
    ) -> UUID:
        """Create a batch with all its commands, or nothing."""
        batch, prepared = self.prepare(domain, commands, options)
        began = time.perf_counter()
        with self.announced(batch, options.on_complete):
            transaction = await self._store.create_batch(batch, prepared, conn=conn)
            if transaction is not None:
                self._completions.depends_on(domain, batch.batch_id, transaction)
        spent_ms = round((time.perf_counter() - began) * 1000, 3)
        log_creation(
            batch.batch_id, CreationMetric("inline", len(prepared), spent_ms, 0, 0, spent_ms, False)
        )
        return batch.batch_id

    def prepare(
        self, domain: str, commands: Sequence[BatchCommand], options: BatchOptions
    ) -> tuple[NewBatch, list[NewCommand]]:
        """Check and encode a batch and its commands."""
        check_domain(domain)
        self._check_size(len(commands))
        commands = [check_batch_command(command) for command in commands]
        prepared = [
            self._preparer.command(
                domain, c.command_type, c.command_id, c.data, c.reply_to, c.correlation_id,
                options.max_attempts,
            )
            for c in commands
        ]  # fmt: skip
        name, created_by, closing = options.name, options.created_by, options.on_complete_command
        batch = NewBatch(
            batch_id=uuid4(),
            domain=domain,
            name=None if name is None else check_text(name, "name", max_length=255),
            custom_data=None
            if options.custom_data is None
            else encode_json(options.custom_data, what="custom_data"),
            created_by=None if created_by is None else check_text(created_by, "created_by"),
            on_complete=None
            if closing is None
            else self._preparer.closing_command(domain, closing),
            notifies=options.on_complete is not None,
        )
        return batch, prepared

    @contextmanager
    def announced(
        self, batch: NewBatch, on_complete: BatchCompletionCallback | None
    ) -> Iterator[None]:
        """Around the commit that creates a batch: its callback is there if and only if it is."""
        # Registered before the commit, or the batch could end before anybody waits for it.
        if on_complete is not None:
            self._completions.register(batch.domain, batch.batch_id, on_complete)
        try:
            yield
        except BaseException:
            self._completions.forget(batch.domain, batch.batch_id)
            raise

    async def get(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        """One batch, or None."""
        return await self._store.get_batch(check_domain(domain), check_uuid(batch_id, "batch_id"))

    async def page(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        """Batches, newest first."""
        check_page(limit, offset)
        if status is not None and status not in set(BatchStatus):
            names = ", ".join(BatchStatus)
            raise InvalidSettingError(f"no batch status {status!r}; use one of {names}")
        return await self._store.list_batches(
            check_domain(domain), status=status, limit=limit, offset=offset
        )

    async def commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        limit: int,
        offset: int,
    ) -> list[CommandMetadata]:
        """Commands of a batch, in the order in which they were given."""
        check_page(limit, offset)
        return await self._store.list_batch_commands(
            check_domain(domain),
            check_uuid(batch_id, "batch_id"),
            status=status,
            limit=limit,
            offset=offset,
        )

    async def cancel(
        self, domain: str, batch_id: UUID, reason: str, *, operator: str | None
    ) -> int:
        """Cancel what nobody works on; returns how many."""
        check_domain(domain)
        batch = check_uuid(batch_id, "batch_id")
        text = redact_text(check_text(reason, "reason"))
        total = 0
        while count := await self._store.cancel_batch(domain, batch, reason=text, actor=operator):
            total += count
        return total

    async def retry(self, domain: str, batch_id: UUID, *, operator: str | None) -> int:
        """Send again what failed or waits in troubleshooting; returns how many."""
        check_domain(domain)
        batch = check_uuid(batch_id, "batch_id")
        retried = await self._store.retry_batch(domain, batch, actor=operator)
        if retried:
            self._completions.rearm(domain, batch)
        return retried

    async def wait(
        self, domain: str, batch_id: UUID, *, timeout_seconds: float | None
    ) -> BatchMetadata:
        """Wait until a batch has ended."""
        check_domain(domain)
        batch = check_uuid(batch_id, "batch_id")
        if await self._store.get_batch(domain, batch) is None:
            raise BatchNotFoundError(domain, batch)
        return await self._completions.wait(domain, batch, timeout_seconds)

    def _check_size(self, count: int) -> None:
        if count == 0:
            raise InvalidInputError("a batch needs at least one command")
        limit = self._settings.max_batch_size
        if count > limit:
            raise InvalidInputError(
                f"{count:,} commands are more than one transaction should hold ({limit:,}); "
                "use load_batch, which commits in checkpoints and can be resumed"
            )

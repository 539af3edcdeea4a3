"""Batches: `bus.batches`. Create in one transaction, look, cancel, retry, wait."""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString, TypedDict, Unpack
from uuid import UUID, uuid4

from commandbus.batches.callbacks import Completions
from commandbus.commands.payload import encode_json
from commandbus.commands.sending import Preparer
from commandbus.database.rows import BATCH_COLUMNS, COMMAND_COLUMNS, command_of
from commandbus.database.store import Store
from commandbus.errors import BatchNotFoundError, InvalidInputError
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
from commandbus.names import check_choice, check_domain, check_text, check_uuid
from commandbus.paging import check_page, cursor_of, position_of, read_key, read_number
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


class BatchOptions(TypedDict, total=False):
    """What may be said of a batch at its creation; `CommandBus.create_batch` explains each."""

    name: str | None
    custom_data: dict[str, Any] | None
    on_complete: BatchCompletionCallback | None
    on_complete_command: BatchCommand | None
    created_by: str | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Some batches, newest first; with a `next_cursor` there may be more."""

    batches: list[BatchMetadata]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class BatchCommandPage:
    """Some commands of a batch, in their order; with a `next_cursor` there may be more."""

    commands: list[CommandMetadata]
    next_cursor: str | None


_PAGE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + BATCH_COLUMNS
    + " from {schema}.command_bus_batch b where b.domain = %s"
    " and (cast(%s as text) is null or b.status = %s)"
    " and (cast(%s as timestamptz) is null or (b.created_at, b.batch_id) < (%s, %s))"
    " order by b.created_at desc, b.batch_id desc limit %s"
)
# Commands that were sent into the batch later have no number, and come last.
_PAGE_COMMANDS: LiteralString = (
    "select coalesce(c.sequence_no, 2147483647), "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + " from {schema}.command_bus_command c where c.batch_id = %s and c.domain = %s"
    " and (cast(%s as text) is null or c.status = %s)"
    " and (cast(%s as int) is null or (c.sequence_no >= %s or c.sequence_no is null)"
    " and (coalesce(c.sequence_no, 2147483647), c.created_at, c.command_id) > (%s, %s, %s))"
    " order by c.sequence_no, c.created_at, c.command_id limit %s"
)


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

    async def create(
        self,
        domain: str,
        commands: Sequence[BatchCommand],
        *,
        conn: Any = None,
        **options: Unpack[BatchOptions],
    ) -> UUID:
        """Create a batch with all its commands, or nothing."""
        batch, prepared = self.prepare(domain, commands, options)
        began = time.perf_counter()
        with self.announced(batch, options.get("on_complete")):
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
        max_attempts = options.get("max_attempts")
        prepared = [self._preparer.batch_command(domain, c, max_attempts) for c in commands]
        name, created_by = options.get("name"), options.get("created_by")
        custom_data, closing = options.get("custom_data"), options.get("on_complete_command")
        batch = NewBatch(
            batch_id=uuid4(),
            domain=domain,
            name=None if name is None else check_text(name, "name", max_length=255),
            custom_data=None
            if custom_data is None
            else encode_json(custom_data, what="custom_data"),
            created_by=None if created_by is None else check_text(created_by, "created_by"),
            on_complete=None
            if closing is None
            else self._preparer.closing_command(domain, closing),
            notifies=options.get("on_complete") is not None,
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

    async def require(self, domain: str, batch_id: UUID) -> BatchMetadata:
        """One batch; raises BatchNotFoundError if there is none."""
        found = await self.get(domain, batch_id)
        if found is None:
            raise BatchNotFoundError(domain, check_uuid(batch_id, "batch_id"))
        return found

    async def list(
        self, domain: str, *, status: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[BatchMetadata]:
        """Batches, newest first."""
        check_page(limit, offset)
        return await self._store.list_batches(
            check_domain(domain), status=_status(status), limit=limit, offset=offset
        )

    async def page(
        self,
        domain: str,
        *,
        status: BatchStatus | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BatchPage:
        """Batches, newest first, page by page."""
        bound = ("batches", check_domain(domain), _status(status))
        check_page(limit)
        at, batch_id = position_of(cursor, bound, read_key) or (None, None)
        found = await self._store.gateway.rows(
            _PAGE, (domain, bound[2], bound[2], at, at, batch_id, limit), into=BatchMetadata
        )
        if len(found) < limit:
            return BatchPage(found, None)
        return BatchPage(found, cursor_of([found[-1].created_at, found[-1].batch_id], bound))

    async def list_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> builtins.list[CommandMetadata]:
        """Commands of a batch, in the order in which they were given."""
        check_page(limit, offset)
        return await self._store.list_batch_commands(
            check_domain(domain),
            check_uuid(batch_id, "batch_id"),
            status=_command_status(status),
            limit=limit,
            offset=offset,
        )

    async def page_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BatchCommandPage:
        """Commands of a batch in the order in which they were given, page by page."""
        check_page(limit)
        state = _command_status(status)
        bound = ("batch commands", domain, str(check_uuid(batch_id, "batch_id")), state)
        after = position_of(cursor, bound, _read_number_and_key) or (None, None, None)
        wanted = (await self.require(domain, batch_id)).batch_id
        rows = await self._store.gateway.rows(
            _PAGE_COMMANDS,
            (wanted, domain, state, state, after[0], after[0], *after, limit),
        )
        commands = [command_of(*row[1:]) for row in rows]
        if len(rows) < limit:
            return BatchCommandPage(commands, None)
        last = commands[-1]
        position = [rows[-1][0], last.created_at, last.command_id]
        return BatchCommandPage(commands, cursor_of(position, bound))

    async def cancel(
        self, domain: str, batch_id: UUID, reason: str, *, operator: str | None = None
    ) -> int:
        """Cancel the commands of a batch that no worker has; returns how many."""
        check_domain(domain)
        batch = check_uuid(batch_id, "batch_id")
        text = redact_text(check_text(reason, "reason"))
        total = 0
        while count := await self._store.cancel_batch(domain, batch, reason=text, actor=operator):
            total += count
        return total

    async def retry(self, domain: str, batch_id: UUID, *, operator: str | None = None) -> int:
        """Send the failed and the parked commands of a batch again; returns how many.

        All in one transaction. A batch that had ended is open again, and ends, and calls back,
        once more. A second click finds nothing to do.
        """
        check_domain(domain)
        batch = check_uuid(batch_id, "batch_id")
        retried = await self._store.retry_batch(domain, batch, actor=operator)
        if retried:
            self._completions.rearm(domain, batch)
        return retried

    async def wait(
        self, domain: str, batch_id: UUID, *, timeout: float | None = None
    ) -> BatchMetadata:
        """Wait until a batch has ended, in whichever process it is worked on."""
        batch = await self.require(domain, batch_id)
        return await self._completions.wait(domain, batch.batch_id, timeout)

    coordination: Any = None  # set by the bus; goes away with the move of dispatch

    async def dispatch(
        self,
        domain: str,
        commands: Sequence[BatchCommand],
        *,
        mode: str = "two_phase",
        dispatch_rate: float | None = None,
        queue: Any = None,
        **options: Unpack[BatchOptions],
    ) -> Any:
        """Create a batch whose rows and messages are committed apart, and say how it went.

        `mode`: "inline" (one transaction, as `create`), "two_phase" (rows first, then messages, in
        groups) or "optimistic" (the same, marked queued beforehand). `dispatch_rate`: commands per
        second, queued by this call, which takes that long; if its process ends, recovery goes on
        at that rate. `queue`: a RemoteQueue in another database, whose messages `relay` brings
        back.

        Raises only if nothing was stored. What is stored and not queued is queued by recovery,
        which workers run by themselves.
        """
        return await self.coordination.dispatch(
            domain, commands, options, mode=mode, dispatch_rate=dispatch_rate, queue=queue
        )

    async def relay(self, domain: str, queue: Any, *, drain: bool = False) -> int:
        """Queue here, exactly once, what arrives in a queue in another database.

        Runs until cancelled; with `drain` until that queue is empty. Returns how many commands it
        queued. Any number may run at the same time.
        """
        from commandbus.batches.relay import Relay  # noqa: PLC0415

        relay = Relay(self.coordination.store, queue, check_domain(domain))
        if drain:
            return await relay.drain()
        await relay.run()
        return 0

    async def recover_dispatch(self, domain: str, *, grace_seconds: float | None = None) -> Any:
        """Queue what was stored and not queued, now; workers do it by themselves every few minutes.

        `grace_seconds`: how long a dispatching process must have been silent to be taken for gone.
        """
        from commandbus.worker.maintenance import recover_dispatch  # noqa: PLC0415

        grace = self._settings.dispatch_grace_seconds if grace_seconds is None else grace_seconds
        return await recover_dispatch(self.coordination.store, check_domain(domain), grace)

    def _check_size(self, count: int) -> None:
        if count == 0:
            raise InvalidInputError("a batch needs at least one command")
        limit = self._settings.max_batch_size
        if count > limit:
            raise InvalidInputError(
                f"{count:,} commands are more than one transaction should hold ({limit:,}); "
                "use load_batch, which commits in checkpoints and can be resumed"
            )


def _status(status: str | None) -> BatchStatus | None:
    return None if status is None else check_choice(BatchStatus, status, "batch status")


def _command_status(status: str | None) -> CommandStatus | None:
    return None if status is None else check_choice(CommandStatus, status, "status")


def _read_number_and_key(number: int, moment: str, key: str) -> tuple[int, datetime, UUID]:
    if read_number(number) >= 2**31:
        raise ValueError("not the number of a command")
    return number, *read_key(moment, key)

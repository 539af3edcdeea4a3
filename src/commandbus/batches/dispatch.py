"""Coordination: storing commands and queueing them in separate commits (document 002).

    inline      rows and messages in one transaction: nothing can come between them
    two_phase   rows as pending_queue, commit; messages, group by group; each group marked queued
    optimistic  rows as queued, commit; messages, group by group; what failed becomes pending_retry

With the queue beside the metadata, a group's messages and marks are one commit, so only whole
groups can be missing. With a queue in another database they are two, and a message may be sent
twice: the relay adopts it once. Either way a process that dies leaves nothing behind that recovery
does not find: until all is queued, a record with a heartbeat says that somebody is at it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any
from uuid import UUID

from commandbus.batches.batch import Batches, BatchOptions, log_creation
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidOperationError, InvalidSettingError
from commandbus.models import BatchCommand, NewBatch, NewCommand
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings
from commandbus.store.dispatching import CreationMetric, DispatchStore, MessageQueue

#: Commands per second that a dispatch_rate may ask for.
DISPATCH_RATE_RANGE = (0.001, 1_000_000)

_log = logging.getLogger("commandbus.batches")


class DispatchMode(StrEnum):
    """How rows and messages come together; 002 calls them patterns."""

    INLINE = "inline"
    TWO_PHASE = "two_phase"
    OPTIMISTIC = "optimistic"


class DispatchStatus(StrEnum):
    """How a dispatch went, in 002's words."""

    SUCCESS = "success"
    #: Stored, but not all of it is queued; recovery sees to the rest.
    PARTIAL_SUCCESS = "partial_success"
    #: All of it is queued; marking it so failed, and recovery sees to that.
    SUCCESS_WITH_WARNING = "success_with_warning"
    #: Stored, nothing is queued; recovery sees to all of it.
    FAILED_NEEDS_RECOVERY = "failed_needs_recovery"


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """What became of a dispatch. Whatever the status, the batch exists with all its commands."""

    batch_id: UUID
    status: DispatchStatus
    database_tasks: int
    queued_tasks: int
    retry_needed: bool
    error: str | None = None
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As 002 prints it: only what is there."""
        return {
            name: str(value) if isinstance(value, DispatchStatus | UUID) else value
            for name, value in asdict(self).items()
            if value is not None
        }


@dataclass(slots=True)
class _Job:
    """One dispatch on its way."""

    batch: NewBatch
    mode: DispatchMode
    rate: float | None
    queue: MessageQueue | None
    command_ids: list[UUID]
    queued: int = 0
    error: str | None = None
    warning: str | None = None
    #: What failed could not even be marked so: the record stays, and its heartbeat grows old.
    is_abandoned: bool = False
    last_beat: float = 0.0
    spent_ms: dict[str, float] = field(default_factory=dict)


class Coordination:
    """Creates batches in 002's patterns."""

    def __init__(
        self,
        store: Store,
        batches: Batches,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plain_store = store
        self._batches = batches
        self._settings = settings
        self._clock = clock
        self._sleep = sleep

    @property
    def store(self) -> DispatchStore:
        """The store, if it can do this."""
        if not isinstance(self._plain_store, DispatchStore):
            raise InvalidOperationError(
                "the in-memory store has no dispatch but mode='inline'; test it on the embedded "
                "server"
            )
        return self._plain_store

    async def dispatch(
        self,
        domain: str,
        commands: Sequence[BatchCommand],
        options: BatchOptions,
        *,
        mode: str,
        dispatch_rate: float | None,
        queue: MessageQueue | None,
    ) -> DispatchResult:
        """Store a batch and queue its commands. Raises only if nothing was stored."""
        how = _check_mode(mode, dispatch_rate, queue)
        batch, prepared = self._batches.prepare(domain, commands, options)
        job = _Job(batch, how, dispatch_rate, queue, [c.command_id for c in prepared])
        with self._timed(job, "total_ms"):
            with self._batches.announced(batch, options.get("on_complete")):
                await self._store_all(job, prepared)
            if how is not DispatchMode.INLINE:
                await self._send_all(job)
        await self._finish(job)
        return _result(job)

    async def _store_all(self, job: _Job, prepared: Sequence[NewCommand]) -> None:
        with self._timed(job, "db_insert_ms"):
            if job.mode is DispatchMode.INLINE:
                await self._plain_store.create_batch(job.batch, prepared)
                job.queued = len(prepared)
                return
            await self.store.hold_batch(
                job.batch,
                prepared,
                pattern=job.mode.value,
                dispatch_rate=job.rate,
                queue=None if job.queue is None else job.queue.name,
            )

    async def _send_all(self, job: _Job) -> None:
        groups = self._groups(job)
        started = job.last_beat = self._clock()
        sent = 0
        for index, group in enumerate(groups):
            due = started if job.rate is None else started + sent / job.rate
            await self._wait_until(job, due)
            try:
                await self._send(job, group)
            except Exception as error:  # noqa: BLE001  (a queue may fail in any way; the rows stay)
                job.error = redact_text(f"Queue send failed: {error}")
                if job.mode is DispatchMode.TWO_PHASE:
                    await self._mark_failed(job, list(chain.from_iterable(groups[index:])))
                    return
                await self._mark_failed(job, group)
            sent += len(group)

    def _groups(self, job: _Job) -> list[list[UUID]]:
        ids = job.command_ids
        is_bulk = len(ids) > self._settings.bulk_threshold
        size = self._settings.queue_batch_size if is_bulk else 1
        if job.rate is not None:
            # No group is more than a second's worth, or the rate would be one of bursts.
            size = min(size, max(1, math.floor(job.rate)))
        return [ids[start : start + size] for start in range(0, len(ids), size)]

    async def _wait_until(self, job: _Job, due: float) -> None:
        beat_seconds = self._settings.dispatch_grace_seconds / 8
        while True:
            now = self._clock()
            if now - job.last_beat >= beat_seconds:
                job.last_beat = now
                with suppress(CommandBusError):
                    await self.store.dispatch_heartbeat(job.batch.batch_id)
            if now >= due:
                return
            await self._sleep(min(due - now, beat_seconds) if beat_seconds else due - now)

    async def _send(self, job: _Job, group: list[UUID]) -> None:
        domain = job.batch.domain
        if job.queue is None:
            with self._timed(job, "queue_send_ms"):
                job.queued += await self.store.queue_stored(domain, group)
            return
        held = await self.store.stored_messages(domain, group)
        if not held:
            return
        with self._timed(job, "queue_send_ms"):
            await job.queue.send(domain, [envelope for _, envelope in held])
        job.queued += len(held)
        if job.mode is DispatchMode.TWO_PHASE:
            await self._mark_queued(job, [command_id for command_id, _ in held])

    async def _mark_queued(self, job: _Job, command_ids: list[UUID]) -> None:
        try:
            with self._timed(job, "status_update_ms"):
                await self.store.mark_dispatched(job.batch.domain, command_ids)
        except CommandBusError as error:
            job.warning = "Status update failed but tasks will process"
            _log.warning("%s of batch %s: %s", job.warning, job.batch.batch_id, error)

    async def _mark_failed(self, job: _Job, command_ids: list[UUID]) -> None:
        try:
            with self._timed(job, "status_update_ms"):
                await self.store.mark_dispatch_failed(
                    job.batch.domain, command_ids, job.error or "Queue send failed"
                )
        except CommandBusError as error:
            job.is_abandoned = True
            _log.warning(
                "%d commands of batch %s could not be queued, nor marked; recovery finds them: %s",
                len(command_ids), job.batch.batch_id, error,
            )  # fmt: skip

    async def _finish(self, job: _Job) -> None:
        spent = {
            name: round(job.spent_ms.get(name, 0.0), 3)
            for name in ("db_insert_ms", "queue_send_ms", "status_update_ms", "total_ms")
        }
        metric = CreationMetric(
            pattern=job.mode.value,
            batch_size=len(job.command_ids),
            retry_needed=job.error is not None,
            **spent,
        )
        log_creation(job.batch.batch_id, metric)
        if job.is_abandoned or job.mode is DispatchMode.INLINE:
            return  # create_batch has recorded its own
        try:
            await self.store.finish_dispatch(job.batch.batch_id, metric)
        except CommandBusError as error:
            _log.warning("the end of batch %s was not noted: %s", job.batch.batch_id, error)

    @contextmanager
    def _timed(self, job: _Job, name: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            elapsed = (self._clock() - started) * 1000
            job.spent_ms[name] = job.spent_ms.get(name, 0.0) + elapsed


def _check_mode(mode: str, rate: float | None, queue: MessageQueue | None) -> DispatchMode:
    if mode not in set(DispatchMode):
        names = ", ".join(DispatchMode)
        raise InvalidSettingError(f"no dispatch mode {mode!r}; use one of {names}")
    if mode == DispatchMode.INLINE and (rate is not None or queue is not None):
        raise InvalidSettingError(
            "inline is one transaction: it has no rate and no queue in another database; "
            "use mode='two_phase'"
        )
    low, high = DISPATCH_RATE_RANGE
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and low <= rate <= high):
        raise InvalidSettingError(
            f"dispatch_rate is {rate!r}; use commands per second, from {low} to {high:,}"
        )
    return DispatchMode(mode)


def _result(job: _Job) -> DispatchResult:
    if job.error is not None:
        is_lost = job.mode is DispatchMode.OPTIMISTIC and job.queued == 0
        status = DispatchStatus.FAILED_NEEDS_RECOVERY if is_lost else DispatchStatus.PARTIAL_SUCCESS
    elif job.warning is not None:
        status = DispatchStatus.SUCCESS_WITH_WARNING
    else:
        status = DispatchStatus.SUCCESS
    return DispatchResult(
        batch_id=job.batch.batch_id,
        status=status,
        database_tasks=len(job.command_ids),
        queued_tasks=job.queued,
        retry_needed=job.error is not None,
        error=job.error,
        warning=job.warning,
    )

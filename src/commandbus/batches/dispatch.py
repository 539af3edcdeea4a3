"""Dispatch: storing the commands of a batch and queueing them in separate commits.

    inline      rows and messages in one transaction: nothing can come between them
    two_phase   rows as pending_queue, commit; messages, group by group; each group marked queued
    optimistic  rows as queued, commit; messages, group by group; what failed becomes pending_retry

With the queue beside the rows, the messages and marks of a group are one commit, so only whole
groups can be missing. With a queue in another database they are two, and a message may be sent
twice: the relay adopts it once. Either way a process that ends leaves nothing behind that recovery
does not find: until all is queued, a record with a heartbeat says that a process is queueing it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import LiteralString
from uuid import UUID

from commandbus.batches.callbacks import Completions
from commandbus.batches.model import CreationMetric, DispatchMode, DispatchResult, DispatchStatus
from commandbus.database import encoding
from commandbus.database.model import NewBatch
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidSettingError
from commandbus.loops import is_being_cancelled
from commandbus.models import BatchCompletionCallback, NewCommand
from commandbus.names import check_choice, dispatch_queue
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import Secrets, secret_values
from commandbus.settings import Settings, check_number
from commandbus.transport import Transport

#: Commands per second that a dispatch_rate may ask for.
DISPATCH_RATE_RANGE = (0.001, 1_000_000)

_CREATE_STORED_BATCH: LiteralString = (
    "select {schema}.create_stored_batch(%s, %s, cast(%s as jsonb), %s, cast(%s as jsonb), %s,"
    " cast(%s as jsonb), %s, %s, cast(%s as float8), %s, cast(%s as text))"
)
_QUEUE_PENDING: LiteralString = "select cardinality({schema}.queue_pending(%s, cast(%s as uuid[])))"
_STORED_MESSAGES: LiteralString = (
    "select command_id, message from {schema}.stored_messages(%s, cast(%s as uuid[]))"
)
_MARK_DISPATCHED: LiteralString = "select {schema}.mark_dispatched(%s, cast(%s as uuid[]))"
_MARK_DISPATCH_FAILED: LiteralString = (
    "select {schema}.mark_dispatch_failed(%s, cast(%s as uuid[]), %s, %s)"
)
# What is in no queue: still to be queued, or ended before it was. If the queue is ours, 'queued'
# without a message is not queued yet.
_UNQUEUED: LiteralString = (
    "select count(*) filter (where c.status = 'PENDING'),"
    " count(*) filter (where c.status <> 'PENDING')"
    " from {schema}.command_bus_command c where c.batch_id = %s and c.msg_id is null"
    " and (c.dispatch_status <> 'queued' or %s)"
)
_DISPATCH_HEARTBEAT: LiteralString = "select {schema}.dispatch_heartbeat(%s)"
_FINISH_DISPATCH: LiteralString = "select {schema}.finish_dispatch(%s, cast(%s as jsonb))"

_log = logging.getLogger("commandbus.batches")


def log_creation(batch_id: UUID, metric: CreationMetric) -> None:
    """One line for each batch: readable, and with every figure as a field of its own."""
    _log.info(
        "batch %s of %d commands created (%s) in %.1f ms",
        batch_id, metric.batch_size, metric.pattern, metric.total_ms,
        extra={"batch_id": str(batch_id), **asdict(metric)},
    )  # fmt: skip


def check_mode(mode: DispatchMode, rate: float | None, queue: Transport | None) -> DispatchMode:
    """Return the mode, or raise InvalidSettingError if these options do not go together."""
    how = check_choice(DispatchMode, mode, "dispatch mode")
    if how is DispatchMode.INLINE and (rate is not None or queue is not None):
        raise InvalidSettingError(
            "inline is one transaction: it has no rate and no queue in another database; "
            "use mode='two_phase'"
        )
    if rate is not None:
        check_number(rate, "dispatch_rate (commands per second)", *DISPATCH_RATE_RANGE)
    return how


@dataclass(slots=True)
class _Run:
    """One dispatch on its way."""

    batch: NewBatch
    mode: DispatchMode
    rate: float | None
    queue: Transport | None
    command_ids: list[UUID]
    queued: int = 0
    error: str | None = None
    warning: str | None = None
    #: Some ended, canceled by somebody, before they could be queued.
    is_cut: bool = False
    #: What failed could not even be marked so: the record stays, and its heartbeat grows old.
    is_abandoned: bool = False
    last_beat: float = 0.0
    #: The messages that were given to another queue last.
    sending: list[str] = field(default_factory=list)
    spent_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Stores batches and queues their commands, in one commit or in several."""

    store: Store
    settings: Settings
    completions: Completions
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def dispatch(
        self,
        batch: NewBatch,
        commands: Sequence[NewCommand],
        *,
        mode: DispatchMode,
        rate: float | None,
        queue: Transport | None,
        on_complete: BatchCompletionCallback | None,
    ) -> DispatchResult:
        """Store a batch and queue its commands. Raises only if nothing was stored."""
        run = _Run(batch, mode, rate, queue, [c.command_id for c in commands])
        with self._timed(run, "total_ms"):
            with self.completions.announced(batch, on_complete):
                await self._store_all(run, commands)
            if mode is not DispatchMode.INLINE:
                await self._send_all(run)
                if run.error is None and run.queued < len(commands):
                    await self._count_again(run)
        await self._finish(run)
        return _result(run)

    async def _store_all(self, run: _Run, commands: Sequence[NewCommand]) -> None:
        batch, domain = run.batch, run.batch.domain
        with self._timed(run, "db_insert_ms"):
            if run.mode is DispatchMode.INLINE:
                await self.store.create_batch(batch, commands)
                run.queued = len(commands)
                return
            gateway = self.store.gateway.patient
            await gateway.ensure_domain(domain)
            params = (
                domain, batch.batch_id, encoding.sends(commands), *encoding.batch(batch),
                run.mode.value, run.rate, None if run.queue is None else run.queue.name,
                batch.actor,
            )  # fmt: skip
            await gateway.rows(_CREATE_STORED_BATCH, params, domain=domain)

    async def _send_all(self, run: _Run) -> None:
        groups = self._groups(run)
        started = run.last_beat = self.clock()
        sent = 0
        for index, group in enumerate(groups):
            due = started if run.rate is None else started + sent / run.rate
            await self._wait_until(run, due)
            try:
                await self._send(run, group)
            except (Exception, asyncio.CancelledError) as error:
                # A queue may fail in any way; the rows stay.
                if is_being_cancelled():
                    raise
                text = f"Queue send failed: {str(error) or type(error).__name__}"
                run.error = redact_text(text, secrets=await self._secrets(run))
                if run.mode is DispatchMode.TWO_PHASE:
                    await self._mark_failed(run, list(chain.from_iterable(groups[index:])))
                    return
                await self._mark_failed(run, group)
            sent += len(group)

    def _groups(self, run: _Run) -> list[list[UUID]]:
        ids = run.command_ids
        is_bulk = len(ids) > self.settings.bulk_threshold
        size = self.settings.queue_batch_size if is_bulk else 1
        if run.rate is not None:
            # No group is more than one second at this rate, or the rate would be one of bursts.
            size = min(size, max(1, math.floor(run.rate)))
        return [ids[start : start + size] for start in range(0, len(ids), size)]

    async def _secrets(self, run: _Run) -> Secrets:
        """The secret values of what was being sent: an error of a queue may repeat a message."""
        messages = [json.loads(message) for message in run.sending]
        marked: set[str] = set()
        for kind in {str(message.get("type")) for message in messages}:
            with suppress(CommandBusError):
                marked |= await self.store.secret_keys(run.batch.domain, kind)
        return secret_values(messages, marked)

    async def _wait_until(self, run: _Run, due: float) -> None:
        beat_seconds = self.settings.dispatch_grace_seconds / 8
        while True:
            now = self.clock()
            if now - run.last_beat >= beat_seconds:
                run.last_beat = now
                with suppress(CommandBusError):
                    await self.store.gateway.rows(_DISPATCH_HEARTBEAT, (run.batch.batch_id,))
            if now >= due:
                return
            await self.sleep(min(due - now, beat_seconds) if beat_seconds else due - now)

    async def _send(self, run: _Run, group: list[UUID]) -> None:
        domain, gateway = run.batch.domain, self.store.gateway
        if run.queue is None:
            with self._timed(run, "queue_send_ms"):
                run.queued += await gateway.value(_QUEUE_PENDING, (domain, group), domain=domain)
            return
        stored = await gateway.rows(_STORED_MESSAGES, (domain, group), domain=domain)
        if not stored:
            return
        run.sending = [message for _, message in stored]
        with self._timed(run, "queue_send_ms"):
            await run.queue.publish(dispatch_queue(domain), run.sending)
        run.sending = []
        run.queued += len(stored)
        if run.mode is DispatchMode.TWO_PHASE:
            await self._mark_queued(run, [command_id for command_id, _ in stored])

    async def _count_again(self, run: _Run) -> None:
        """Some were not queued by this call: canceled meanwhile, queued by recovery, or neither."""
        total, params = len(run.command_ids), (run.batch.batch_id, run.queue is None)
        try:
            ((waiting, ended),) = await self.store.gateway.rows(_UNQUEUED, params)
        except CommandBusError as error:
            waiting, ended = total - run.queued, 0
            _log.warning("batch %s could not be counted again: %s", run.batch.batch_id, error)
        run.queued = total - waiting - ended
        if waiting:
            run.error = f"{waiting} of {total} commands are not queued yet; recovery queues them"
        elif ended:
            run.is_cut = True
            run.warning = f"{ended} of {total} commands ended before they were queued"

    async def _mark_queued(self, run: _Run, command_ids: list[UUID]) -> None:
        domain = run.batch.domain
        try:
            with self._timed(run, "status_update_ms"):
                await self.store.gateway.rows(
                    _MARK_DISPATCHED, (domain, command_ids), domain=domain
                )
        except CommandBusError as error:
            run.warning = "Status update failed but tasks will process"
            _log.warning("%s of batch %s: %s", run.warning, run.batch.batch_id, error)

    async def _mark_failed(self, run: _Run, command_ids: list[UUID]) -> None:
        domain = run.batch.domain
        params = (domain, command_ids, run.error, self.settings.max_queue_attempts)
        try:
            with self._timed(run, "status_update_ms"):
                await self.store.gateway.rows(_MARK_DISPATCH_FAILED, params, domain=domain)
        except CommandBusError as error:
            run.is_abandoned = True
            _log.warning(
                "%d commands of batch %s could not be queued, nor marked; recovery finds them: %s",
                len(command_ids), run.batch.batch_id, error,
            )  # fmt: skip

    async def _finish(self, run: _Run) -> None:
        spent = {
            name: round(run.spent_ms.get(name, 0.0), 3)
            for name in ("db_insert_ms", "queue_send_ms", "status_update_ms", "total_ms")
        }
        metric = CreationMetric(
            pattern=run.mode,
            batch_size=len(run.command_ids),
            retry_needed=run.error is not None,
            **spent,
        )
        log_creation(run.batch.batch_id, metric)
        if run.is_abandoned or run.mode is DispatchMode.INLINE:
            return  # create_batch has recorded its own
        try:
            params = (run.batch.batch_id, encoding.dump(asdict(metric)))
            await self.store.gateway.rows(_FINISH_DISPATCH, params)
        except CommandBusError as error:
            _log.warning("the end of batch %s was not noted: %s", run.batch.batch_id, error)

    @contextmanager
    def _timed(self, run: _Run, name: str) -> Iterator[None]:
        started = self.clock()
        try:
            yield
        finally:
            elapsed = (self.clock() - started) * 1000
            run.spent_ms[name] = run.spent_ms.get(name, 0.0) + elapsed


def _result(run: _Run) -> DispatchResult:
    if run.error is not None:
        is_lost = run.mode is DispatchMode.OPTIMISTIC and run.queued == 0
        status = DispatchStatus.FAILED_NEEDS_RECOVERY if is_lost else DispatchStatus.PARTIAL_SUCCESS
    elif run.is_cut:
        status = DispatchStatus.PARTIAL_SUCCESS
    elif run.warning is not None:
        status = DispatchStatus.SUCCESS_WITH_WARNING
    else:
        status = DispatchStatus.SUCCESS
    return DispatchResult(
        batch_id=run.batch.batch_id,
        status=status,
        database_tasks=len(run.command_ids),
        queued_tasks=run.queued,
        retry_needed=run.error is not None,
        error=run.error,
        warning=run.warning,
    )

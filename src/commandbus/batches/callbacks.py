"""Completion: telling the process that created a batch, or waits for it, that it has ended.

The commit that ends a batch notifies, in whichever process it is; a slow poll catches what a
notification missed. A callback fires once for each closing, in a task of its own: whatever it does,
the others fire. Its errors are logged.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import UUID

from commandbus.database.model import NewBatch
from commandbus.database.store import Listener, Store
from commandbus.errors import InvalidInputError, ReplyTimeoutError
from commandbus.loops import Backoff, Watcher
from commandbus.models import BatchCompletionCallback, BatchMetadata
from commandbus.names import batches_channel
from commandbus.privacy.redaction import redact_text

#: Callbacks that have fired and may be armed again by a retry of their batch.
MAX_FIRED = 1_000
#: First and longest wait between two polls, in seconds.
POLL_SECONDS = (0.02, 1.0)
#: Callbacks that run at once; the next ones wait, at most for the time-out of these.
MAX_RUNNING = 20
#: How long a callback may run by default, and how long a close waits for those it has cancelled.
TIMEOUT_SECONDS = 60.0
CLOSE_SECONDS = 5.0

# By the snapshot, not by the state of the transaction now: what has ended before the snapshot is
# either in it or will never be.
_SETTLED: LiteralString = (
    "select u.batch_id, b.batch_id is not null"
    " from unnest(cast(%s as uuid[]), cast(%s as xid8[])) as u(batch_id, transaction)"
    " left join {schema}.command_bus_batch b on b.batch_id = u.batch_id"
    " where pg_visible_in_snapshot(u.transaction, pg_current_snapshot())"
)

_log = logging.getLogger("commandbus.batches")


def check_callback(callback: object) -> None:
    """Refuse what cannot be called back with a batch, while its creator can still see it."""
    if not callable(callback):
        raise InvalidInputError(
            f"on_complete is {type(callback).__name__}, which cannot be called; give a function "
            "that takes the batch"
        )
    if inspect.isgeneratorfunction(callback) or inspect.isasyncgenfunction(callback):
        raise InvalidInputError(
            f"on_complete {_name_of(callback)} is a generator, so that a call would do nothing; "
            "give a function without yield"
        )
    try:
        inspect.signature(callback).bind(None)
    except ValueError:
        return  # written in C, and does not say what it takes
    except TypeError as error:
        raise InvalidInputError(
            f"on_complete {_name_of(callback)} is called with the batch and nothing else, and "
            f"does not take that: {error}"
        ) from None


class Completions(Watcher):
    """The callbacks of this process: in memory, by (domain, batch_id), best effort by design."""

    name = "batches"

    def __init__(
        self,
        store: Store,
        listener: Callable[[], Listener],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(listener, POLL_SECONDS)
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._places = asyncio.Semaphore(MAX_RUNNING)
        # Those that wait for a place or for their callback, and the callbacks themselves.
        self._calls: set[asyncio.Task[None]] = set()
        self._batch_callbacks: dict[tuple[str, UUID], BatchCompletionCallback] = {}
        self._fired: OrderedDict[tuple[str, UUID], BatchCompletionCallback] = OrderedDict()
        # Batches created in a transaction of the caller's, and which: it may still roll back.
        self._unsettled: dict[UUID, tuple[str, str]] = {}

    @contextmanager
    def announced(
        self, batch: NewBatch, on_complete: BatchCompletionCallback | None
    ) -> Iterator[None]:
        """Around the commit that creates a batch: its callback is there if and only if it is."""
        # Registered before the commit, or the batch could end before it is waited for.
        if on_complete is not None:
            self.register(batch.domain, batch.batch_id, on_complete)
        try:
            yield
        except BaseException:
            self.forget(batch.domain, batch.batch_id)
            raise

    def register(self, domain: str, batch_id: UUID, callback: BatchCompletionCallback) -> None:
        """Call back at each closing of this batch."""
        check_callback(callback)
        self._batch_callbacks[domain, batch_id] = callback
        self.watch(batches_channel(domain))

    def rearm(self, domain: str, batch_id: UUID) -> None:
        """The batch is open again: its callback, if this process has it, fires once more."""
        callback = self._fired.pop((domain, batch_id), None)
        if callback is not None:
            self.register(domain, batch_id, callback)

    def forget(self, domain: str, batch_id: UUID) -> None:
        """The batch was not created after all."""
        self._batch_callbacks.pop((domain, batch_id), None)

    def depends_on(self, domain: str, batch_id: UUID, transaction: str) -> None:
        """The batch is there only if this transaction, the caller's, commits."""
        self._unsettled[batch_id] = (domain, transaction)

    async def wait(
        self, domain: str, batch_id: UUID, timeout_seconds: float | None
    ) -> BatchMetadata:
        """Wait until a batch has ended."""
        polls = Backoff(*POLL_SECONDS)
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    batch = await self._store.get_batch(domain, batch_id)
                    if batch is not None and batch.completed_at is not None:
                        return batch
                    await asyncio.sleep(polls.next())
        except TimeoutError:
            raise ReplyTimeoutError(
                f"batch {batch_id} has not ended within {timeout_seconds:g} s; it goes on, look at "
                f"it with `commandbus batch show {batch_id}`"
            ) from None

    async def step(self) -> float | None:
        """Fire what has ended since the last look."""
        if self._unsettled:
            await self._settle()
        ids = [batch_id for _, batch_id in self._batch_callbacks]
        for batch in await self._store.closed_batches(ids) if ids else ():
            self._fire(batch)
        return self._polls.next()

    async def _settle(self) -> None:
        transactions = {batch_id: name for batch_id, (_, name) in self._unsettled.items()}
        params = (list(transactions), list(transactions.values()))
        for batch_id, is_there in await self._store.gateway.rows(_SETTLED, params):
            domain, _ = self._unsettled.pop(batch_id)
            if not is_there:
                self.forget(domain, batch_id)

    def _fire(self, batch: BatchMetadata) -> None:
        # Taken off the list first: a callback that fails, or hangs, is not called again.
        key = (batch.domain, batch.batch_id)
        callback = self._batch_callbacks.pop(key, None)
        if callback is None:
            return
        self._fired[key] = callback
        while len(self._fired) > MAX_FIRED:
            self._fired.popitem(last=False)
        self._keep(asyncio.create_task(self._call(callback, batch)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, callback: BatchCompletionCallback, batch: BatchMetadata) -> None:
        what = f"the callback {_name_of(callback)} of batch {batch.batch_id}"

        def ended(task: asyncio.Task[None]) -> None:
            # Also if it ends long after its time-out. A cancel that nobody asked for is an error.
            if task.cancelled():
                if not task.cancelling():
                    _log.warning("%s failed: it raised CancelledError", what)
            elif (error := task.exception()) is not None:
                _log.warning(
                    "%s failed: %s: %s", what, type(error).__name__, redact_text(str(error))
                )

        async with self._places:
            # A task of its own: it may be cancelled without a wait for what does not heed it.
            task = asyncio.create_task(_run(callback, batch))
            self._keep(task)
            task.add_done_callback(ended)
            try:
                done, _ = await asyncio.wait({task}, timeout=self._timeout_seconds)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not done:
                _log.warning(
                    "%s has not ended within %g s and is cancelled (a function that is not async "
                    "goes on in its thread); others go on", what, self._timeout_seconds,
                )  # fmt: skip
                task.cancel()

    async def close(self) -> None:
        """Stop looking; callbacks that run are cancelled, and waited for a few seconds."""
        await super().close()
        calls = set(self._calls)
        for task in calls:
            task.cancel()
        if calls:
            _, left = await asyncio.wait(calls, timeout=CLOSE_SECONDS)
            if left:
                _log.warning(
                    "%d callbacks of batches did not end when they were cancelled", len(left)
                )


async def _run(callback: BatchCompletionCallback, batch: BatchMetadata) -> None:
    call = getattr(callback, "__call__", None)  # noqa: B004  (of an object: is that async?)
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call):
        result: Any = callback(batch)
    else:
        # It may block: then only its thread waits.
        result = await _in_thread(callback, batch)
    if isinstance(result, Awaitable):
        await result


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a daemon thread of its own: one that hangs keeps no process from its end."""
    context = contextvars.copy_context()
    outcome: Future[tuple[Any, BaseException | None]] = Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result((context.run(function, *arguments), None))
        except BaseException as error:  # noqa: BLE001  (raised again where it is awaited)
            outcome.set_result((None, error))

    threading.Thread(target=work, name="commandbus-on-complete", daemon=True).start()
    result, error = await asyncio.wrap_future(outcome)
    if error is not None:
        # As an error of the task, also what would end a loop or could not be carried by a future.
        raise error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
    return result


def _name_of(callback: object) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__name__))

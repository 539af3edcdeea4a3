"""Completion: telling the process that created a batch, or waits for it, that it has ended.

The commit that ends a batch notifies, in whichever process it is; a slow poll catches what a
notification missed. A callback fires once for each closing, and its errors are logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString
from uuid import UUID

from commandbus.database.model import NewBatch
from commandbus.database.store import Listener, Store
from commandbus.errors import ReplyTimeoutError
from commandbus.loops import Backoff, Watcher
from commandbus.models import BatchCompletionCallback, BatchMetadata
from commandbus.names import batches_channel
from commandbus.privacy.redaction import redact_text

#: Callbacks that have fired and may be armed again by a retry of their batch.
MAX_FIRED = 1_000
#: First and longest wait between two polls, in seconds.
POLL_SECONDS = (0.02, 1.0)

# By the snapshot, not by the state of the transaction now: what has ended before the snapshot is
# either in it or will never be.
_SETTLED: LiteralString = (
    "select u.batch_id, b.batch_id is not null"
    " from unnest(cast(%s as uuid[]), cast(%s as xid8[])) as u(batch_id, transaction)"
    " left join {schema}.command_bus_batch b on b.batch_id = u.batch_id"
    " where pg_visible_in_snapshot(u.transaction, pg_current_snapshot())"
)

_log = logging.getLogger("commandbus.batches")


class Completions(Watcher):
    """The callbacks of this process: in memory, by (domain, batch_id), best effort by design."""

    name = "batches"

    def __init__(self, store: Store, listener: Callable[[], Listener]) -> None:
        super().__init__(listener, POLL_SECONDS)
        self._store = store
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
            await self._fire(batch)
        return self._polls.next()

    async def _settle(self) -> None:
        transactions = {batch_id: name for batch_id, (_, name) in self._unsettled.items()}
        params = (list(transactions), list(transactions.values()))
        for batch_id, is_there in await self._store.gateway.rows(_SETTLED, params):
            domain, _ = self._unsettled.pop(batch_id)
            if not is_there:
                self.forget(domain, batch_id)

    async def _fire(self, batch: BatchMetadata) -> None:
        # Taken off the list first: a callback that fails, or hangs, is not called again.
        key = (batch.domain, batch.batch_id)
        callback = self._batch_callbacks.pop(key, None)
        if callback is None:
            return
        self._fired[key] = callback
        while len(self._fired) > MAX_FIRED:
            self._fired.popitem(last=False)
        try:
            await callback(batch)
        except Exception as error:  # noqa: BLE001  (one callback must not stop the others)
            _log.warning(
                "the callback of batch %s failed: %s: %s",
                batch.batch_id, type(error).__name__, redact_text(str(error)),
            )  # fmt: skip

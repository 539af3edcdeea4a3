"""A worker that runs in the background while a block runs: `async with bus.worker("payments"):`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from commandbus.worker.options import WorkerOptions
from commandbus.worker.worker import Worker, Workers


@asynccontextmanager
async def background(workers: Workers, options: WorkerOptions) -> AsyncIterator[Worker]:
    """Start a worker, run the block, stop the worker gracefully.

    A worker that fails cancels the block, and its error is raised in place of the cancel. A cancel
    of the block cancels the worker, as a cancel of `run_worker` would.
    """
    worker = workers.new(options)
    running = asyncio.create_task(workers.serve(worker))
    interruption = _Interruption(running)
    try:
        await _started(worker, running)
        if running.done():
            running.result()
        with interruption:
            yield worker
    except asyncio.CancelledError:
        running.cancel()
        raise
    finally:
        worker.stop()
        await _ended(running)
    running.result()


async def _started(worker: Worker, running: asyncio.Task[None]) -> None:
    starting = asyncio.create_task(worker.started.wait())
    try:
        await asyncio.wait([starting, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        starting.cancel()


async def _ended(running: asyncio.Task[None]) -> None:
    try:
        # wait() and not await: a cancel must not reach a worker that is about to end by itself.
        await asyncio.wait([running])
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait([running])
        raise
    finally:
        if running.done() and not running.cancelled():
            running.exception()  # asyncio warns of one that nobody has looked at


class _Interruption:
    """Cancels the block when the worker fails, and takes that cancel back at the end of it."""

    def __init__(self, running: asyncio.Task[None]) -> None:
        self._running = running
        self._owner: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self._is_ours = False

    def __enter__(self) -> None:
        self._owner = asyncio.current_task()
        self._cancels_before = self._owner.cancelling() if self._owner is not None else 0
        self._running.add_done_callback(self._interrupt)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        owner, self._owner = self._owner, None  # the callback may be on its way already
        if not self._is_ours or owner is None:
            return False
        # Another cancel may have come as well: that one goes on.
        is_only_ours = owner.uncancel() <= self._cancels_before
        return is_only_ours and kind is not None and issubclass(kind, asyncio.CancelledError)

    def _interrupt(self, running: asyncio.Task[None]) -> None:
        has_failed = running.cancelled() or running.exception() is not None
        if has_failed and self._owner is not None:
            self._is_ours = True
            self._owner.cancel()

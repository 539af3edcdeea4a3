"""HandlerThreads: where `def` handlers run.

Daemon threads of our own: those of concurrent.futures are waited for when the process ends, so
that one hung handler would keep a stopped worker alive without limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

#: What to call, and where its result goes.
_Call = tuple[Callable[[], Any], asyncio.Future[Any]]


class HandlerThreads:
    """Up to `size` threads, started when they are needed."""

    def __init__(
        self,
        size: int,
        on_freed: Callable[[], None] = lambda: None,
        on_thread_end: Callable[[], None] = lambda: None,
        on_thread_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._size = size
        self._on_freed = on_freed
        self._on_thread_end = on_thread_end  # called in a thread that ends
        self._on_thread_start = on_thread_start  # called in one that begins
        #: Calls that go on although nobody waits for them any more. Each keeps its thread.
        self.stuck = 0
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        #: The threads that calls are in, by their identifiers.
        self._where: dict[asyncio.Future[Any], int] = {}
        #: What those that are stuck were called for.
        self._kinds: dict[asyncio.Future[Any], str] = {}

    async def run(self, function: Callable[..., Any], *arguments: Any, kind: str = "") -> Any:
        """Call a function in a thread, with the context of the caller.

        When the caller is cancelled, a call that has begun goes on, and its result is dropped.
        """
        context = contextvars.copy_context()
        future = self._loop.create_future()
        self._calls.put((lambda: context.run(function, *arguments), future))
        self._unfinished += 1
        if self._unfinished > self._threads < self._size:
            self._threads += 1
            threading.Thread(
                target=self._work, name=f"commandbus-handler-{self._threads}", daemon=True
            ).start()
        try:
            result, error = await future
        except asyncio.CancelledError as cancelled:
            # Where the thread is now is what somebody wants to know of a call that hangs.
            raise cancelled.with_traceback(_traceback_of(self._where.get(future))) from None
        finally:
            if future.cancelled():
                self.stuck += 1
                self._kinds[future] = kind
        if error is not None:
            # Not by the future: a GeneratorExit that it carries would close the caller instead.
            raise error
        return result

    @property
    def stuck_kinds(self) -> set[str]:
        """What the calls that go on were made for."""
        return set(self._kinds.values())

    def close(self) -> None:
        """Let the threads end, each after the call it is in."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        try:
            self._on_thread_start()
            self._work_off()
        finally:
            self._on_thread_end()

    def _work_off(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                self._where[future] = threading.get_ident()
                try:
                    result = function()
                except StopIteration as stop:
                    # A coroutine cannot raise it.
                    error = RuntimeError("the handler raised StopIteration")
                    error.__cause__ = stop
                except BaseException as raised:  # noqa: BLE001  (raised again where it is awaited)
                    error = raised
            try:
                self._loop.call_soon_threadsafe(self._finish, future, result, error)
            except RuntimeError:  # the loop is closed: no caller waits any more
                return

    def _finish(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._unfinished -= 1
        self._where.pop(future, None)
        if future.cancelled():
            self.stuck -= 1
            self._kinds.pop(future, None)
            if inspect.iscoroutine(result):
                result.close()  # nobody will await it
            self._on_freed()
            return
        future.set_result((result, error))


def _traceback_of(thread: int | None) -> TracebackType | None:
    """Where a thread is at this moment, as if it had raised an error there."""
    traceback: TracebackType | None = None
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None:
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return traceback

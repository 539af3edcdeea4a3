"""Reading in a thread: the event loop never waits for a file, a pipe or a generator.

The thread reads ahead into a bounded buffer; the event loop takes all that is there at once. So a
fast source is handed over in groups, and each row of a slow one as soon as it is there.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

#: Rows, and characters of text, that are read ahead.
MAX_ROWS, MAX_CHARACTERS = 256, 4 * 1024 * 1024
#: How long the end of a load waits for its source to stop: one that hangs is left behind.
CLOSE_SECONDS = 1.0

#: The place of a row (its line, or its position from 1) and what stands there.
RawRow = tuple[int, Any]


class Opened(NamedTuple):
    """A source that could be opened: its rows, what their places count, how many there are."""

    rows: Iterator[RawRow]
    unit: str
    total: int | None = None


class SourceThread:
    """Reads one source in a thread of its own, which does not keep the process alive."""

    def __init__(self, open_rows: Callable[[ExitStack], Opened]) -> None:
        self._open_rows = open_rows
        self._loop = asyncio.get_running_loop()
        # Held for a moment only, also by the thread: it reads without it.
        self._changed = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None
        self._opened: Opened | None = None
        self._rows: list[RawRow] = []
        self._characters = 0
        self._error: BaseException | None = None
        self._has_ended = False
        self._is_stopped = False

    async def start(self) -> Opened:
        """Open the source; raises what that raises."""
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._work,), name="commandbus source", daemon=True
        ).start()
        await self._until(lambda: self._opened is not None)
        if self._opened is None:
            raise self._error or RuntimeError("the source was closed")
        return self._opened

    async def next_rows(self) -> list[RawRow]:
        """What was read meanwhile; nothing at the end. Raises what the source raised, once."""
        await self._until(lambda: bool(self._rows))
        with self._changed:
            rows, self._rows, self._characters = self._rows, [], 0
            self._changed.notify()
        if not rows and self._error is not None:
            raise self._error
        return rows

    def stop(self) -> None:
        """Let the thread end; one that hangs in a read does so when that returns."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    async def close(self) -> None:
        """Stop, and give the source a moment: its caller may close what it reads from next."""
        self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._until(lambda: False)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or the thread has ended."""
        while True:
            with self._changed:
                if is_so() or self._has_ended:
                    return
                waiter = self._waiter = self._loop.create_future()
            await waiter  # not the attribute: the thread takes that away when it wakes us

    # -- in the thread

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            # Opened and closed here: opening a pipe may hang, as may closing what is being read.
            with ExitStack() as stack:
                opened = self._open_rows(stack)
                with self._changed:
                    self._opened = opened
                    self._wake()
                for row in opened.rows:
                    if not self._put(row):
                        break
        except BaseException as caught:  # noqa: BLE001  (whatever it is, the loader is told)
            error = caught
        with self._changed:
            self._error, self._has_ended = error, True
            self._wake()

    def _put(self, row: RawRow) -> bool:
        characters = _characters_of(row[1])
        with self._changed:
            while not self._is_stopped and (
                len(self._rows) >= MAX_ROWS or self._characters >= MAX_CHARACTERS
            ):
                self._changed.wait()
            self._rows.append(row)
            self._characters += characters
            if self._waiter is not None:
                self._wake()
            return not self._is_stopped

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            with suppress(RuntimeError):  # the event loop has gone, and its tasks with it
                self._loop.call_soon_threadsafe(_set, waiter)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _characters_of(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, dict):
        return sum(len(value) for value in content.values() if isinstance(value, str))
    return 0

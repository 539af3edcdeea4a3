"""Loop: the base of all background agents. It repeats a step until stopped, and can be woken.

A step that raises is logged and repeated after a growing pause: a database that goes away for a
while must not end a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from commandbus.privacy.redaction import redact_text

if TYPE_CHECKING:
    from commandbus.database.store import Listener

#: First and longest pause after an error, in seconds.
ERROR_PAUSE_SECONDS = (0.05, 2.0)


class Backoff:
    """Pauses that double from `first` to `longest`, with jitter so that processes spread out."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._pause = first

    def reset(self) -> None:
        """Start over with the shortest pause."""
        self._pause = self._first

    def next(self) -> float:
        """The pause to make now, in seconds."""
        pause = self._pause
        self._pause = min(self._pause * 2, self._longest)
        from random import uniform  # noqa: PLC0415  (not at the start)

        return pause * uniform(0.8, 1.0)  # noqa: S311  (spreading, not secrecy)


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled, also if a callee has caught that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Loop:
    """Repeats `step` until `stop`; `wake` cuts the current pause short."""

    name = "loop"

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._stopping = False
        self._errors = Backoff(*ERROR_PAUSE_SECONDS)
        self._log = logging.getLogger(f"commandbus.{self.name}")

    @property
    def is_stopping(self) -> bool:
        """Whether stop was called."""
        return self._stopping

    def stop(self) -> None:
        """Ask the loop to end after its current step."""
        self._stopping = True
        self._woken.set()

    def wake(self) -> None:
        """Cut the current pause short."""
        self._woken.set()

    async def step(self) -> float | None:
        """Do one round; return the seconds to wait for a wake-up, None to go on at once."""
        raise NotImplementedError

    async def run(self, after: float = 0.0) -> None:
        """Repeat the step until stopped; begin after this many seconds, or with a wake-up."""
        if after:
            await self.pause(after)
        while not self._stopping:
            try:
                pause = await self.step()
                self._errors.reset()
            except Exception as error:  # noqa: BLE001  (the loop must outlive any error)
                pause = self._errors.next()
                self._log.warning(
                    "%s failed, next try in %.2f s: %s: %s",
                    self.name, pause, type(error).__name__, redact_text(str(error)),
                )  # fmt: skip
            if is_being_cancelled():
                # The pool of connections may lose a cancel, if it comes with a connection.
                return
            if pause is not None and not self._stopping:
                await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Wait for a wake-up, at most this many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()


@asynccontextmanager
async def running(loops: Sequence[Loop]) -> AsyncIterator[None]:
    """Run loops in the background while a block runs."""
    tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in loops]
    try:
        yield
    finally:
        for loop, task in zip(loops, tasks, strict=True):
            loop.stop()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Watcher(Loop):
    """A loop that runs in a task of its own from the first `watch` on, until `close`.

    Notifications wake it; it also looks by itself, at first quickly, because one may be missed.
    """

    def __init__(self, listener: Callable[[], Listener], poll_seconds: tuple[float, float]) -> None:
        super().__init__()
        self._listener = listener
        self._channels: set[str] = set()
        self._polls = Backoff(*poll_seconds)
        self._task: asyncio.Task[None] | None = None

    def watch(self, channel: str) -> None:
        """Look now, and whenever this channel is notified."""
        if channel not in self._channels:
            self._channels.add(channel)
            self._listener().subscribe(channel, self.wake)
        self._polls.reset()
        self.wake()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self.run())

    async def close(self) -> None:
        """Stop looking."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

"""Doors: each shard is opened once, for all who wait for it, and one that is down is left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from commandbus.bus import CommandBus
from commandbus.errors import CommandBusError, InvalidOperationError
from commandbus.loops import is_being_cancelled
from commandbus.opening import Opening

#: Seconds in which a shard that could not be opened is left alone.
SHUT_SECONDS = 1.0


class Doors:
    """The buses of shards, opened when they are first needed."""

    def __init__(self, opening_of: Callable[[str], Opening[CommandBus]]) -> None:
        self._opening_of = opening_of
        self.open: dict[str, CommandBus] = {}
        self._openings: list[Opening[CommandBus]] = []
        #: Openings on their way; all who need the shard wait for the same one.
        self._tasks: dict[str, asyncio.Task[CommandBus]] = {}
        #: Until when a shard is not tried again, and why.
        self._shut: dict[str, tuple[float, CommandBusError]] = {}

    async def get(self, name: str) -> CommandBus:
        """The bus of a shard. One that failed a moment ago fails with the same error, at once."""
        found = self.open.get(name)
        if found is not None:
            return found
        until, error = self._shut.get(name, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise error.with_traceback(None)
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._begin(name), name=f"shard {name}")
            task.add_done_callback(_hear)
        try:
            # Who gives up does not take it from the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_being_cancelled():
                raise InvalidOperationError("this bus was closed; open another one") from None
            raise

    async def _begin(self, name: str) -> CommandBus:
        opening = self._opening_of(name)
        try:
            bus = await opening.__aenter__()
        except CommandBusError as error:
            self._shut[name] = (time.monotonic() + SHUT_SECONDS, error)
            raise
        else:
            self._openings.append(opening)
            self.open[name] = bus
            return bus
        finally:
            self._tasks.pop(name, None)

    async def close(self) -> None:
        """Close those that are open, and give up those on their way."""
        for task in list(self._tasks.values()):
            task.cancel()
            with suppress(asyncio.CancelledError, CommandBusError):
                await task
        self._tasks.clear()
        async with AsyncExitStack() as stack:
            while self._openings:
                stack.push_async_exit(self._openings.pop(0))
            self.open.clear()


def _hear(task: asyncio.Task[CommandBus]) -> None:
    """All who waited may have given up; then nobody else asks what became of it."""
    if not task.cancelled():
        task.exception()

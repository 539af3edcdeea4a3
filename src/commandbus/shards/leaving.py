"""Reads that take too long are told to end, and nobody waits until they have.

To end a statement the driver asks its server to cancel it, and waits for that too: with one that
stands still this takes as long again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Leaving:
    """Work that may be left, and what of it has not ended yet."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def within(self, seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
        """What the work gives; TimeoutError after these seconds, whatever it does then."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait([task], timeout=seconds)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who has left does not ask

    async def close(self) -> None:
        """Wait for what has not ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

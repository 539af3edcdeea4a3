"""Silence: shards that do not answer are left out of reads over all shards until they do.

Otherwise each of these reads would wait for them. They are looked at again in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from commandbus.errors import CommandBusError
from commandbus.shards.leaving import Leaving

#: Between two looks, and how long one may take, in seconds.
LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 5.0

_log = logging.getLogger("commandbus.shards")


class Silence:
    """Which shards are silent, and why."""

    def __init__(
        self, look: Callable[[str], Coroutine[Any, Any, object]], leaving: Leaving
    ) -> None:
        self._look = look
        self._leaving = leaving
        self._why: dict[str, str] = {}
        #: Those that were looked at since, and did not answer that either.
        self._sure: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def why(self, name: str) -> str | None:
        """Why a shard is left out; None: it is not."""
        return self._why.get(name)

    def is_sure(self, name: str) -> bool:
        """Whether it is no single read that took too long: it did not answer a look either."""
        return name in self._sure

    def begin(self, name: str, why: str) -> None:
        """Leave a shard out until it answers."""
        self._why[name] = why
        if name not in self._tasks:
            _log.warning("%s; reads over all shards go on without it", why)
            self._tasks[name] = asyncio.create_task(self._wait(name), name=f"silence of {name}")

    async def _wait(self, name: str) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    await self._leaving.within(PATIENCE_SECONDS, self._look(name))
                except (CommandBusError, TimeoutError):
                    self._sure.add(name)
                else:
                    _log.info("shard %r answers again", name)
                    return
        finally:
            self._sure.discard(name)
            self._why.pop(name, None)
            self._tasks.pop(name, None)

    async def close(self) -> None:
        """Look no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

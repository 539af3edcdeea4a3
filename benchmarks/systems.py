"""commandbus in the measuring process itself, for `batches` and `schema_shape`.

The comparison with other systems runs every one in a process of its own: see `adapters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from benchmarks.adapters.base import PAYLOAD
from commandbus import BatchCommand, Command, CommandBus, HandlerContext, Settings

__all__ = ["PAYLOAD", "CommandBusSystem"]


class CommandBusSystem:
    """This project, as a user would call it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    @property
    def bus(self) -> CommandBus:
        """For what the verbs below do not offer."""
        return self._bus

    @asynccontextmanager
    async def opened(self, dsn: str) -> AsyncIterator[CommandBusSystem]:
        async with CommandBus.connect(dsn, settings=self._settings) as self._bus:
            self._handled = self._awaited = 0
            self._all_handled = asyncio.Event()

            @self._bus.handler("bench", "Work")
            async def work(_: Command, __: HandlerContext) -> None:
                self._handled += 1
                if self._handled == self._awaited:
                    self._all_handled.set()

            try:
                yield self
            finally:
                await self._bus.stop()

    async def bulk_send(self, count: int) -> None:
        commands = [BatchCommand("Work", uuid4(), PAYLOAD) for _ in range(count)]
        await self._bus.send_many("bench", commands)

    async def drain(self, count: int, concurrency: int) -> None:
        self._handled, self._awaited = 0, count
        worker = asyncio.create_task(self._bus.run_worker("bench", concurrency=concurrency))
        await self._all_handled.wait()
        # stop() returns when every outcome is committed.
        await self._bus.stop()
        await worker

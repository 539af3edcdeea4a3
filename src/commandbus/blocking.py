"""BlockingBus: the one small bridge for code that is not asynchronous (Django, Flask, scripts).

    with BlockingBus.connect() as bus:
        bus.send("payments", "DebitAccount", uuid4(), {"amount": 5}, conn=my_psycopg_connection)

The bus lives on an event loop in a thread of its own; every call waits for its answer there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from commandbus.bus import CommandBus
from commandbus.models import Reply

Answer = TypeVar("Answer")


class BlockingBus:
    """Every coroutine method of CommandBus, as a plain method."""

    def __init__(self, bus: CommandBus, loop: asyncio.AbstractEventLoop) -> None:
        self._bus = bus
        self._loop = loop

    @classmethod
    @contextmanager
    def connect(cls, dsn: str | None = None, **options: Any) -> Iterator[BlockingBus]:
        """Open a bus, as CommandBus.connect does, and close it at the end of the block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="commandbus-blocking", daemon=True)
        thread.start()

        def wait(work: Coroutine[Any, Any, Answer]) -> Answer:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        connection = CommandBus.connect(dsn, **options)
        try:
            bus = wait(_enter(connection))
            try:
                yield cls(bus, loop)
            finally:
                wait(connection.__aexit__(None, None, None))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def replies(self, *args: Any, **kwargs: Any) -> Iterator[Reply]:
        """Consume replies with a plain `for`; otherwise as CommandBus.replies."""
        stream = self._bus.replies(*args, **kwargs)
        try:
            while True:
                try:
                    yield self._wait(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._wait(stream.aclose())

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bus, name)
        if not inspect.iscoroutinefunction(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wait(method(*args, **kwargs))

        return call


async def _enter(connection: Any) -> CommandBus:
    bus: CommandBus = await connection.__aenter__()
    return bus

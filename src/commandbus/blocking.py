"""BlockingBus: the one small bridge for code that is not asynchronous (Django, Flask, scripts).

    with BlockingBus.connect() as bus:
        bus.send("payments", "DebitAccount", uuid4(), {"amount": 5}, conn=my_psycopg_connection)

The bus lives on an event loop in a thread of its own; every call waits for its result there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from commandbus.bus import CommandBus
from commandbus.models import Reply

Result = TypeVar("Result")


class BlockingBus:
    """Every coroutine method of CommandBus and of its facets, as a plain method."""

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

        def wait(work: Coroutine[Any, Any, Result]) -> Result:
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
        return _blocking(getattr(self._bus, name), self._wait)


class _BlockingFacet:
    """A facet of the bus whose coroutine methods wait."""

    def __init__(self, facet: object, wait: Callable[[Any], Any]) -> None:
        self._facet = facet
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._facet, name), self._wait)


def _blocking(value: Any, wait: Callable[[Any], Any]) -> Any:
    """A coroutine method as one that waits, a facet with such methods, anything else as it is."""
    if _is_facet(value):
        return _BlockingFacet(value, wait)
    if not inspect.iscoroutinefunction(value):
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        return wait(value(*args, **kwargs))

    return call


def _is_facet(value: object) -> bool:
    kind = type(value)
    return kind.__module__.startswith("commandbus.") and any(
        inspect.iscoroutinefunction(getattr(kind, name)) for name in dir(kind)
    )


async def _enter(connection: Any) -> CommandBus:
    bus: CommandBus = await connection.__aenter__()
    return bus

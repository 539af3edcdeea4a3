"""Bridge: an event loop in a thread of its own, with a bus on it, for callers that wait.

The loop and the bus are there from the first call that needs them. They end with `close`, when the
bridge is collected, or at the end of the process: whichever comes first, and never by waiting for a
thread that the interpreter has frozen already.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from commandbus.blocking.direct import DirectCalls
from commandbus.bus import CommandBus
from commandbus.errors import InvalidOperationError

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

Result = TypeVar("Result")
Facet = TypeVar("Facet")
Connect = Callable[[], AbstractAsyncContextManager[CommandBus]]

#: How often a waiting caller looks whether the thread of the loop still lives, in seconds.
LOOK_SECONDS = 0.5
#: How long the end of the process may take because of one bus, in seconds.
EXIT_SECONDS = 2.0
#: How long it waits there for a thread that opens a bus, in seconds; such a thread ends with it.
OPENING_SECONDS = 0.05
#: How long calls that end with their bus may take for their last step, in seconds.
HAND_OVER_SECONDS = 0.2

_CLOSED = "this BlockingBus was closed while a call waited"


class _Opened:
    """A bus, open on the loop of a thread. Knows no bridge, so that a bridge can be collected."""

    def __init__(self, connect: Connect) -> None:
        self.pid = os.getpid()
        self._bus: concurrent.futures.Future[CommandBus] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._is_stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.thread = threading.Thread(
            target=self._live, args=(connect,), name="commandbus-blocking", daemon=True
        )

    def open(self) -> CommandBus:
        """Start the thread; returns the bus, or raises why there is none."""
        self.thread.start()
        try:
            return result_of(self._bus, self.thread)
        except BaseException:  # also Ctrl-C while the server does not answer
            self.ask_to_stop()
            raise

    def ask_to_stop(self) -> None:
        """Close the bus and end the thread, soon; never waits, so the collector may call it."""
        if self.pid != os.getpid():
            return  # the thread and the connections are those of the parent process
        self._is_stopping = True  # for a thread that has not come as far as its loop
        with suppress(AttributeError, RuntimeError):  # the loop does not run yet, or no more
            self.loop.call_soon_threadsafe(self._stop.set)

    def _live(self, connect: Connect) -> None:
        try:
            asyncio.run(self._serve(connect))
        except BaseException as error:  # noqa: BLE001  (raised in the thread that opens the bus)
            if not self._bus.done():
                self._bus.set_exception(error)

    async def _serve(self, connect: Connect) -> None:
        self.loop = asyncio.get_running_loop()
        if self._is_stopping:
            return
        opening = asyncio.current_task()
        stop_opening = asyncio.ensure_future(self._stop.wait())
        if opening is not None:
            stop_opening.add_done_callback(lambda _: self._bus.done() or opening.cancel())
        async with connect() as bus:
            self._bus.set_result(bus)
            await stop_opening
        # Calls that ended with the bus, such as that of a worker, hand their results over.
        if ending := asyncio.all_tasks() - {opening}:
            await asyncio.wait(ending, timeout=HAND_OVER_SECONDS)


class Bridge:
    """Runs coroutines on the loop of its bus, and waits for what they return."""

    def __init__(self, connect: Connect, direct: DirectCalls) -> None:
        self._connect = connect
        self._direct = direct
        self._lock = threading.RLock()
        self._opened: _Opened | None = None
        self._bus: CommandBus | None = None
        self._facets: dict[str, Any] = {}
        self._is_closed = False
        self._collected: weakref.finalize[..., Any] | None = None
        _bridges.add(self)

    def open(self) -> CommandBus:
        """The bus, opened if it is not."""
        refuse_a_running_loop()
        with self._lock:
            self._refuse_if_closed()
            if self._bus is None:
                opened = _Opened(self._connect)
                self._bus = opened.open()
                self._opened = opened
                self._collected = weakref.finalize(self, opened.ask_to_stop)
                self._collected.atexit = False  # _close_all waits there, this would not
                _close_all_first_at_exit()
            return self._bus

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(
                "this BlockingBus is closed; open another with BlockingBus.connect()"
            )

    def run_on(
        self, conn: Any, begin: Callable[[CommandBus], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Wait for a verb that may join the caller's transaction.

        If the calls of its connection wait too, it runs here and now, without loop and pool.
        """
        if conn is None or not self._direct.takes(conn, self._bus):
            return self.run(begin(self.open()))
        refuse_a_running_loop()
        self._refuse_if_closed()
        return self._direct.run(conn, begin, self._bus, self._run_apart)

    def _run_apart(self, work: Callable[[Gateway], Coroutine[Any, Any, None]]) -> None:
        self.run(work(self.open()._store.gateway))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine of this bus."""
        opened = self._opened
        try:
            refuse_a_running_loop()
            future = asyncio.run_coroutine_threadsafe(work, _still(opened).loop)
        except BaseException:
            work.close()
            raise
        return result_of(future, _still(opened).thread)

    def find(self, name: str) -> Any:
        """A facet of the bus, by its name (`upkeep.figures` too). It is built on the loop: two
        threads of the application that ask at the same time must not build two.
        """
        bus = self.open()
        if name not in self._facets:

            async def build() -> Any:
                return attrgetter(name)(bus)

            self._facets[name] = self.run(build())
        return self._facets[name]

    def iterate(self, stream: AsyncGenerator[Result]) -> Iterator[Result]:
        """An asynchronous stream, for a plain `for`."""
        try:
            while True:
                try:
                    yield self.run(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            # Left early; a bus that is closed by now has ended its streams.
            with suppress(InvalidOperationError):
                self.run(stream.aclose())

    def close(self, seconds: float | None = None) -> None:
        """Close the bus and end its thread; again does nothing. Waits at most `seconds`."""
        with self._lock:
            thread = self._let_go()
        if thread is not None and threading.current_thread() is not thread:
            thread.join(seconds)

    def let_go(self, seconds: float) -> threading.Thread | None:
        """Ask the bus to close; returns the thread that will have ended then.

        Waits at most `seconds` for a thread that opens the bus at this moment.
        """
        if not self._lock.acquire(timeout=seconds):
            return None
        try:
            return self._let_go()
        finally:
            self._lock.release()

    def _let_go(self) -> threading.Thread | None:
        opened, self._opened, self._bus = self._opened, None, None
        self._is_closed = True
        if self._collected is not None:
            self._collected.detach()
        if opened is None:
            return None
        opened.ask_to_stop()
        return opened.thread

    def forget(self) -> None:
        """In a forked child: leave thread and connections to the parent; the next call opens anew.

        What was open is kept for good: to collect it would close what the parent works with.
        """
        self._lock = threading.RLock()  # another thread of the parent may have had the old one
        if self._opened is not None:
            _of_the_parent.append((self._opened, self._bus))
        if self._collected is not None:
            self._collected.detach()
        self._opened = self._bus = self._collected = None
        self._facets = {}


class BlockingFacet(Generic[Facet]):
    """A facet of the bus whose verbs wait. Subclasses are in facets.py."""

    def __init__(self, bridge: Bridge, find: Callable[[], Facet]) -> None:
        self._bridge = bridge
        self._find = find

    @property
    def _facet(self) -> Facet:
        return self._find()  # each time: a forked process has another


async def _next(stream: AsyncGenerator[Result]) -> Result:
    return await anext(stream)


def result_of(future: concurrent.futures.Future[Result], thread: threading.Thread) -> Result:
    """Wait for what a thread brings; ends if the thread has, and lets Ctrl-C through."""
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # it ended just now, or this error is its result
                return future.result()
            if not thread.is_alive():
                raise InvalidOperationError(_CLOSED) from None
        except concurrent.futures.CancelledError:
            raise InvalidOperationError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise


def _still(opened: _Opened | None) -> _Opened:
    if opened is None:
        raise InvalidOperationError(_CLOSED)
    return opened


def refuse_a_running_loop() -> None:
    """A wait on the thread of an event loop would stop that loop, with all that runs on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidOperationError(
        "a BlockingBus was called on the thread of a running event loop, and would stop that loop; "
        "use CommandBus there, or call the BlockingBus in a thread (asyncio.to_thread)"
    )


_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()
_of_the_parent: list[object] = []


def _close_all() -> None:
    # All at once: the process waits for the slowest, and not for one after the other.
    until = time.monotonic() + EXIT_SECONDS
    ending = [bridge.let_go(OPENING_SECONDS) for bridge in list(_bridges)]
    for thread in filter(None, ending):
        thread.join(max(0.0, until - time.monotonic()))


def _close_all_first_at_exit() -> None:
    # The latest comes first: the embedded server, which opening a bus may have started, must not
    # stop before its connections are closed.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _after_fork() -> None:
    for bridge in list(_bridges):
        bridge.forget()


os.register_at_fork(after_in_child=_after_fork)

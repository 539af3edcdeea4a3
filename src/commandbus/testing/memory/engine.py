"""The engine of the store in memory: a verb is run wholly or not at all, and then wakes listeners.

In a transaction verbs happen when the block is left, all of them or none. Until then each is tried
on a fork of the state, after those before it: so a duplicate or a lost lease is known at once, and
no other caller sees anything (READ COMMITTED).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID, uuid4

from commandbus.errors import InvalidOperationError, LeaseLostError
from commandbus.models import Outcome
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import FakePgmqClient
from commandbus.testing.memory.outcomes import settle
from commandbus.testing.memory.tables import IdScope, State

Args = ParamSpec("Args")
Value = TypeVar("Value")
Engine = TypeVar("Engine", bound="MemoryEngine")
Wake = Callable[[], None]


class MemoryEngine:
    """The state, its lock, its clock, and those who listen; the ground of InMemoryStore."""

    def __init__(
        self, clock: FakeClock | None = None, *, command_id_scope: IdScope = "domain"
    ) -> None:
        self.clock = clock or FakeClock()
        self._state = State(self.clock, command_id_scope)
        #: The queues underneath, to look into, or to put a foreign message into.
        self.pgmq = FakePgmqClient(queues=self._state.queues)
        # Leases are extended from a thread of the worker.
        self._lock = threading.RLock()
        self._listeners: list[MemoryListener] = []
        self._watchers: list[Wake] = []
        self.clock.on_advance(self._wake_all)

    async def run(self, conn: Any, change: Callable[[State], Value]) -> Value:
        """Run a verb: in the transaction of this connection, if it is one of ours, or at once."""
        # Give way once, as a verb that waits for a server would.
        await asyncio.sleep(0)
        return conn.run(change) if isinstance(conn, MemoryConnection) else self.commit(change)

    def commit(self, change: Callable[[State], Value]) -> Value:
        """Run a verb, wholly or not at all, and wake whom it concerns."""
        with self._lock:
            backup = self._state.copy()
            try:
                value = change(self._state)
            except BaseException:
                self._state.restore(backup)
                raise
            notices, self._state.notices = self._state.notices, []
        self._notify(notices)
        return value

    def read(self, question: Callable[[State], Value]) -> Value:
        """Look at the state, in a moment in which nothing changes."""
        with self._lock:
            return question(self._state)

    def _notify(self, channels: Iterable[str]) -> None:
        for channel in channels:
            for listener in tuple(self._listeners):
                listener.notify(channel)
        for watcher in tuple(self._watchers):
            watcher()

    def _wake_all(self) -> None:
        # Time has passed: anything may be due.
        for listener in tuple(self._listeners):
            listener.notify_all()
        self._notify(())

    @contextmanager
    def watched_by(self, watcher: Wake) -> Iterator[None]:
        """Call `watcher` after every change, for the length of a block."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)


def changes(
    verb: Callable[Concatenate[State, Args], Value],
) -> Callable[Concatenate[Engine, Args], Coroutine[Any, Any, Value]]:
    """A method that runs this verb on the state; documented once, in database/store.py."""

    async def method(self: Engine, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        return await self.run(None, lambda state: verb(state, *args, **kwargs))

    return method


def reads(
    question: Callable[Concatenate[State, Args], Value],
) -> Callable[Concatenate[Engine, Args], Coroutine[Any, Any, Value]]:
    """A method that asks this of the state; documented once, in database/store.py."""

    async def method(self: Engine, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        return self.read(lambda state: question(state, *args, **kwargs))

    return method


class MemoryListener:
    """Implements commandbus.database.store.Listener: LISTEN and NOTIFY within one process."""

    def __init__(self, listeners: list[MemoryListener]) -> None:
        self._listeners = listeners
        self._wakes: dict[str, list[Wake]] = {}

    def subscribe(self, channel: str, wake: Wake) -> None:
        """Call `wake` whenever the channel is notified."""
        self._wakes.setdefault(channel, []).append(wake)

    def unsubscribe(self, channel: str, wake: Wake) -> None:
        """Undo subscribe."""
        self._wakes[channel].remove(wake)

    def notify(self, channel: str) -> None:
        """Wake the subscribers of one channel."""
        for wake in tuple(self._wakes.get(channel, ())):
            wake()

    def notify_all(self) -> None:
        """Wake the subscribers of all channels."""
        for channel in tuple(self._wakes):
            self.notify(channel)

    async def run(self) -> None:
        """Listen until cancelled. Those who subscribed before are woken once, to have a look."""
        self._listeners.append(self)
        try:
            self.notify_all()
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(self)


class MemoryConnection:
    """What stands for a connection: good for `conn=` of the bus, not for SQL."""

    def __init__(self, fork: Callable[[], State]) -> None:
        self._fork = fork
        self._done: list[tuple[Callable[[State], Any], Any]] = []
        self.name = str(uuid4())
        self.is_closed = False

    def run(self, change: Callable[[State], Value]) -> Value:
        """Try a verb, and remember it for the commit if it went well."""
        if self.is_closed:
            raise InvalidOperationError("the transaction of this connection has ended")
        fork = self._fork()
        self.replay(fork)
        value = change(fork)
        self._done.append((change, value))
        return value

    def replay(self, state: State) -> None:
        """Do everything again, in earnest."""
        for change, value in self._done:
            if change(state) != value:
                raise LeaseLostError("a lease was lost before the transaction was committed")


class MemoryTransaction:
    """Implements commandbus.database.store.Transaction."""

    def __init__(self, fork: Callable[[], State]) -> None:
        self.conn = MemoryConnection(fork)

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in this transaction; returns the commands whose lease is lost."""
        return self.conn.run(lambda state: settle(state, domain, outcomes))

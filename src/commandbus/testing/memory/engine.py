# ruff: noqa: D102  (what database/store.py documents is not documented again)
"""The engine of the store in memory: a verb happens completely or not at all, then wakes listeners.

In a transaction all verbs happen together when the block is left. Until then each is tried on a
fork of the state, after those before it: so a duplicate or a lost lease is known at once, and no
other caller sees anything (READ COMMITTED).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from uuid import UUID

from commandbus.database.model import Outcome
from commandbus.errors import InvalidOperationError, LeaseLostError, PermanentCommandError
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import FakePgmqClient
from commandbus.testing.memory.expiry import end_expired
from commandbus.testing.memory.keys import promote
from commandbus.testing.memory.leasing import settle
from commandbus.testing.memory.pausing import end_pauses
from commandbus.testing.memory.tables import IdScope, State

Args = ParamSpec("Args")
Value = TypeVar("Value")
Engine = TypeVar("Engine", bound="MemoryEngine")
Wake = Callable[[], None]

#: The one error about everything that the command core in memory lacks.
NEEDS_POSTGRES = (
    "this needs PostgreSQL, and this bus keeps everything in memory; test it on the embedded "
    "server: CommandBus.connect()"
)


class MemoryEngine:
    """The state, its lock, its clock and its listeners; the base of InMemoryStore."""

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
        #: Workers that live: those that gave a heartbeat and did not say that they have ended.
        self.workers: set[str] = set()
        self._secret_keys: dict[tuple[str, str], frozenset[str]] = {}
        self.clock.on_advance(self._time_has_passed)

    async def run(self, conn: Any, change: Callable[[State], Value]) -> Value:
        """Run a verb: in the transaction of this connection, if it is one of ours, or at once."""
        # Let other tasks run once, as a verb that waits for a server would.
        await asyncio.sleep(0)
        return conn.run(change) if isinstance(conn, MemoryTransaction) else self.commit(change)

    def commit(self, change: Callable[[State], Value]) -> Value:
        """Run a verb, completely or not at all, and wake the listeners that it concerns."""
        with self._lock:
            backup = self._state.copy()
            try:
                value = applied(change, self._state)
            except BaseException:
                self._state.restore(backup)
                raise
            notices, self._state.notices = self._state.notices, []
        self._notify(notices)
        return value

    def read(self, question: Callable[[State], Value]) -> Value:
        """Look at the state while nothing changes."""
        with self._lock:
            return question(self._state)

    def _time_has_passed(self) -> None:
        # What the chores of a worker do; then anything may be due.
        self.commit(end_expired)
        self.commit(end_pauses)
        self._notify([None])

    def _notify(self, channels: Iterable[str | None]) -> None:
        for channel in channels:
            for listener in tuple(self._listeners):
                listener.notify(channel)
        for watcher in tuple(self._watchers):
            watcher()

    @contextmanager
    def watched_by(self, watcher: Wake) -> Iterator[None]:
        """Call `watcher` after every change, until the block is left."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)


def applied(change: Callable[[State], Value], state: State) -> Value:
    """Make a change. Where it has ended a command, the next of its ordering key is due."""
    value = change(state)
    promote(state)
    return value


def verb(
    function: Callable[Concatenate[State, Args], Value],
) -> Callable[Concatenate[Engine, Args], Coroutine[Any, Any, Value]]:
    """A method that runs this function on the state; a `conn` says in which transaction."""

    async def method(self: Engine, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        return await self.run(kwargs.get("conn"), lambda state: function(state, *args, **kwargs))

    return method


@dataclass(eq=False)
class MemoryListener:
    """Implements commandbus.database.store.Listener: LISTEN and NOTIFY within one process."""

    _listeners: list[MemoryListener]
    _wakes: dict[str, list[Wake]] = field(default_factory=dict)

    def subscribe(self, channel: str, wake: Wake) -> None:
        self._wakes.setdefault(channel, []).append(wake)

    def unsubscribe(self, channel: str, wake: Wake) -> None:
        self._wakes[channel].remove(wake)

    def notify(self, channel: str | None) -> None:
        """Wake the subscribers of one channel; None: of all."""
        wakes = self._wakes.values() if channel is None else [self._wakes.get(channel, [])]
        for wake in [wake for some in wakes for wake in some]:
            wake()

    async def run(self) -> None:
        self._listeners.append(self)
        try:
            # All subscribers look once: nothing has told them what happened before.
            self.notify(None)
            await asyncio.Event().wait()
        finally:
            self._listeners.remove(self)


class MemoryTransaction:
    """Implements commandbus.database.store.Transaction, and is its own connection.

    It is good for the `conn` of the bus's verbs. There is no SQL on it: a handler that tries is
    parked at once, with the error that says so.
    """

    def __init__(self, fork: Callable[[], State]) -> None:
        self._fork = fork
        self._done: list[tuple[Callable[[State], Any], Any]] = []
        self.is_closed = False
        self.conn = self
        self.driver = self

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PermanentCommandError("NEEDS_POSTGRESQL", f"conn.{name}: {NEEDS_POSTGRES}")

    def run(self, change: Callable[[State], Value]) -> Value:
        """Try a verb, and remember it for the commit if it went well."""
        if self.is_closed:
            raise InvalidOperationError("the transaction of this connection has ended")
        fork = self._fork()
        self.replay(fork)
        value = applied(change, fork)
        self._done.append((change, value))
        return value

    def replay(self, state: State) -> None:
        """Do everything again, on this state."""
        for change, value in self._done:
            if applied(change, state) != value:
                raise LeaseLostError("a lease was lost before the transaction was committed")

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        return self.run(lambda state: settle(state, domain, outcomes))

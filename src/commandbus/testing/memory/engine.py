"""The engine of the in-memory store: a verb is run wholly or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import FakePgmqClient
from commandbus.testing.memory.listening import Switchboard
from commandbus.testing.memory.tables import IdScope, State
from commandbus.testing.memory.transaction import MemoryConnection

Args = ParamSpec("Args")
Value = TypeVar("Value")


class MemoryEngine:
    """The state, its lock and its clock; part of InMemoryStore."""

    def __init__(
        self, clock: FakeClock | None = None, *, command_id_scope: IdScope = "domain"
    ) -> None:
        self.clock = clock or FakeClock()
        self._state = State(self.clock, command_id_scope)
        #: The queues underneath, to look into, or to put a stranger's message into.
        self.pgmq = FakePgmqClient(queues=self._state.queues)
        # Leases are extended from a thread of the worker.
        self._lock = threading.RLock()
        self._workers: set[str] = set()
        self._switchboard = Switchboard()
        self.clock.on_advance(self._switchboard.wake_all)

    async def _run(
        self,
        verb: Callable[Concatenate[State, Args], Value],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Value:
        return await self._run_on(None, verb, *args, **kwargs)

    async def _run_on(
        self,
        conn: Any,
        verb: Callable[Concatenate[State, Args], Value],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Value:
        # Give way once, as a verb that waits for a server would.
        await asyncio.sleep(0)
        run = conn.run if isinstance(conn, MemoryConnection) else self._commit
        return run(lambda state: verb(state, *args, **kwargs))

    def _commit(self, verb: Callable[[State], Value]) -> Value:
        """Run a verb, wholly or not at all, and wake whom it concerns."""
        with self._lock:
            backup = self._state.copy()
            try:
                value = verb(self._state)
            except BaseException:
                self._state.restore(backup)
                raise
            notices, self._state.notices = self._state.notices, []
        self._switchboard.notify(notices)
        return value

    def _read(
        self,
        question: Callable[Concatenate[State, Args], Value],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Value:
        with self._lock:
            return question(self._state, *args, **kwargs)

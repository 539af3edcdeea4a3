"""Transactions: verbs that happen when the block is left, all of them or none.

Until then each is tried on a fork of the state, after those before it: so a duplicate or a lost
lease is known at once, and nobody else sees anything (READ COMMITTED).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

from commandbus.errors import InvalidOperationError, LeaseLostError
from commandbus.models import Outcome
from commandbus.testing.memory.settle import settle
from commandbus.testing.memory.tables import State

Value = TypeVar("Value")
Verb = Callable[[State], Any]


class MemoryConnection:
    """What stands for a connection: good for `conn=` of the bus, not for SQL."""

    def __init__(self, fork: Callable[[], State]) -> None:
        self._fork = fork
        self._done: list[tuple[Verb, Any]] = []
        self.name = str(uuid4())
        self.is_closed = False

    def run(self, verb: Callable[[State], Value]) -> Value:
        """Try a verb, and remember it for the commit if it went well."""
        if self.is_closed:
            raise InvalidOperationError("the transaction of this connection has ended")
        fork = self._fork()
        self.replay(fork)
        value = verb(fork)
        self._done.append((verb, value))
        return value

    def replay(self, state: State) -> None:
        """Do everything again, in earnest."""
        for verb, value in self._done:
            if verb(state) != value:
                raise LeaseLostError("a lease was lost before the transaction was committed")


class MemoryTransaction:
    """Implements commandbus.database.store.Transaction."""

    def __init__(self, fork: Callable[[], State]) -> None:
        self.conn = MemoryConnection(fork)

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in this transaction; returns the commands whose lease is lost."""
        return self.conn.run(lambda state: settle(state, domain, outcomes))

# ruff: noqa: D102  (what database/transactions.py documents is not documented again)
"""Transactions of threads, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from uuid import UUID

from commandbus.database.model import Outcome
from commandbus.testing.memory.engine import MemoryEngine, MemoryTransaction
from commandbus.testing.memory.leasing import settle
from commandbus.testing.memory.tables import State

Value = TypeVar("Value")


class MemoryTransactions:
    """Implements commandbus.database.transactions.Transactions."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def in_thread(self) -> Iterator[MemoryTransaction]:
        transaction = MemoryTransaction(lambda: self._engine.read(State.copy))
        try:
            yield transaction
            self._commit(transaction.replay)
        finally:
            transaction.is_closed = True

    def _commit(self, change: Callable[[State], Value]) -> Value:
        # On the loop: it wakes those who wait there.
        return asyncio.run_coroutine_threadsafe(self._engine.run(None, change), self._loop).result()

    def close_thread(self) -> None: ...

    def settle(self, domain: str, outcomes: Sequence[Outcome], conn: Any) -> set[UUID]:
        def change(state: State) -> set[UUID]:
            return settle(state, domain, outcomes)

        return conn.run(change) if isinstance(conn, MemoryTransaction) else self._commit(change)

    def driver(self, conn: Any) -> Any:
        return conn

    async def async_driver(self, conn: Any) -> Any:
        return conn

    def is_lost(self, driver: Any, error: BaseException) -> bool:  # noqa: ARG002
        return False

    def leave_reader(self, driver: Any, error: BaseException) -> None: ...

    def interrupt(self, driver: Any) -> None: ...

    @asynccontextmanager
    async def marker(self) -> AsyncIterator[MemoryMarker]:
        yield MemoryMarker()


class MemoryMarker:
    """Implements commandbus.database.transactions.Marker: no connection leads anywhere else."""

    async def look(self, conn: Any) -> None: ...

    def look_blocking(self, conn: Any) -> None: ...

    async def is_committed(self, transaction: None) -> bool:  # noqa: ARG002
        return True

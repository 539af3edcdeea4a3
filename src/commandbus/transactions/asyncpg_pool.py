"""Asyncpg: connections of an asyncpg pool as the transactions of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from commandbus.errors import InvalidSettingError


class Asyncpg:
    """`ctx.conn` is a connection of this pool, in a transaction; for `async def` handlers.

    The pool must lead to the database of the bus. Each command that runs keeps one connection.
    """

    def __init__(self, pool: Any) -> None:
        if not hasattr(pool, "acquire"):
            raise InvalidSettingError(
                f"Asyncpg was given a {type(pool).__name__}; give it a pool of asyncpg"
            )
        self._pool = pool

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        """A connection of the pool in a transaction, which its end commits."""
        async with self._pool.acquire() as conn, conn.transaction():
            yield conn

    def __repr__(self) -> str:
        return f"Asyncpg({type(self._pool).__name__})"

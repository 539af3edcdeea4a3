"""Sessions on the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest

from tests.sql.helpers import Session

Open = Callable[[], Awaitable[Session]]


@pytest.fixture
async def db(conn: psycopg.AsyncConnection) -> Session:
    """The test's own session: autocommit, to act and to look."""
    return Session(conn)


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[Open]:
    """Opens further sessions, each inside a transaction of its own once it does something."""
    async with AsyncExitStack() as stack:

        async def open_session() -> Session:
            conn = await psycopg.AsyncConnection.connect(dsn)
            stack.push_async_callback(conn.close)
            return Session(conn)

        yield open_session

"""Connections: those that we open, alone or in pools, and how a statement runs on them."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, LiteralString, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from commandbus.database.sessions import (
    OurBlockingCursor,
    OurConnection,
    OurCursor,
    prepare,
    rows_of,
    run_pooled,
)

Row = tuple[Any, ...]
AsyncPool = AsyncConnectionPool[Any]


class Statement:
    """One statement in the placeholder style of each driver; the schema is filled in once.

    Written with %s for parameters and {schema} for our schema. Casts are spelled `cast(… as …)`,
    because `::` is a placeholder to SQLAlchemy.
    """

    def __init__(self, text: LiteralString, schema: str) -> None:
        composed = sql.SQL(text).format(schema=sql.Identifier(schema))
        self.psycopg: bytes = composed.as_bytes(None)
        plain = composed.as_string(None)
        # By way of text: an application may have told asyncpg to encode whatever goes to jsonb.
        self.asyncpg = re.sub(
            r"cast\((\$\d+) as jsonb\)", r"cast(cast(\1 as text) as jsonb)", _numbered(plain, "$")
        )
        self.sqlalchemy = _numbered(plain, ":p")
        #: Which parameters are JSON.
        marks = re.findall(r"%s( as jsonb)?", plain)
        self.documents = frozenset(index for index, mark in enumerate(marks) if mark)


def _numbered(text: str, mark: str) -> str:
    numbers = count(1)
    return re.sub("%s", lambda _: f"{mark}{next(numbers)}", text)


def address_parts(address: str) -> dict[str, Any]:
    """The parts of an address that libpq takes."""
    return dict(psycopg.conninfo.conninfo_to_dict(address))


@dataclass(frozen=True, slots=True)
class ConnectionSource:
    """How to open connections like those of a pool, beside the pool."""

    conninfo: str | Callable[[], Any]
    kwargs: dict[str, Any] | Callable[[], Any] | None

    @classmethod
    def of(cls, pool: AsyncPool) -> ConnectionSource:
        """The source that a pool draws from."""
        return cls(cast("Any", pool.conninfo), cast("Any", pool.kwargs))

    async def resolve(self) -> tuple[str, dict[str, Any]]:
        """The address and the arguments, asked anew each time: passwords may be rotated."""
        conninfo = await _resolve(self.conninfo)
        kwargs = dict(await _resolve(self.kwargs) or {})
        # TCP settings that find a dead peer in seconds; harmless on a local socket.
        guards: dict[str, Any] = {
            "connect_timeout": 5,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        }
        return conninfo or "", {**guards, **kwargs, "autocommit": True}

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """Open one autocommit connection."""
        conninfo, kwargs = await self.resolve()
        conn = await OurConnection.connect(conninfo, **kwargs)
        try:
            await prepare(conn, is_shared=False, timeout_seconds=None)
        except BaseException:
            await conn.close()
            raise
        return conn

    async def open_pool(
        self,
        purpose: str,
        size: int,
        *,
        timeout_seconds: float,
        statement_timeout_seconds: float | None,
        is_shared: bool = False,
    ) -> AsyncPool:
        """Open a pool of autocommit connections; shared ones run statements of handlers too."""

        async def configure(conn: psycopg.AsyncConnection[Any]) -> None:
            await prepare(conn, is_shared=is_shared, timeout_seconds=statement_timeout_seconds)

        async def resolve_kwargs() -> dict[str, Any]:
            return (await self.resolve())[1]

        pool: AsyncPool = AsyncConnectionPool(
            cast("Any", self.conninfo),
            connection_class=OurConnection,
            kwargs=cast("Any", resolve_kwargs),
            min_size=1,
            max_size=size,
            timeout=timeout_seconds,
            open=False,
            name=f"commandbus-{purpose}",
            configure=configure,
            check=_check_if_suspicious,
            # A pool that cannot connect tries again quickly: the server may be back at once.
            reconnect_timeout=5.0,
        )
        try:
            await pool.open()
        except BaseException:
            await pool.close()
            raise
        return pool


class PoolEmptyError(PoolTimeout):
    """The server has connections to give; this pool may not have more."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"all {size} connections of the pool {name} were in use")


#: Probes on their way. Very many may wait for the same pool: one connection answers them all.
_probes: WeakKeyDictionary[AsyncPool, asyncio.Future[None]] = WeakKeyDictionary()


def _probe(pool: AsyncPool) -> asyncio.Future[None]:
    async def connect() -> None:
        await (await ConnectionSource.of(pool).connect()).close()

    known = _probes.get(pool)
    if known is None or known.done():
        known = _probes[pool] = asyncio.ensure_future(connect())
    return known


class borrowed:  # noqa: N801  (used like a function)
    """A connection of a pool for a block; if none comes, the error says why."""

    __slots__ = ("_context", "_pool")

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._context = pool.connection()

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        try:
            conn: psycopg.AsyncConnection[Any] = await self._context.__aenter__()
            return conn
        except PoolTimeout as error:
            # All are in use, or none can be made? One more, beside the pool, tells.
            await asyncio.shield(_probe(self._pool))
            raise PoolEmptyError(self._pool.name, self._pool.max_size) from error

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._context.__aexit__(*error)


async def _check_if_suspicious(conn: psycopg.AsyncConnection[Any]) -> None:
    # A server that went away leaves something to read on an idle connection (its farewell, or the
    # end of the stream). So a look at the socket, which costs microseconds, tells whether the
    # round trip of a real check is worth it.
    readable, _, _ = select.select([conn.fileno()], [], [], 0)
    if readable:
        await AsyncConnectionPool.check_connection(conn)


async def run(conn: psycopg.AsyncConnection[Any], statement: Statement, params: Row) -> list[Row]:
    """Run a statement on one of our own connections, prepared."""
    if isinstance(conn, OurConnection) and (conn.begins_itself or conn.seconds):
        return await run_pooled(conn, statement.psycopg, params)
    cursor = OurCursor(conn)
    await cursor.execute(statement.psycopg, params, prepare=True)
    return await rows_of(cursor)


async def fetch(
    conn: psycopg.AsyncConnection[Any], query: LiteralString | bytes | sql.Composed, *params: object
) -> list[Row]:
    """Run a query that is seldom run, so that preparing it would not pay; give its rows."""
    cursor = OurCursor(conn)
    await cursor.execute(query, params or None)
    return await rows_of(cursor)


def run_blocking(conn: psycopg.Connection[Any], statement: Statement, params: Row) -> list[Row]:
    """The same on a connection that is not asynchronous."""
    with OurBlockingCursor(conn) as cursor:
        cursor.execute(statement.psycopg, params)
        return cursor.fetchall()


async def _resolve(value: Any) -> Any:
    if not callable(value):
        return value
    resolved = value()
    return await resolved if isinstance(resolved, Awaitable) else resolved

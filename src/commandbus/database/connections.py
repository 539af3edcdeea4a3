"""Connections: how a statement reaches PostgreSQL, ours or the caller's own.

`conn=` takes whatever the application has its transaction on: a psycopg connection (sync or
async), an SQLAlchemy session or connection (sync or async), or an asyncpg connection. Each is
known by the module of its class, so that nothing optional has to be imported.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from commandbus.errors import InvalidInputError

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
        self.asyncpg = _numbered(plain, "$")
        self.sqlalchemy = _numbered(plain, ":p")


def _numbered(text: str, mark: str) -> str:
    numbers = count(1)
    return re.sub("%s", lambda _: f"{mark}{next(numbers)}", text)


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
        return await psycopg.AsyncConnection.connect(conninfo, **kwargs)

    async def open_pool(
        self,
        purpose: str,
        size: int,
        *,
        timeout_seconds: float,
        statement_timeout_seconds: float | None,
    ) -> AsyncPool:
        """Open a pool of autocommit connections."""

        async def configure(conn: psycopg.AsyncConnection[Any]) -> None:
            if statement_timeout_seconds is not None:
                await conn.execute(
                    "select set_config('statement_timeout', %s, false)",
                    (f"{round(statement_timeout_seconds * 1000)}ms",),
                )

        async def resolve_kwargs() -> dict[str, Any]:
            return (await self.resolve())[1]

        pool: AsyncPool = AsyncConnectionPool(
            cast("Any", self.conninfo),
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
        await pool.open()
        return pool


async def _check_if_suspicious(conn: psycopg.AsyncConnection[Any]) -> None:
    # A server that went away leaves something to read on an idle connection (its farewell, or the
    # end of the stream). So a look at the socket, which costs microseconds, tells whether the
    # round trip of a real check is worth it.
    readable, _, _ = select.select([conn.fileno()], [], [], 0)
    if readable:
        await AsyncConnectionPool.check_connection(conn)


async def run(conn: psycopg.AsyncConnection[Any], statement: Statement, params: Row) -> list[Row]:
    """Run a statement on one of our own connections, prepared."""
    cursor = conn.cursor(row_factory=tuple_row)
    await cursor.execute(statement.psycopg, params, prepare=True)
    # Not `cursor.description`: that makes an object for each column, on every call.
    has_rows = cursor.pgresult is not None and cursor.pgresult.nfields > 0
    return await cursor.fetchall() if has_rows else []


async def fetch(
    conn: psycopg.AsyncConnection[Any], query: LiteralString | bytes | sql.Composed, *params: object
) -> list[Row]:
    """Run a query that is seldom run, so that preparing it would not pay; give its rows."""
    cursor = conn.cursor(row_factory=tuple_row)
    await cursor.execute(query, params or None)
    return await cursor.fetchall() if cursor.description else []


async def run_on_foreign(conn: Any, statement: Statement, params: Row) -> list[Row]:
    """Run a statement in the transaction of the caller's own connection."""
    if isinstance(conn, psycopg.AsyncConnection):
        return await fetch(conn, statement.psycopg, *params)
    if isinstance(conn, psycopg.Connection):
        return await asyncio.to_thread(run_blocking, conn, statement, params)
    origin = _origin(conn)
    # Engines, pools and session factories come from the same packages, and have no transaction.
    if origin == "sqlalchemy" and hasattr(conn, "execute"):
        return await _run_sqlalchemy(conn, statement, params)
    if origin == "asyncpg" and hasattr(conn, "is_in_transaction"):
        return [tuple(row) for row in await conn.fetch(statement.asyncpg, *params)]
    raise InvalidInputError(
        f"conn is a {type(conn).__module__}.{type(conn).__name__}; use a psycopg, SQLAlchemy or "
        "asyncpg connection, or an SQLAlchemy session"
    )


def _origin(conn: Any) -> str | None:
    # An asyncpg connection from a pool is a proxy of the same package.
    for base in type(conn).__mro__:
        package = base.__module__.partition(".")[0]
        if package in {"sqlalchemy", "asyncpg"}:
            return package
    return None


def run_blocking(conn: psycopg.Connection[Any], statement: Statement, params: Row) -> list[Row]:
    """The same on a connection that is not asynchronous."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement.psycopg, params)
        return cursor.fetchall() if cursor.description else []


async def _run_sqlalchemy(conn: Any, statement: Statement, params: Row) -> list[Row]:
    from sqlalchemy import text  # noqa: PLC0415  (only there when the caller has it)

    clause = text(statement.sqlalchemy)
    values = {f"p{index}": value for index, value in enumerate(params, 1)}
    if inspect.iscoroutinefunction(conn.execute):
        result = await conn.execute(clause, values)
    else:
        result = await asyncio.to_thread(conn.execute, clause, values)
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


async def _resolve(value: Any) -> Any:
    if not callable(value):
        return value
    resolved = value()
    return await resolved if isinstance(resolved, Awaitable) else resolved

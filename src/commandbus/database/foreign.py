"""Foreign connections: `conn=`, whatever the application has its transaction on.

A psycopg connection (sync or async), an SQLAlchemy session or connection (sync or async), or an
asyncpg connection. Each is known by the module of its class, so that nothing optional has to be
imported. Their settings are the application's: nothing here changes one.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from commandbus.database.connections import Statement, fetch, run_blocking
from commandbus.database.read_only import READ_ONLY, reads_only, states_of
from commandbus.database.sessions import Row
from commandbus.errors import InvalidInputError

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
#: SQLSTATEs of a connection that is no more: cut, ended by the server, or to one that only reads.
_CUT = ("08", "57P01", "57P02", "57P03", "57P05", READ_ONLY)


async def run_on_foreign(
    conn: Any, statement: Statement, params: Row, *, may_autocommit: bool = False
) -> list[Row]:
    """Run a statement in the transaction of the caller's own connection."""
    params = _in_ascii(statement, params)
    conn = _unscoped(conn)
    origin = _origin(conn)
    try:
        if origin == "psycopg":
            return await _run_psycopg(conn, statement, params, may_autocommit)
        if origin == "sqlalchemy":
            return await _run_sqlalchemy(conn, statement, params, may_autocommit)
        if origin == "asyncpg":
            if not conn.is_closed():  # else the driver says so
                _refuse_if(not may_autocommit and not conn.is_in_transaction())
            return [tuple(row) for row in await conn.fetch(statement.asyncpg, *params)]
    except UnicodeEncodeError as error:
        raise _unwritable(error) from None
    raise InvalidInputError(
        f"conn is a {type(conn).__module__}.{type(conn).__name__}; use a psycopg, SQLAlchemy or "
        "asyncpg connection, or an SQLAlchemy session"
    )


def _unwritable(error: UnicodeEncodeError) -> InvalidInputError:
    return InvalidInputError(
        f"a text cannot be written in {error.encoding}, the client_encoding of conn; use "
        "a connection with client_encoding UTF8"
    )


def _origin(conn: Any) -> str | None:
    if isinstance(conn, psycopg.AsyncConnection | psycopg.Connection):
        return "psycopg"
    # Engines, pools and session factories come from the same packages, and have no transaction. An
    # asyncpg connection from a pool is a proxy of the same package.
    needed = {"sqlalchemy": "execute", "asyncpg": "is_in_transaction"}
    for base in type(conn).__mro__:
        package = base.__module__.partition(".")[0]
        if package in needed:
            return package if hasattr(conn, needed[package]) else None
    return None


def _in_ascii(statement: Statement, params: Row) -> Row:
    # The encoding of the connection may lack characters of a payload. JSON can do without them.
    return tuple(
        _NOT_ASCII.sub(_escaped, value)
        if index in statement.documents and isinstance(value, str) and not value.isascii()
        else value
        for index, value in enumerate(params)
    )


def _escaped(found: re.Match[str]) -> str:
    code = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{code[i : i + 4]}" for i in range(0, len(code), 4))


def _refuse_if(is_autocommit: bool) -> None:
    if is_autocommit:
        raise InvalidInputError(
            "conn commits each statement, so the command would exist whatever becomes of your "
            "transaction; open a transaction on it, or leave conn out. The setting "
            "allow_autocommit_conn allows it"
        )


def refuse_unusual(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], what: str) -> None:
    """Refuse a session in which the literals of our functions, and of PGMQ's, mean something else.

    The driver knows it from the server's greeting, so this asks nothing.
    """
    if conn.pgconn.parameter_status(b"standard_conforming_strings") == b"off":
        raise InvalidInputError(f"{what} has standard_conforming_strings = off; set it to on")


async def _run_psycopg(
    conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any],
    statement: Statement,
    params: Row,
    may_autocommit: bool,
) -> list[Row]:
    refuse_unusual(conn, "conn")
    if isinstance(conn, psycopg.AsyncConnection):
        if not may_autocommit and _is_outside(conn):
            if conn.pgconn.pipeline_status is not PipelineStatus.OFF:
                # A `begin` may be on its way; entering a pipeline once more waits for it.
                async with conn.pipeline():
                    pass
            _refuse_if(_is_outside(conn))
        return await fetch(conn, statement.psycopg, *params)
    return await asyncio.to_thread(_run_blocking, conn, statement, params, may_autocommit)


def _run_blocking(
    conn: psycopg.Connection[Any], statement: Statement, params: Row, may_autocommit: bool
) -> list[Row]:
    if not may_autocommit and _is_outside(conn):
        if conn.pgconn.pipeline_status is not PipelineStatus.OFF:
            with conn.pipeline():
                pass
        _refuse_if(_is_outside(conn))
    return run_blocking(conn, statement, params)


def _is_outside(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    status = conn.info.transaction_status
    is_outside = status is TransactionStatus.IDLE or (
        status is TransactionStatus.ACTIVE and conn.pgconn.pipeline_status is not PipelineStatus.OFF
    )
    return conn.autocommit and is_outside


async def _run_sqlalchemy(
    conn: Any, statement: Statement, params: Row, may_autocommit: bool
) -> list[Row]:
    if _is_asynchronous(conn):
        rows: list[Row] = await conn.run_sync(
            _run_sqlalchemy_blocking, statement, params, may_autocommit
        )
        return rows
    return await asyncio.to_thread(
        _run_sqlalchemy_blocking, conn, statement, params, may_autocommit
    )


def _run_sqlalchemy_blocking(
    session: Any, statement: Statement, params: Row, may_autocommit: bool
) -> list[Row]:
    from sqlalchemy import text  # noqa: PLC0415  (only there when the caller has it)

    clause = text(statement.sqlalchemy)
    values = {f"p{index}": value for index, value in enumerate(params, 1)}
    if not may_autocommit:
        # A session begins with its first statement; `connection` is the one it will be on.
        proxy = _sqlalchemy_proxy(session)
        _refuse_if(bool(getattr(proxy.dbapi_connection, "autocommit", False)))
    result = session.execute(clause, values)
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def _sqlalchemy_proxy(session: Any) -> Any:
    """What the pool has given a session, or a connection."""
    own = session.connection
    return own().connection if callable(own) else own


# -- in the calling thread


def run_on_foreign_blocking(
    conn: Any, statement: Statement, params: Row, *, may_autocommit: bool = False
) -> list[Row]:
    """Run a statement in the caller's thread, in the transaction of the caller's connection."""
    params = _in_ascii(statement, params)
    conn = _bare(conn)
    try:
        if isinstance(conn, psycopg.Connection):
            refuse_unusual(conn, "conn")
            return _run_blocking(conn, statement, params, may_autocommit)
        if is_blocking(conn):
            return _run_sqlalchemy_blocking(conn, statement, params, may_autocommit)
    except UnicodeEncodeError as error:
        raise _unwritable(error) from None
    raise InvalidInputError(
        f"conn is a {type(conn).__module__}.{type(conn).__name__}; use a psycopg Connection, or a "
        "session or connection of SQLAlchemy or Django, none of them asynchronous"
    )


def is_blocking(conn: Any) -> bool:
    """Whether this is a connection, or session, whose calls wait: one that is not asynchronous."""
    conn = _bare(conn)
    if isinstance(conn, psycopg.Connection):
        return True
    return _origin(conn) == "sqlalchemy" and not _is_asynchronous(conn)


def _is_asynchronous(conn: Any) -> bool:
    """Of SQLAlchemy's. Not by its `execute`: SQLModel has a plain function around that."""
    return hasattr(conn, "run_sync")


def _bare(conn: Any) -> Any:
    """The driver's connection of one of Django's, connected; anything else as it is."""
    if hasattr(conn, "ensure_connection") and hasattr(conn, "alias"):
        conn.ensure_connection()
        return conn.connection
    return _unscoped(conn)


def _unscoped(conn: Any) -> Any:
    """The session of this thread, or task, of one of SQLAlchemy's scoped sessions.

    Asked for here: a call in another thread would get the session of that thread.
    """
    if _origin(conn) == "sqlalchemy" and callable(registry := getattr(conn, "registry", None)):
        return registry()
    return conn


def driver_of(conn: Any) -> Any:
    """The driver's connection beneath a session or connection, in the calling thread."""
    bare = _bare(conn)
    if _origin(bare) == "sqlalchemy":
        return _sqlalchemy_proxy(bare).driver_connection
    return bare


async def async_driver_of(conn: Any) -> Any:
    """The same for an asynchronous one."""
    if _origin(conn) == "sqlalchemy":
        return await conn.run_sync(driver_of)
    return conn


async def driver_beneath(conn: Any) -> Any:
    """The driver's connection beneath any `conn=`, whether its calls wait or not."""
    found = _unscoped(conn)
    if _origin(found) == "sqlalchemy":
        if _is_asynchronous(found):
            return await found.run_sync(driver_of)
        return await asyncio.to_thread(driver_of, found)
    # What a pool of asyncpg gives out is a new proxy each time.
    return getattr(found, "_con", None) or found if _origin(found) == "asyncpg" else found


def is_lost(driver: Any, error: BaseException) -> bool:
    """Whether this connection of a driver was cut: not if the application closed it itself.

    One to a server that only reads by now counts as cut.
    """
    if isinstance(driver, psycopg.AsyncConnection | psycopg.Connection):
        return driver.broken or reads_only(error)
    with suppress(Exception):  # a proxy of a pool that has it back
        if driver.is_closed():
            return True
    return any(state.startswith(_CUT) for state in states_of(error))

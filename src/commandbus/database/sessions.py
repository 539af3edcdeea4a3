"""Sessions: what we depend on in a session of PostgreSQL, and how it is made sure of.

Servers, databases, roles and addresses may set any of it to something unusual. Three rules keep it
from us. Results come in binary, which no setting changes, and are read by the driver's own loaders,
not by those that an application has registered. What is left is set when a connection of ours
opens. And behind a pooler that gives each transaction another session, where only the settings hold
that poolers carry along, an unusual way of beginning transactions is answered by beginning each one
ourselves.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import Any, LiteralString

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_dumps, set_json_loads

Row = tuple[Any, ...]

#: Reported by the server to its clients, so poolers in transaction mode carry them along.
_CARRIED = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
}
#: Also where the application's own statements run. The rest is left there as the application has
#: it: its statements may depend on it.
_SHARED = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",  # literals of PGMQ's functions mean something else without
    "default_transaction_read_only": "off",
}
_PLANS = (
    "bitmapscan", "hashagg", "hashjoin", "incremental_sort", "indexonlyscan", "indexscan",
    "material", "memoize", "mergejoin", "nestloop", "seqscan", "sort", "tidscan",
)  # fmt: skip
#: For statements that are ours alone.
_OURS = {
    **_CARRIED,
    **_SHARED,
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "search_path": "pg_catalog, pg_temp",
    "array_nulls": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "row_security": "on",
    "transform_null_equals": "off",
    # Ended by statement_timeout; a listener is idle for as long as nothing happens.
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # Statements of a millisecond: compiling one takes longer than running it.
    "jit": "off",
    "plan_cache_mode": "auto",
    "from_collapse_limit": "8",
    "join_collapse_limit": "8",
    **{f"enable_{plan}": "on" for plan in _PLANS},
}

_LOOK: LiteralString = (
    "select pg_catalog.pg_backend_pid(),"
    " pg_catalog.current_setting('default_transaction_isolation') <> 'read committed'"
    " or pg_catalog.current_setting('default_transaction_read_only') <> 'off'"
    " or pg_catalog.current_setting('default_transaction_deferrable') <> 'off'"
)
# A setting that this version of PostgreSQL does not have is left out.
_SET: LiteralString = (
    "select pg_catalog.set_config(s.name, s.value, false)"
    " from unnest(cast(%s as text[]), cast(%s as text[])) s(name, value)"
    " where pg_catalog.current_setting(s.name, true) is not null"
)


def _driver_adapters() -> AdaptersMap:
    types = TypesRegistry()
    register_default_types(types)
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    # These two are kept in the driver itself, not in a map.
    set_json_loads(json.loads, adapters)
    set_json_dumps(json.dumps, adapters)
    return adapters


#: How the driver itself reads and writes values, whatever the application has registered.
ADAPTERS = _driver_adapters()


class OurCursor(psycopg.AsyncCursor[Row]):
    """A cursor whose rows look the same on every connection."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(conn, row_factory=tuple_row)
        self.format = Format.BINARY

    @property
    def adapters(self) -> AdaptersMap:
        """Those of the driver, not those of the application."""
        return ADAPTERS


class OurBlockingCursor(psycopg.Cursor[Row]):
    """The same on a connection that is not asynchronous."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__(conn, row_factory=tuple_row)
        self.format = Format.BINARY

    @property
    def adapters(self) -> AdaptersMap:
        """Those of the driver, not those of the application."""
        return ADAPTERS


class OurConnection(psycopg.AsyncConnection[Any]):
    """A connection that we opened."""

    #: Behind a pooler whose sessions begin transactions in an unusual way.
    begins_itself = False
    #: Seconds for one statement, where the session cannot be told; None: the session knows.
    seconds: float | None = None


def session_settings(
    *, is_pooled: bool, is_shared: bool, timeout_seconds: float | None
) -> dict[str, str]:
    """What to set in a session: one of ours, or one that also runs statements of handlers."""
    settings = _SHARED if is_shared else _OURS
    if is_pooled:
        # Anything else would stay behind in a session that other programs use next.
        return {name: value for name, value in settings.items() if name in _CARRIED}
    if timeout_seconds is None:
        return settings
    return settings | {"statement_timeout": f"{round(timeout_seconds * 1000)}ms"}


async def prepare(
    conn: psycopg.AsyncConnection[Any], *, is_shared: bool, timeout_seconds: float | None
) -> None:
    """Make sure of the session behind a connection that was just opened."""
    cursor = OurCursor(conn)
    await cursor.execute(_LOOK)
    ((backend, is_unusual),) = await cursor.fetchall()
    # A pooler tells its clients numbers of its own making.
    is_pooled = backend != conn.info.backend_pid
    settings = session_settings(
        is_pooled=is_pooled, is_shared=is_shared, timeout_seconds=timeout_seconds
    )
    await cursor.execute(_SET, (list(settings), list(settings.values())))
    if is_pooled:
        # Not every pooler carries them along, and ours are one call of a function each.
        conn.prepare_threshold = None
    if is_shared or is_unusual:
        # Used by conn.transaction(). On connections of handlers the isolation is the application's.
        await conn.set_read_only(False)
    if not is_shared and is_unusual:
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await conn.set_deferrable(False)
    if is_pooled and not is_shared and isinstance(conn, OurConnection):
        conn.begins_itself = bool(is_unusual)
        conn.seconds = timeout_seconds


def prepare_blocking(conn: psycopg.Connection[Any], timeout_seconds: float) -> None:
    """The same for a connection that is not asynchronous, of ours alone."""
    with OurBlockingCursor(conn) as cursor:
        cursor.execute(_LOOK)
        ((backend, _),) = cursor.fetchall()
        settings = session_settings(
            is_pooled=backend != conn.info.backend_pid,
            is_shared=False,
            timeout_seconds=timeout_seconds,
        )
        cursor.execute(_SET, (list(settings), list(settings.values())))


def prepare_shared_blocking(conn: psycopg.Connection[Any]) -> None:
    """The same for a connection of a handler thread, which the application's statements run on.

    Afterwards it begins transactions by itself.
    """
    with OurBlockingCursor(conn) as cursor:
        cursor.execute(_LOOK)
        ((backend, _),) = cursor.fetchall()
        is_pooled = backend != conn.info.backend_pid
        settings = session_settings(is_pooled=is_pooled, is_shared=True, timeout_seconds=None)
        cursor.execute(_SET, (list(settings), list(settings.values())))
    if is_pooled:
        conn.prepare_threshold = None
    conn.read_only = False
    conn.autocommit = False


class UnreadableAnswerError(Exception):
    """The driver could not read rows that the server has sent."""

    def __init__(self, answer: PGresult | None) -> None:
        super().__init__("rows of PostgreSQL could not be read")
        self.answer = answer


async def rows_of(cursor: OurCursor) -> list[Row]:
    """The rows that a statement gave, if it is one that gives rows."""
    answer = cursor.pgresult  # None in a pipeline, where answers come later
    if answer is not None and not answer.nfields:
        return []
    try:
        return await cursor.fetchall()
    except psycopg.Error:
        raise
    except Exception as error:
        # The statement has been committed by now: who leased something must give it back.
        raise UnreadableAnswerError(cursor.pgresult) from error


async def run_pooled(conn: OurConnection, statement: bytes, params: Row) -> list[Row]:
    """Run a statement where the session cannot be trusted to have our settings."""
    cursor = OurCursor(conn)
    transaction = conn.transaction() if conn.begins_itself else nullcontext()
    try:
        async with asyncio.timeout(conn.seconds), transaction:
            await cursor.execute(statement, params, prepare=True)
            return await rows_of(cursor)
    except TimeoutError as error:
        raise psycopg.errors.QueryCanceled(f"no answer in {conn.seconds:g} s") from error

"""Sessions: what we depend on in a session of PostgreSQL, and how it is made sure of.

Servers, databases, roles and addresses may set any of it to something unusual. Three rules keep it
from us. Results come in binary, which no setting changes, and are read by the driver's own loaders,
not by those that an application has registered. What is left is set when a connection of ours
opens. And behind a pooler that gives each transaction another session, where only the settings hold
that poolers carry along, an unusual way of beginning transactions is answered by beginning each one
ourselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
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

from commandbus.database.own_connections import OurConnection

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
    # A listener is idle for as long as nothing happens.
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
    " or pg_catalog.current_setting('default_transaction_deferrable') <> 'off',"
    " pg_catalog.current_setting('default_transaction_read_only') <> 'off'"
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the server lets statements of a session go on; None: as it likes.

    Shorter than the deadline on our side: a statement that the server ends is undone, and one that
    we leave may go on there, with its locks.
    """

    #: For one statement, in seconds.
    statement: float | None = None
    #: The same for one that may take long.
    long: float | None = None
    #: For one lock.
    lock: float | None = None


def session_settings(
    *, is_pooled: bool, is_shared: bool, is_read_only: bool, timeouts: Timeouts
) -> dict[str, str]:
    """What to set in a session: one of ours, or one that also runs statements of handlers."""
    settings = dict(_SHARED if is_shared else _OURS)
    if is_pooled:
        # Anything else would stay behind in a session that other programs use next.
        return {name: value for name, value in settings.items() if name in _CARRIED}
    if is_read_only:
        # Asked for with target_session_attrs=any. Not otherwise: a server that is made read-only
        # later is so for us too.
        settings["default_transaction_read_only"] = "off"
    if timeouts.statement is not None:
        settings["statement_timeout"] = milliseconds(timeouts.statement)
    if timeouts.lock is not None:
        settings["lock_timeout"] = milliseconds(timeouts.lock)
    return settings


def milliseconds(seconds: float) -> str:
    """A time as PostgreSQL takes it."""
    return f"{round(seconds * 1000)}ms"


async def prepare(
    conn: psycopg.AsyncConnection[Any], *, is_shared: bool, timeouts: Timeouts
) -> None:
    """Make sure of the session behind a connection that was just opened."""
    cursor = OurCursor(conn)
    await cursor.execute(_LOOK)
    ((backend, is_unusual, is_read_only),) = await cursor.fetchall()
    # A pooler tells its clients numbers of its own making.
    is_pooled = backend != conn.info.backend_pid
    settings = session_settings(
        is_pooled=is_pooled, is_shared=is_shared, is_read_only=is_read_only, timeouts=timeouts
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
    if not isinstance(conn, OurConnection):
        return
    if is_pooled and not is_shared:
        conn.begins_itself = bool(is_unusual)
    if not is_pooled and timeouts.long is not None:
        conn.long_timeout = milliseconds(timeouts.long)


def prepare_blocking(conn: psycopg.Connection[Any], timeout_seconds: float) -> None:
    """The same for a connection that is not asynchronous, of ours alone."""
    with OurBlockingCursor(conn) as cursor:
        cursor.execute(_LOOK)
        ((backend, _, is_read_only),) = cursor.fetchall()
        settings = session_settings(
            is_pooled=backend != conn.info.backend_pid,
            is_shared=False,
            is_read_only=is_read_only,
            timeouts=Timeouts(statement=timeout_seconds),
        )
        cursor.execute(_SET, (list(settings), list(settings.values())))


def prepare_shared_blocking(conn: psycopg.Connection[Any]) -> None:
    """The same for a connection of a handler thread, which the application's statements run on.

    Afterwards it begins transactions by itself.
    """
    with OurBlockingCursor(conn) as cursor:
        cursor.execute(_LOOK)
        ((backend, _, is_read_only),) = cursor.fetchall()
        is_pooled = backend != conn.info.backend_pid
        settings = session_settings(
            is_pooled=is_pooled, is_shared=True, is_read_only=is_read_only, timeouts=Timeouts()
        )
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


async def run_in_transaction(conn: OurConnection, statement: bytes, params: Row) -> list[Row]:
    """Run a statement where sessions begin transactions in an unusual way."""
    cursor = OurCursor(conn)
    async with conn.transaction():
        await cursor.execute(statement, params, prepare=True)
        return await rows_of(cursor)

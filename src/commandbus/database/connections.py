"""Connections: those that we open, alone or in pools, and how a statement runs on them."""

from __future__ import annotations

import asyncio
import re
import select
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, LiteralString, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from commandbus.database.deadlines import (
    DEADLINE_SECONDS,
    DeadlineError,
    Guest,
    Limit,
    watch_here,
)
from commandbus.database.hosts import NoServerError, failure_since, guarded, hosts_of
from commandbus.database.own_connections import OurConnection
from commandbus.database.read_only import note_server, reads_only
from commandbus.database.sessions import (
    OurBlockingCursor,
    OurCursor,
    Timeouts,
    prepare,
    rows_of,
    run_in_transaction,
)

Row = tuple[Any, ...]
AsyncPool = AsyncConnectionPool[Any]

#: Seconds of a wait for a connection that only says that one is wanted.
ASK_SECONDS = 0.05
#: Seconds in which a pool tries the hosts of an address again and again. Between two such times it
#: pauses for a second or two.
LEADER_SECONDS = 3.0

_ALLOW_LONG: LiteralString = "select pg_catalog.set_config('statement_timeout', %s, true)"


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


def make_address(parts: dict[str, Any]) -> str:
    """The address that has these parts."""
    return psycopg.conninfo.make_conninfo("", **parts)


@dataclass(frozen=True, slots=True)
class ConnectionSource:
    """How to open connections like those of a pool, beside the pool."""

    conninfo: str | Callable[[], Any]
    kwargs: dict[str, Any] | Callable[[], Any] | None
    deadline_seconds: float = DEADLINE_SECONDS

    @classmethod
    def of(cls, pool: AsyncPool) -> ConnectionSource:
        """The source that a pool draws from."""
        seconds = deadlines.get(pool, DEADLINE_SECONDS)
        return cls(cast("Any", pool.conninfo), cast("Any", pool.kwargs), seconds)

    async def resolve(self) -> tuple[str, dict[str, Any]]:
        """The address and the arguments, asked anew each time: passwords may be rotated."""
        conninfo = await _resolve(self.conninfo) or ""
        kwargs = dict(await _resolve(self.kwargs) or {})
        kwargs.pop("leader_seconds", None)  # of the pools that we open
        return conninfo, {**guarded(conninfo, kwargs), **kwargs, "autocommit": True}

    async def connect(self, *, is_patient: bool = True) -> OurConnection:
        """Open one autocommit connection; on a patient one statements may take long."""
        conninfo, kwargs = await self.resolve()
        conn = await OurConnection.connect(conninfo, **kwargs)
        conn.limit = Limit(self.deadline_seconds, is_patient)
        try:
            await prepare(conn, is_shared=False, timeouts=Timeouts())
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
        timeouts: Timeouts,
        is_shared: bool = False,
    ) -> AsyncPool:
        """Open a pool of autocommit connections; shared ones run statements of handlers too."""
        conninfo, kwargs = await self.resolve()
        # A silent host costs its time before the next one has its turn.
        others = len(hosts_of(conninfo, kwargs)) - 1
        waiting = timeout_seconds + others * float(_said(conninfo, kwargs, "connect_timeout", 0))
        limit = Limit(self.deadline_seconds, is_patient=is_shared)

        async def configure(conn: psycopg.AsyncConnection[Any]) -> None:
            cast("OurConnection", conn).limit = limit
            await prepare(conn, is_shared=is_shared, timeouts=timeouts)

        async def resolve_kwargs() -> dict[str, Any]:
            return {**(await self.resolve())[1], "leader_seconds": LEADER_SECONDS}

        async def check(conn: psycopg.AsyncConnection[Any]) -> None:
            if not _is_suspicious(conn):
                return
            try:
                await AsyncConnectionPool.check_connection(conn)
            except psycopg.Error:
                # The others are probably no better, and each would cost somebody a second.
                _check_all(pool)
                raise

        pool: AsyncPool = AsyncConnectionPool(
            cast("Any", self.conninfo),
            connection_class=OurConnection,
            kwargs=cast("Any", resolve_kwargs),
            min_size=1,
            max_size=size,
            timeout=waiting,
            open=False,
            name=f"commandbus-{purpose}",
            configure=configure,
            check=check,
            # A pool that cannot connect tries again quickly: the server may be back at once.
            reconnect_timeout=5.0,
            reconnect_failed=_try_on,
        )
        deadlines[pool] = self.deadline_seconds
        try:
            await pool.open()
        except BaseException:
            await pool.close()
            raise
        return pool


async def _try_on(pool: AsyncPool) -> None:
    """A pool has given up making a connection. While somebody waits for one, it goes on.

    By itself it begins again only when the next one asks.
    """
    if not pool.closed and pool.get_stats().get("requests_waiting"):
        with suppress(PoolTimeout, PoolClosed, psycopg.Error):
            await pool.putconn(await pool.getconn(timeout=ASK_SECONDS))


#: How long statements of ours may take on the connections of a pool, in seconds.
deadlines: WeakKeyDictionary[AsyncPool, float] = WeakKeyDictionary()


def _said(conninfo: str, kwargs: dict[str, Any], name: str, default: Any) -> Any:
    return kwargs.get(name) or address_parts(conninfo).get(name) or default


#: Pools whose idle connections are being looked at.
_checking: WeakKeyDictionary[AsyncPool, asyncio.Task[None]] = WeakKeyDictionary()


def _check_all(pool: AsyncPool) -> None:
    async def check() -> None:
        with suppress(psycopg.Error, PoolClosed):
            await pool.check()

    known = _checking.get(pool)
    if known is None or known.done():
        _checking[pool] = asyncio.ensure_future(check())


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


class OutageError(PoolTimeout):
    """A pool has no connection because none can be made."""

    def __init__(self, why: NoServerError) -> None:
        super().__init__(str(why))
        self.reasons = why.reasons


class borrowed:  # noqa: N801  (used like a function)
    """A connection of a pool for a block; if none comes, the error says why.

    On a patient one statements may take long.
    """

    __slots__ = ("_conn", "_context", "_guest", "_is_patient", "_pool")

    def __init__(self, pool: AsyncPool, *, is_patient: bool = False) -> None:
        self._pool = pool
        self._is_patient = is_patient
        self._context = pool.connection()
        self._guest: Guest | None = None
        self._conn: psycopg.AsyncConnection[Any] | None = None

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        try:
            conn: psycopg.AsyncConnection[Any] = await self._context.__aenter__()
        except PoolTimeout as error:
            await self._explain(error)
            raise
        self._conn = conn
        if not isinstance(conn, OurConnection):
            self._guest = _welcome(conn, self._pool, self._is_patient)
        elif self._is_patient and conn.limit is not None:
            conn.limit = Limit(conn.limit.seconds, is_patient=True)
        return conn

    async def __aexit__(self, *error: Any) -> bool | None:
        conn, self._conn = self._conn, None
        if self._guest is not None:
            watch_here().remove(self._guest)
        elif self._is_patient and isinstance(conn, OurConnection) and conn.limit is not None:
            conn.limit = Limit(conn.limit.seconds)
        if conn is not None and reads_only(error[1]):
            # The server only reads by now, and the idle ones are to it too: the next connection is
            # to be to another one.
            await conn.close()
            _drain(self._pool)
        late = None if error[1] is None else DeadlineError.of(self._guest or conn, error[1])
        handled = await self._context.__aexit__(*error)
        if late is not None:
            if self._guest is not None:
                _drain(self._pool)
            raise late from error[1]
        return handled

    async def _explain(self, error: PoolTimeout) -> None:
        """All are in use, or none can be made?"""
        pool = self._pool
        why = failure_since(pool.conninfo, time.monotonic() - pool.timeout)
        if why is not None:
            raise OutageError(why) from error
        # One more, beside the pool, tells.
        await asyncio.shield(_probe(pool))
        raise PoolEmptyError(pool.name, pool.max_size) from error


#: Connections of pools that applications own, while a statement of ours runs on them.
_guests: WeakKeyDictionary[Any, Guest] = WeakKeyDictionary()


def _welcome(conn: psycopg.AsyncConnection[Any], pool: AsyncPool, is_patient: bool) -> Guest:
    guest = Guest(conn, Limit(deadlines.get(pool, DEADLINE_SECONDS), is_patient))
    watch = watch_here()
    watch.add(guest)
    watch.begin()
    _guests[conn] = guest
    return guest


def _drain(pool: AsyncPool) -> None:
    """The idle connections of a pool go to the same server: replace them.

    Not needed for pools of ours if the server is silent: they are watched, and were closed with the
    one that waited.
    """

    async def drain() -> None:
        with suppress(psycopg.Error, PoolClosed):
            await pool.drain()

    known = _checking.get(pool)
    # There since psycopg-pool 3.3.
    if hasattr(pool, "drain") and (known is None or known.done()):
        _checking[pool] = asyncio.ensure_future(drain())


def _is_suspicious(conn: psycopg.AsyncConnection[Any]) -> bool:
    # A server that went away leaves something to read on an idle connection (its farewell, or the
    # end of the stream). So a look at the socket, which costs microseconds, tells whether the
    # round trip of a real check is worth it.
    readable, _, _ = select.select([conn.fileno()], [], [], 0)
    return bool(readable)


async def run(conn: psycopg.AsyncConnection[Any], statement: Statement, params: Row) -> list[Row]:
    """Run a statement on one of our own connections, prepared."""
    if not isinstance(conn, OurConnection):
        _restart(conn)
    elif conn.begins_itself:
        return await run_in_transaction(conn, statement.psycopg, params)
    cursor = OurCursor(conn)
    try:
        await cursor.execute(statement.psycopg, params, prepare=True)
        return await rows_of(cursor)
    except psycopg.errors.ReadOnlySqlTransaction as error:
        note_server(error, conn.info)
        raise


def has_timeout(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server ends statements that take long, unless it is told."""
    return isinstance(conn, OurConnection) and conn.long_timeout is not None


async def allow_long(conn: psycopg.AsyncConnection[Any]) -> None:
    """Tell it so, for this transaction."""
    if isinstance(conn, OurConnection) and conn.long_timeout is not None:
        await fetch(conn, _ALLOW_LONG, conn.long_timeout)


def _restart(conn: psycopg.AsyncConnection[Any]) -> None:
    guest = _guests.get(conn)
    if guest is not None:
        guest.looks = 0
        guest.waits += 1


async def fetch(
    conn: psycopg.AsyncConnection[Any], query: LiteralString | bytes | sql.Composed, *params: object
) -> list[Row]:
    """Run a query that is seldom run, so that preparing it would not pay; give its rows."""
    cursor = OurCursor(conn)
    try:
        await cursor.execute(query, params or None)
        return await rows_of(cursor)
    except psycopg.errors.ReadOnlySqlTransaction as error:
        note_server(error, conn.info)
        raise


def run_blocking(conn: psycopg.Connection[Any], statement: Statement, params: Row) -> list[Row]:
    """The same on a connection that is not asynchronous."""
    with OurBlockingCursor(conn) as cursor:
        try:
            cursor.execute(statement.psycopg, params)
            return cursor.fetchall()
        except psycopg.errors.ReadOnlySqlTransaction as error:
            note_server(error, conn.info)
            raise


async def _resolve(value: Any) -> Any:
    if not callable(value):
        return value
    resolved = value()
    return await resolved if isinstance(resolved, Awaitable) else resolved

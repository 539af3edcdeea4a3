# ruff: noqa: D102  (what database/transactions.py documents is not documented again)
"""Transactions of handler threads, and of the application's connections, on PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import secrets
import select
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from commandbus.database import encoding
from commandbus.database.connections import ConnectionSource
from commandbus.database.deadlines import Limit
from commandbus.database.foreign import (
    async_driver_of,
    driver_of,
    is_lost,
    run_on_foreign,
    run_on_foreign_blocking,
)
from commandbus.database.gateway import Gateway, Session
from commandbus.database.model import Outcome
from commandbus.database.own_connections import OurBlockingConnection
from commandbus.database.read_only import leave_reader
from commandbus.database.sessions import prepare_shared_blocking
from commandbus.database.sqlstate import translated
from commandbus.errors import InvalidSettingError
from commandbus.privacy.redaction import redact_text

SETTLE_OWN: LiteralString = "select * from {schema}.settle_own(cast(%s as text), cast(%s as jsonb))"
# Locks of this kind belong to one database, need no table and no right, and pass every pooler.
# Taken there although it is held here: there is another database. As a number: in the encoding
# SQL_ASCII texts arrive as bytes.
_LOOK: LiteralString = (
    "select pg_catalog.pg_try_advisory_xact_lock(cast(%s as bigint)),"
    " cast(cast(pg_catalog.pg_current_xact_id() as text) as bigint)"
)
_LOCK: LiteralString = "select pg_catalog.pg_advisory_xact_lock(cast(%s as bigint))"
_IS_COMMITTED: LiteralString = (
    "select pg_catalog.pg_xact_status(cast(cast(%s as text) as xid8)) = 'committed'"
)
#: How long the address of the database may take to be found, in seconds.
RESOLVE_SECONDS = 30.0
#: How long the end of a statement may take to be asked for, in seconds.
INTERRUPT_SECONDS = 5.0

_log = logging.getLogger("commandbus.worker")


class PostgresTransactions:
    """Implements commandbus.database.transactions.Transactions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._source = ConnectionSource.of(gateway.pool)
        self._loop = asyncio.get_running_loop()
        self._of_thread = threading.local()

    @contextmanager
    def in_thread(self) -> Iterator[psycopg.Connection[Any]]:
        with translated():
            conn = self._connection()
        try:
            with conn.transaction():
                yield conn
        finally:
            # A handler may leave it in any state.
            if conn.info.transaction_status is not TransactionStatus.IDLE:
                self.close_thread()

    def _connection(self) -> psycopg.Connection[Any]:
        conn: psycopg.Connection[Any] | None = getattr(self._of_thread, "conn", None)
        if conn is not None and not _is_usable(conn):
            self.close_thread()
            conn = None
        if conn is None:
            conn = self._of_thread.conn = self._connect()
        return conn

    def _connect(self) -> psycopg.Connection[Any]:
        # On the loop: the application may give the address by a coroutine.
        resolving = asyncio.run_coroutine_threadsafe(self._source.resolve(), self._loop)
        conninfo, kwargs = resolving.result(RESOLVE_SECONDS)
        conn = OurBlockingConnection.connect(conninfo, **kwargs)
        # How long the statements of a handler take is for the application to decide.
        conn.limit = Limit(self._source.deadline_seconds, is_patient=True)
        try:
            prepare_shared_blocking(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def close_thread(self) -> None:
        conn: psycopg.Connection[Any] | None = getattr(self._of_thread, "conn", None)
        if conn is not None:
            self._of_thread.conn = None
            conn.close()

    def settle(self, domain: str, outcomes: Sequence[Outcome], conn: Any) -> set[UUID]:
        params = (domain, encoding.outcomes(outcomes))
        if hasattr(conn, "flush"):
            # What a session holds back is written first: the completion locks the row of a batch,
            # which others wait for, and who locks it last cannot be in a deadlock over it.
            conn.flush()
        with translated(domain):
            rows = run_on_foreign_blocking(conn, self._gateway.statement(SETTLE_OWN), params)
        return {row[0] for row in rows}

    def driver(self, conn: Any) -> Any:
        return driver_of(conn)

    async def async_driver(self, conn: Any) -> Any:
        return await async_driver_of(conn)

    def is_lost(self, driver: Any, error: BaseException) -> bool:
        return is_lost(driver, error)

    def leave_reader(self, driver: Any, error: BaseException) -> None:
        leave_reader(driver, error)

    def interrupt(self, driver: Any) -> None:
        try:
            if hasattr(driver, "cancel_safe"):
                driver.cancel_safe(timeout=INTERRUPT_SECONDS)
            elif hasattr(driver, "cancel"):
                driver.cancel()
        except Exception as error:  # noqa: BLE001  (whatever the driver raises)
            _log.warning("a statement could not be ended: %s", redact_text(str(error)))

    @asynccontextmanager
    async def marker(self) -> AsyncIterator[PostgresMarker]:
        key = secrets.randbits(62)
        async with self._gateway.transaction() as session:
            await session.rows(_LOCK, (key,))
            yield PostgresMarker(self._gateway, session, key)


class PostgresMarker:
    """Implements commandbus.database.transactions.Marker: an advisory lock that nobody can guess.

    It is held by a transaction of our own.
    """

    def __init__(self, gateway: Gateway, session: Session, key: int) -> None:
        self._gateway = gateway
        self._session = session
        self._key = key

    async def look(self, conn: Any) -> int:
        with translated():
            rows = await run_on_foreign(conn, self._gateway.statement(_LOOK), (self._key,))
        return _transaction_of(*rows[0])

    def look_blocking(self, conn: Any) -> int:
        with translated():
            rows = run_on_foreign_blocking(conn, self._gateway.statement(_LOOK), (self._key,))
        return _transaction_of(*rows[0])

    async def is_committed(self, transaction: int) -> bool:
        return bool(await self._session.value(_IS_COMMITTED, (str(transaction),)))


def _transaction_of(is_elsewhere: bool, transaction: int) -> int:
    if is_elsewhere:
        raise InvalidSettingError(
            "its connections go to another database than those of the bus, so that one commit "
            "cannot be for both; use the same database"
        )
    return transaction


def _is_usable(conn: psycopg.Connection[Any]) -> bool:
    """Whether a connection that was idle is still good: a look at its socket, no round trip.

    A server that went away leaves something to read: its farewell, or the end of the stream.
    """
    if conn.closed or conn.info.transaction_status is not TransactionStatus.IDLE:
        return False
    readable, _, _ = select.select([conn.fileno()], [], [], 0)
    if readable:
        try:
            # Notices of the server are nothing to worry about.
            conn.execute("select 1")
            conn.rollback()
        except psycopg.Error:
            return False
    return True

"""The gateway: how a statement reaches PostgreSQL, for everything that is not the hot path.

One place chooses the connection, fills in the schema, turns rows into values and turns errors
into ours by their SQLSTATE. A statement is a LiteralString that stands beside the code that uses
it, with %s for parameters and {schema} for our schema.

Services get a gateway from the store (`store.gateway`) and import this module for its types only,
so that `import commandbus` does not load the driver.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, LiteralString, Self, TypeVar, overload

import psycopg

from commandbus.database.belonging import Belonging
from commandbus.database.connections import (
    AsyncPool,
    Row,
    Statement,
    allow_long,
    borrowed,
    deadlines,
    has_timeout,
    run,
)
from commandbus.database.foreign import refuse_unusual, run_on_foreign
from commandbus.database.inspection import SchemaDifferences, inspect_schema
from commandbus.database.migrations import check_schema
from commandbus.database.sqlstate import translated
from commandbus.errors import InvalidInputError
from commandbus.settings import Settings

Value = TypeVar("Value")

_SNAPSHOT: LiteralString = "set transaction isolation level repeatable read, read only"

#: Seconds after which a process says again that a domain uses levels.
LEVELS_SECONDS = 600.0


class Statements(ABC):
    """Runs statements and gives their rows: on a connection of the pool, or in one transaction."""

    @abstractmethod
    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]: ...

    @overload
    async def rows(
        self, text: LiteralString, params: Row = (), *, domain: str = "", conn: Any = None
    ) -> list[Row]: ...

    @overload
    async def rows(
        self,
        text: LiteralString,
        params: Row = (),
        *,
        into: Callable[..., Value],
        domain: str = "",
        conn: Any = None,
    ) -> list[Value]: ...

    async def rows(
        self,
        text: LiteralString,
        params: Row = (),
        *,
        into: Callable[..., Any] | None = None,
        domain: str = "",
        conn: Any = None,
    ) -> list[Any]:
        """All rows, each as `into(*row)`. `domain` is named by errors; `conn` is the caller's."""
        rows = await self._run(text, params, domain, conn)
        return rows if into is None else [into(*row) for row in rows]

    async def row(
        self,
        text: LiteralString,
        params: Row = (),
        *,
        into: Callable[..., Value],
        domain: str = "",
        conn: Any = None,
    ) -> Value | None:
        """The first row as `into(*row)`, or None."""
        rows = await self._run(text, params, domain, conn)
        return into(*rows[0]) if rows else None

    async def value(
        self, text: LiteralString, params: Row = (), *, domain: str = "", conn: Any = None
    ) -> Any:
        """The first column of the first row; None without a row."""
        rows = await self._run(text, params, domain, conn)
        return rows[0][0] if rows else None


class Gateway(Statements):
    """Statements on connections of a pool, each its own transaction."""

    def __init__(self, pool: AsyncPool, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self._statements: dict[str, Statement] = {}
        self._known_domains: set[str] = set()
        #: When to say again that a domain uses levels, by the monotonic clock.
        self._leveled_until: dict[str, float] = {}
        self._keyed_domains: set[str] = set()
        self._is_patient = False
        #: Looks whether a `conn=` leads here; None: taken for granted, there is one database.
        self.belonging: Belonging | None = None
        if pool is not None:
            deadlines.setdefault(pool, settings.deadline_seconds)

    @property
    def patient(self) -> Self:
        """The same for statements that may take long: as long as the server gives a sign of life.

        On connections of workers each is four round trips, because the server must be told.
        """
        found = copy(self)
        found._is_patient = True
        return found

    def require_conn_here(self, what: str) -> None:
        """From now on refuse a `conn=` that leads to another database; `what` is in the error."""
        self.belonging = Belonging(self, what)

    def statement(self, text: LiteralString) -> Statement:
        """The statement in the style of each driver, made once."""
        found = self._statements.get(text)
        if found is None:
            found = self._statements[text] = Statement(text, self.settings.schema)
        return found

    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]:
        statement = self.statement(text)
        with translated(domain):
            if conn is not None:
                return await self.run_on_foreign(conn, statement, params)
            async with borrowed(self.pool, is_patient=self._is_patient) as own:
                if self._is_patient and has_timeout(own):
                    async with own.transaction():
                        await allow_long(own)
                        return await run(own, statement, params)
                return await run(own, statement, params)

    async def run_on_foreign(self, conn: Any, statement: Statement, params: Row) -> list[Row]:
        """Run a statement in the caller's transaction; a connection without one is refused."""
        if self.belonging is not None:
            await self.belonging.check(conn)
        may_autocommit = self.settings.allow_autocommit_conn
        return await run_on_foreign(conn, statement, params, may_autocommit=may_autocommit)

    @asynccontextmanager
    async def transaction(
        self, domain: str = "", *, first: LiteralString | None = None
    ) -> AsyncIterator[Session]:
        """One transaction: leaving the block commits, an error rolls back.

        `first` is a statement that must come before all others.
        """
        with translated(domain):
            is_patient = self._is_patient
            async with borrowed(self.pool, is_patient=is_patient) as conn, conn.transaction():
                if first is not None:
                    await conn.execute(first)
                if is_patient:
                    await allow_long(conn)
                yield Session(self, conn)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Session]:
        """One read-only transaction: all its statements see the database at the same moment."""
        async with self.transaction(first=_SNAPSHOT) as session:
            yield session

    async def check(self) -> None:
        """Raise if the database is not one that this version can work with."""
        with translated():
            async with borrowed(self.pool) as conn:
                refuse_unusual(conn, "the pool")
                if conn.info.encoding != "utf-8":
                    raise InvalidInputError(
                        f"the pool has the client_encoding {conn.info.encoding}; use UTF8"
                    )
                await check_schema(conn, self.settings)

    async def ensure_domain(self, domain: str) -> None:
        """Create the queues of a domain if they are missing.

        In a transaction of its own and once per process: the DDL of a first use must never sit,
        with its locks, in a caller's open transaction.
        """
        if not self._known_domains:
            await self.check()
        if domain not in self._known_domains:
            # DDL, behind that of all others who begin at the same time.
            await self.patient.rows("select {schema}.ensure_domain(%s)", (domain,), domain=domain)
            self._known_domains.add(domain)

    async def ensure_levels(self, domain: str) -> None:
        """Say that a domain uses levels, in a transaction of its own, now and then.

        Otherwise a caller's open transaction would hold the one row that says what a domain uses.
        One that has not said so for two hours is taken for one that uses none.
        """
        if self._leveled_until.get(domain, 0.0) < time.monotonic():
            await self.rows("select {schema}.use_levels(%s)", (domain,), domain=domain)
            self._leveled_until[domain] = time.monotonic() + LEVELS_SECONDS

    async def ensure_keys(self, domain: str) -> None:
        """Say that a domain uses ordering keys, as ensure_levels does for levels."""
        if domain not in self._keyed_domains:
            await self.rows("select {schema}.use_keys(%s)", (domain,), domain=domain)
            self._keyed_domains.add(domain)


class Session(Statements):
    """Statements in one open transaction."""

    def __init__(self, gateway: Gateway, conn: psycopg.AsyncConnection[Any]) -> None:
        self.gateway = gateway
        self.conn = conn

    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]:
        with translated(domain):
            if conn is not None:
                return await self.gateway.run_on_foreign(conn, self.gateway.statement(text), params)
            return await run(self.conn, self.gateway.statement(text), params)

    async def try_rows(self, text: LiteralString, params: Row = ()) -> tuple[list[Row], str | None]:
        """All rows; or none and the SQLSTATE of an error, after which the transaction goes on.

        An error of the connection or of the server itself raises.
        """
        try:
            async with self.conn.transaction():  # a savepoint
                return await run(self.conn, self.gateway.statement(text), params), None
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            return [], error.sqlstate

    async def inspect_schema(self) -> SchemaDifferences:
        """How the schema differs from what this package installs."""
        return await inspect_schema(self.conn, self.gateway.settings)

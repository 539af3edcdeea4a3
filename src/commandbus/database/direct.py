"""The direct path: the verbs of the store on a connection of the application, in its own thread.

Nothing here waits for an event loop: each statement runs at once on the connection that the
application has in this thread, and so in the transaction that is open on it. The coroutines of the
bus therefore run to their end without a pause; `finish` runs one.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, LiteralString, Protocol, TypeVar, Unpack, cast
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

from commandbus.database import encoding
from commandbus.database.connections import Row, Statement, run_blocking
from commandbus.database.foreign import refuse_unusual
from commandbus.database.gateway import LEVELS_SECONDS, Gateway, Session
from commandbus.database.model import Sent
from commandbus.database.own_connections import OurBlockingConnection
from commandbus.database.postgres import DECLARE_SECRETS, PostgresStore
from commandbus.database.sqlstate import translated
from commandbus.database.store import SendPlace
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.models import NewCommand
from commandbus.settings import Settings

Result = TypeVar("Result")

_NEEDS_LOOP = (
    "this verb waits for other processes, and there is no event loop here; use a BlockingBus or a "
    "CommandBus of your own for it"
)


class Seat(Protocol):
    """Where the application has its connection, in the thread that asks."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """The open connection of this thread, for one statement."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction on it, or a savepoint in the one that is open."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction of the application is open on it."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """How to open another connection like it."""

    def ran(self, statement: str, seconds: float) -> None:
        """A statement was run."""

    def failed(self, error: Exception) -> None:
        """A statement has failed."""


def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never has to wait; one that would is refused."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("Result", done.value)
    except RuntimeError as error:
        if "event loop" in str(error):
            raise InvalidOperationError(_NEEDS_LOOP) from None
        raise
    work.close()
    raise InvalidOperationError(_NEEDS_LOOP)


def address_of(parameters: Mapping[str, Any]) -> str:
    """The address for libpq among the arguments that a connection is opened with."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    named = {"database": "dbname", **{name: name for name in known}}
    found = {
        named[name]: value
        for name, value in parameters.items()
        if name in named and value is not None
    }
    return make_conninfo("", **found)


class _Here:
    """In place of `conn`: the connection of the seat."""


HERE = _Here()


class DirectGateway(Gateway):
    """Runs statements on the connection of a seat."""

    def __init__(self, seat: Seat, settings: Settings, known: dict[str, float]) -> None:
        super().__init__(cast("Any", None), settings)  # there is no pool
        self.seat = seat
        #: What this process knows to be there, as "domain d", "levels d", "keys d"; until when, by
        #: the monotonic clock.
        self._known = known

    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]:
        with translated(domain):
            return await self.run_on_foreign(conn, self.statement(text), params)

    async def run_on_foreign(self, conn: Any, statement: Statement, params: Row) -> list[Row]:
        """Run a statement on the connection of the seat; another one is refused."""
        if conn is not None and conn is not HERE:
            raise InvalidInputError(
                "this bus works on the connection that your framework has in this thread; leave "
                "conn out"
            )
        started = time.monotonic()
        with self.seat.connection() as own:
            refuse_unusual(own, "the connection")
            try:
                return run_blocking(own, statement, params)
            except psycopg.Error as error:
                self.seat.failed(error)
                raise
            finally:
                self.seat.ran(statement.psycopg.decode(), time.monotonic() - started)

    @asynccontextmanager
    async def transaction(
        self,
        domain: str = "",
        *,
        first: LiteralString | None = None,  # noqa: ARG002  (too late for it)
    ) -> AsyncIterator[Session]:
        """One transaction, or a savepoint in the one that is open."""
        with translated(domain), self.seat.transaction():
            yield DirectSession(self)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Session]:
        """The same: in a transaction that has begun it is too late to ask for one moment."""
        async with self.transaction() as session:
            yield session

    async def check(self) -> None:
        """Raise if the database has not been set up."""
        await self.rows("select {schema}.knows_domain(%s)", ("commandbus",))

    async def ensure_domain(self, domain: str) -> None:
        """Create the queues of a domain if they are missing, never in the open transaction."""
        if f"domain {domain}" in self._known:
            return
        if not await self.value("select {schema}.knows_domain(%s)", (domain,), domain=domain):
            self.run_apart("select {schema}.ensure_domain(%s)", domain)
        self._known[f"domain {domain}"] = math.inf

    async def ensure_levels(self, domain: str) -> None:
        """Say that a domain uses levels, now and then, never in the open transaction.

        One that was not said to for an hour is said to by the send itself, which would keep the row
        of the domain until the transaction of the application ends.
        """
        self._say(f"levels {domain}", "select {schema}.use_levels(%s)", domain, LEVELS_SECONDS)

    async def ensure_keys(self, domain: str) -> None:
        """Say that a domain uses ordering keys, never in the open transaction."""
        self._say(f"keys {domain}", "select {schema}.use_keys(%s)", domain, math.inf)

    def _say(self, mark: str, text: LiteralString, domain: str, seconds: float) -> None:
        if self._known.get(mark, 0.0) < time.monotonic():
            self.run_apart(text, domain)
            self._known[mark] = time.monotonic() + seconds

    def run_apart(self, text: LiteralString, domain: str, *more: str) -> None:
        """Run a statement in a transaction of its own.

        In that of the application it would keep its locks for as long as that lasts, and all other
        senders of the domain would wait.
        """
        statement, params = self.statement(text), (domain, *more)
        with translated(domain):
            if not self.seat.is_in_transaction:
                with self.seat.connection() as own:
                    run_blocking(own, statement, params)
                return
            address = address_of(self.seat.parameters)
            with OurBlockingConnection.connect(address, autocommit=True) as other:
                run_blocking(other, statement, params)


class DirectSession(Session):
    """Statements in one transaction of a seat."""

    def __init__(self, gateway: DirectGateway) -> None:
        super().__init__(gateway, cast("Any", None))
        self._direct = gateway

    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]:
        return await self._direct._run(text, params, domain, conn)

    async def try_rows(self, text: LiteralString, params: Row = ()) -> tuple[list[Row], str | None]:
        """All rows; or none and the SQLSTATE of an error, after which the transaction goes on."""
        try:
            with self._direct.seat.transaction():
                statement = self.gateway.statement(text)
                return await self._direct.run_on_foreign(None, statement, params), None
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            return [], error.sqlstate


class PoollessStore(PostgresStore):
    """A store whose statements run at once, in the thread of the caller."""

    @property
    def _pool(self) -> Any:  # type: ignore[override]  # there is none, and what needs one waits
        raise InvalidOperationError(_NEEDS_LOOP)


class DirectStore(PoollessStore):
    """The store on the connection of a seat: what sends, operates and reads."""

    gateway: DirectGateway

    def __init__(self, seat: Seat, settings: Settings, known: dict[str, float]) -> None:
        self.gateway = DirectGateway(seat, settings, known)

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        """Remember which keys must not be shown, never in the open transaction."""
        self.gateway.run_apart(DECLARE_SECRETS, domain, encoding.secrets(keys))

    async def send(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: UUID | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        """Store and queue all, or raise DuplicateCommandError and store none."""
        held = list(commands)
        await super().send(domain, held, batch_id=batch_id, actor=actor, conn=conn or HERE)

    async def send_new(
        self, domain: str, commands: Iterable[NewCommand], **options: Unpack[SendPlace]
    ) -> list[int]:
        """The same for those whose id is new."""
        options["conn"] = options.get("conn") or HERE
        return await super().send_new(domain, list(commands), **options)

    async def send_unique(
        self,
        domain: str,
        commands: Sequence[NewCommand],
        *,
        skips_known: bool = False,
        **options: Unpack[SendPlace],
    ) -> list[Sent]:
        """Send commands of which some have a unique key."""
        options["conn"] = options.get("conn") or HERE
        return await super().send_unique(domain, commands, skips_known=skips_known, **options)

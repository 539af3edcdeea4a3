"""Wiring: Settings -> pools, store, schema. The only composition root."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from commandbus.addresses import libpq_address
from commandbus.database import connections
from commandbus.database.connections import AsyncPool, ConnectionSource
from commandbus.database.direct import DirectStore, Seat, address_of, finish
from commandbus.database.direct_calls import CallerStore
from commandbus.database.foreign import is_blocking
from commandbus.database.migrations import SchemaStatus, check_schema, migrate, schema_status
from commandbus.database.postgres import PostgresStore
from commandbus.database.removal import Contents, look_at_contents, remove_installation
from commandbus.database.roles import RoleStatus, apply_roles, role_status
from commandbus.database.sessions import Timeouts
from commandbus.database.sqlstate import translated
from commandbus.database.store import Store
from commandbus.embedded import EmbeddedPostgres
from commandbus.errors import DatabaseUnavailableError, InvalidSettingError, SchemaMissingError
from commandbus.loops import Backoff
from commandbus.opening import Opening
from commandbus.settings import Settings, check_number

__all__ = ["address_of", "finish", "is_blocking"]  # handed on

DSN_VARIABLE = "COMMANDBUS_DSN"

Result = TypeVar("Result")

#: First and longest pause between two looks for a server, in seconds.
WAIT_PAUSES_SECONDS = (0.1, 1.0)
#: How often it is said that there is none yet, in seconds.
TELL_SECONDS = 5.0

_log = logging.getLogger("commandbus.opening")


class Closable(Protocol):
    """What has to be closed before its store."""

    async def close(self) -> None:
        """Let go of everything."""


Bus = TypeVar("Bus", bound=Closable)


def store_on(pool: Any, settings: Settings) -> Store:
    """The store on a pool that the application owns."""
    return PostgresStore(pool, settings)


def direct_store(seat: Seat, settings: Settings, known: dict[str, float]) -> Store:
    """The store on the connection that a framework has in the thread that asks."""
    return DirectStore(seat, settings, known)


def caller_store(settings: Settings) -> CallerStore:
    """The store on connections that callers name, in their threads."""
    return CallerStore(settings)


def find_dsn(dsn: str | None) -> str | None:
    """The database that was asked for: the argument, then COMMANDBUS_DSN, else None (embedded).

    As libpq takes it: addresses of SQLAlchemy and Django are translated.
    """
    found = dsn or os.environ.get(DSN_VARIABLE)
    return libpq_address(found) if found else None


def address_parts(address: str) -> dict[str, Any]:
    """The parts of an address: host, port, user, password, dbname and options."""
    with translated():
        return connections.address_parts(address)


def any_server(address: str) -> str:
    """The same address for a look that changes nothing: a standby will do, unless it says more."""
    with translated():
        parts = connections.address_parts(address)
        return connections.make_address({"target_session_attrs": "any", **parts})


def refuse_both(dsn: str | None, data_dir: Path | None) -> None:
    """An address always wins over the embedded server; a folder beside it would be ignored."""
    if dsn is not None and data_dir is not None:
        raise InvalidSettingError(
            "a database address (--dsn or COMMANDBUS_DSN) and a folder for the embedded server "
            "(--data-dir) name two databases; use one of them"
        )


def database(dsn: str | None, data_dir: Path | None = None) -> Opening[str]:
    """The address of the database: what was asked for, or an embedded server while in use."""

    async def begin(stack: AsyncExitStack) -> str:
        found = find_dsn(dsn)
        if found is None:
            return await stack.enter_async_context(embedded_database(data_dir))
        refuse_both(found, data_dir)
        return found

    return Opening(begin)


def embedded_database(data_dir: Path | None = None) -> Opening[str]:
    """The address of the embedded server, whatever COMMANDBUS_DSN says, while in use."""

    async def begin(stack: AsyncExitStack) -> str:
        server = EmbeddedPostgres(data_dir)
        stack.push_async_callback(_stop, server)  # does nothing unless it was started
        return await _in_thread(server.start)

    return Opening(begin)


async def _stop(server: EmbeddedPostgres) -> None:
    try:
        await _in_thread(server.stop)
    except RuntimeError:  # the interpreter ends, and starts no more threads
        server.stop()


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Run in a thread. A cancel waits for its end: nothing may be started behind our back."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def open_pool(dsn: str, settings: Settings) -> Opening[AsyncPool]:
    """A pool for callers on this database."""

    async def begin(stack: AsyncExitStack) -> AsyncPool:
        source = ConnectionSource(dsn, None, settings.deadline_seconds)
        with translated():
            pool = await source.open_pool(
                "caller",
                settings.pool_size,
                timeout_seconds=settings.connect_timeout_seconds,
                timeouts=Timeouts(lock=settings.server_seconds),
            )
        stack.push_async_callback(pool.close)
        return pool

    return Opening(begin)


async def until_writable(address: str, settings: Settings, seconds: float) -> None:
    """Wait for a server that accepts writes; raises if none does in this time.

    At once for what no waiting changes, like a wrong password.
    """
    check_number(seconds, "wait_seconds", 0, 86_400)
    end = time.monotonic() + seconds
    pauses = Backoff(*WAIT_PAUSES_SECONDS)
    told_at = float("-inf")
    while True:
        try:
            with translated():
                await (await _connect(address, settings)).close()
        except DatabaseUnavailableError as error:
            now = time.monotonic()
            if not error.is_temporary or now >= end:
                raise
            if now - told_at >= TELL_SECONDS:
                told_at = now
                _log.warning("waiting up to %.0f s more for a server: %s", end - now, error)
            await asyncio.sleep(min(pauses.next(), max(0.0, end - now)))
        else:
            return


def open_store(
    dsn: str | None,
    settings: Settings,
    *,
    data_dir: Path | None = None,
    wait_seconds: float = 0.0,
) -> Opening[tuple[AsyncPool, Store]]:
    """Everything that `CommandBus.connect` needs; creates what is missing.

    A database that was never initialised is; one that is merely older is not touched, because a
    rolling deployment must not be migrated by whichever process starts first. The embedded server
    belongs to this machine alone, so there it is.
    """

    async def begin(stack: AsyncExitStack) -> tuple[AsyncPool, Store]:
        address = await stack.enter_async_context(database(dsn, data_dir))
        await until_writable(address, settings, wait_seconds)
        pool = await stack.enter_async_context(open_pool(address, settings))
        with translated():
            # Not one of the pool: a migration may take long.
            async with await _connect(address, settings) as conn:
                try:
                    if find_dsn(dsn) is None:
                        await migrate(conn, settings)
                    await check_schema(conn, settings)
                except SchemaMissingError:
                    await migrate(conn, settings)
                    await check_schema(conn, settings)
        return pool, store_on(pool, settings)

    return Opening(begin)


def open_bus(
    build: Callable[[Store, Settings], Bus],
    dsn: str | None,
    settings: Settings | None,
    data_dir: Path | None,
    wait_seconds: float = 0.0,
) -> Opening[Bus]:
    """A bus on a store of its own, closed before it."""

    async def begin(stack: AsyncExitStack) -> Bus:
        found = settings or Settings.from_env()
        opened = open_store(dsn, found, data_dir=data_dir, wait_seconds=wait_seconds)
        _, store = await stack.enter_async_context(opened)
        bus = build(store, found)
        stack.push_async_callback(bus.close)
        return bus

    return Opening(begin)


async def _connect(dsn: str, settings: Settings) -> Any:
    """One connection, for statements that may take long."""
    return await ConnectionSource(dsn, None, settings.deadline_seconds).connect()


async def migrate_database(dsn: str, settings: Settings, *, upto: int | None = None) -> list[str]:
    """Bring a database up to date; returns what was applied.

    With `upto` only to that version of the tables, without the functions.
    """
    with translated():
        async with await _connect(dsn, settings) as conn:
            return await migrate(conn, settings, upto=upto)


async def database_status(dsn: str, settings: Settings) -> SchemaStatus:
    """What a database has, and what this package brings."""
    with translated():
        async with await _connect(dsn, settings) as conn:
            return await schema_status(conn, settings)


async def database_roles(
    dsn: str, settings: Settings, *, prefix: str | None = None, apply: bool = False
) -> tuple[RoleStatus, tuple[str, ...]]:
    """The roles of a database; with `apply`, after they were put right, and what was run for it."""
    with translated():
        async with await _connect(dsn, settings) as conn:
            await check_schema(conn, settings)
            ran = await apply_roles(conn, settings, prefix) if apply else ()
            return await role_status(conn, settings, prefix), ran


async def database_contents(dsn: str, settings: Settings) -> Contents:
    """What an installation has in a database."""
    with translated():
        async with await _connect(dsn, settings) as conn:
            await check_schema(conn, settings)
            return await look_at_contents(conn, settings)


async def drop_database(
    dsn: str, settings: Settings, domains: Collection[str], *, even_open: bool = False
) -> Contents:
    """Remove an installation from a database; returns what went."""
    with translated():
        async with await _connect(dsn, settings) as conn:
            await check_schema(conn, settings)
            return await remove_installation(conn, settings, domains, even_open=even_open)


async def ensure_domains(dsn: str, settings: Settings, domains: Iterable[str]) -> None:
    """Make the queues of domains, so that no request and no transaction has to."""
    with translated():
        await until_writable(dsn, settings, 0.0)  # a wrong password should say so, not time out
        async with open_pool(dsn, settings) as pool:
            store = store_on(pool, settings)
            for domain in domains:
                await store.ensure_domain(domain)

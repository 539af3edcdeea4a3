"""Wiring: Settings -> pools, store, schema. The only composition root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from commandbus.database.connections import AsyncPool, ConnectionSource
from commandbus.database.migrations import SchemaStatus, check_schema, migrate, schema_status
from commandbus.database.postgres import PostgresStore
from commandbus.database.sqlstate import translated
from commandbus.database.store import Store
from commandbus.embedded import EmbeddedPostgres
from commandbus.errors import InvalidSettingError, SchemaMissingError
from commandbus.settings import Settings

DSN_VARIABLE = "COMMANDBUS_DSN"


def store_on(pool: Any, settings: Settings) -> Store:
    """The store on a pool that the application owns."""
    return PostgresStore(pool, settings)


def find_dsn(dsn: str | None) -> str | None:
    """The database that was asked for: the argument, then COMMANDBUS_DSN, else None (embedded)."""
    return dsn or os.environ.get(DSN_VARIABLE) or None


def refuse_both(dsn: str | None, data_dir: Path | None) -> None:
    """An address always wins over the embedded server; a folder beside it would be ignored."""
    if dsn is not None and data_dir is not None:
        raise InvalidSettingError(
            "a database address (--dsn or COMMANDBUS_DSN) and a folder for the embedded server "
            "(--data-dir) name two databases; use one of them"
        )


@asynccontextmanager
async def database(dsn: str | None, data_dir: Path | None = None) -> AsyncIterator[str]:
    """The address of the database: what was asked for, or an embedded server while in use."""
    found = find_dsn(dsn)
    if found is not None:
        refuse_both(found, data_dir)
        yield found
        return
    async with embedded_database(data_dir) as address:
        yield address


@asynccontextmanager
async def embedded_database(data_dir: Path | None = None) -> AsyncIterator[str]:
    """The address of the embedded server, whatever COMMANDBUS_DSN says, while in use."""
    server = EmbeddedPostgres(data_dir)
    address = await asyncio.to_thread(server.start)
    try:
        yield address
    finally:
        try:
            await asyncio.to_thread(server.stop)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            server.stop()


@asynccontextmanager
async def open_pool(dsn: str, settings: Settings) -> AsyncIterator[AsyncPool]:
    """A pool for callers on this database."""
    source = ConnectionSource(dsn, None)
    with translated():
        # One connection by hand first: a wrong password should say so, not time out.
        await (await source.connect()).close()
        pool = await source.open_pool(
            "caller",
            settings.pool_size,
            timeout_seconds=settings.connect_timeout_seconds,
            statement_timeout_seconds=None,
        )
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def open_store(
    dsn: str | None, settings: Settings, *, data_dir: Path | None = None
) -> AsyncIterator[tuple[AsyncPool, Store]]:
    """Everything that `CommandBus.connect` needs; creates what is missing.

    A database that was never initialised is; one that is merely older is not touched, because a
    rolling deployment must not be migrated by whichever process starts first. The embedded server
    belongs to this machine alone, so there it is.
    """
    async with database(dsn, data_dir) as address, open_pool(address, settings) as pool:
        with translated():
            async with pool.connection() as conn:
                try:
                    if find_dsn(dsn) is None:
                        await migrate(conn, settings)
                    await check_schema(conn, settings)
                except SchemaMissingError:
                    await migrate(conn, settings)
                    await check_schema(conn, settings)
        yield pool, store_on(pool, settings)


async def migrate_database(dsn: str, settings: Settings) -> list[str]:
    """Bring a database up to date; returns what was applied."""
    with translated():
        async with await ConnectionSource(dsn, None).connect() as conn:
            return await migrate(conn, settings)


async def database_status(dsn: str, settings: Settings) -> SchemaStatus:
    """What a database has, and what this package brings."""
    with translated():
        async with await ConnectionSource(dsn, None).connect() as conn:
            return await schema_status(conn, settings)

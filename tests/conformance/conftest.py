"""One suite, two stores. The one on PostgreSQL asks for a database only when it is its turn."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool

from commandbus.database.store import Store
from tests.conformance.worlds import MemoryWorld, PostgresWorld, World
from tests.security.roled import roles_on

if TYPE_CHECKING:
    from tests.conftest import Server

#: The variable that names database roles, as `worker,operator`: the store then logs in with them
#: alone, while the tests look and interfere as the owner.
TEST_ROLES = "COMMANDBUS_TEST_ROLES"
#: The address with that login, by the address of the owner.
LOGINS: dict[str, str] = {}


@pytest.fixture(scope="session")
def shared_dsn(server: Server, template: str) -> Iterator[str]:
    """One database for the whole suite: a clone for each of many small tests would take longer."""
    name = f"conformance_{secrets.token_hex(6)}"
    with server.admin() as admin:
        database = sql.Identifier(name)
        admin.execute(
            sql.SQL("create database {} template {}").format(database, sql.Identifier(template))
        )
        if roles := os.environ.get(TEST_ROLES):
            with roles_on(server.dsn(name), admin) as made:
                LOGINS[made.owner] = made.join(admin, *roles.split(","))
                yield made.owner
        else:
            yield server.dsn(name)
            admin.execute(sql.SQL("drop database {} with (force)").format(database))


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def address(request: pytest.FixtureRequest) -> str | None:
    """The database of this test; None for the store in memory."""
    return request.getfixturevalue("shared_dsn") if request.param == "postgres" else None


@pytest.fixture
async def world(address: str | None) -> AsyncIterator[World]:
    """A store with nothing in it, and power over its time."""
    if address is None:
        yield MemoryWorld()
        return
    async with _open(address) as world:
        yield world


@pytest.fixture
async def postgres_world(shared_dsn: str) -> AsyncIterator[PostgresWorld]:
    """The world on PostgreSQL, for what the store in memory does not have."""
    async with _open(shared_dsn) as world:
        yield world


@asynccontextmanager
async def _open(address: str) -> AsyncIterator[PostgresWorld]:
    async with (
        AsyncConnectionPool[Any](
            LOGINS.get(address, address), min_size=1, max_size=4, open=False
        ) as pool,
        await psycopg.AsyncConnection.connect(address, autocommit=True) as conn,
    ):
        world = PostgresWorld(pool, conn)
        await world.clear()
        yield world


@pytest.fixture
def store(world: World) -> Store:
    """The store itself."""
    return world.store

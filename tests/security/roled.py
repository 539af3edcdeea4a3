"""A database with the roles of commandbus, and a login in each of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus import CommandBus, Settings
from commandbus.database.roles import ROLES
from commandbus.wiring import database_roles
from tests.conftest import Server

#: Those that processes log in with.
RESTRICTED = tuple(role for role in ROLES if role != "migrator")


@dataclass(frozen=True)
class RoledDatabase:
    """A database, and how to connect in each role; `owner` is the login that set it up."""

    owner: str
    prefix: str
    password: str

    def join(self, admin: psycopg.Connection[Any], *roles: str) -> str:
        """Make the login of the first role a member of the others too; how to connect with it."""
        for role in roles[1:]:
            admin.execute(
                sql.SQL("grant {} to {}").format(
                    sql.Identifier(f"{self.prefix}_{role}"), sql.Identifier(self.login(roles[0]))
                )
            )
        return self.dsn(roles[0])

    def login(self, role: str) -> str:
        return f"{self.prefix}_{role}_login"

    def dsn(self, role: str) -> str:
        return make_conninfo(self.owner, user=self.login(role), password=self.password)

    @asynccontextmanager
    async def connect(self, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """An autocommit connection in a role."""
        async with await psycopg.AsyncConnection.connect(self.dsn(role), autocommit=True) as conn:
            yield conn

    @asynccontextmanager
    async def bus(self, role: str, **settings: Any) -> AsyncIterator[CommandBus]:
        """A bus in a role."""
        async with CommandBus.connect(self.dsn(role), settings=Settings(**settings)) as bus:
            yield bus


def create_logins(admin: psycopg.Connection[Any], database: RoledDatabase) -> None:
    """A login in each role, as a team would make it."""
    for role in ROLES:
        admin.execute(
            sql.SQL("create role {} login password {} in role {}").format(
                sql.Identifier(database.login(role)),
                sql.Literal(database.password),
                sql.Identifier(f"{database.prefix}_{role}"),
            )
        )
        # so that a database can be dropped while some session of theirs is still ending
        admin.execute(
            sql.SQL("grant {} to current_user").format(sql.Identifier(database.login(role)))
        )


@contextmanager
def roled_database(server: Server, template: str) -> Iterator[RoledDatabase]:
    """A clone of the template with roles of its own; all of it is gone afterwards."""
    name = f"test_{secrets.token_hex(6)}"
    with server.admin() as admin:
        admin.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        with roles_on(server.dsn(name), admin) as database:
            yield database


@contextmanager
def roles_on(dsn: str, admin: psycopg.Connection[Any]) -> Iterator[RoledDatabase]:
    """Roles and logins for a database, which is dropped with them afterwards."""
    database = RoledDatabase(dsn, f"r{secrets.token_hex(6)}", secrets.token_hex(16))
    try:
        asyncio.run(database_roles(dsn, Settings(), prefix=database.prefix, apply=True))
        create_logins(admin, database)
        yield database
    finally:
        drop_database(admin, database)


def drop_database(admin: psycopg.Connection[Any], database: RoledDatabase) -> None:
    """Drop it with its roles."""
    name = conninfo_to_dict(database.owner)["dbname"]
    admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(str(name))))
    for (role,) in admin.execute(
        "select rolname from pg_roles where starts_with(rolname, %s) order by rolname desc",
        (f"{database.prefix}_",),
    ).fetchall():
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))

"""Database roles: who may do what to our schema, compared with a database and put right.

What each role may do stands in sql/functions/rights.sql, and sql/functions/roles.sql compares it
with the database: each difference comes with the statement that removes it. Here they are shown,
or run. ADR 0040 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from commandbus.database.connections import Row, fetch
from commandbus.errors import DatabaseError, InvalidSettingError
from commandbus.settings import Settings

#: Rights are given to <prefix>_<role>.
ROLES = ("migrator", "sender", "worker", "operator", "api", "reader")
#: The setting of the database that says which prefix its roles have.
PREFIX_SETTING = "role_prefix"
#: Each round of statements may bring others to light, as new rights of a role that was just made.
_ROUNDS = 4

_DIFFERENCES: LiteralString = (
    "select kind, role, problem, statement from {schema}.role_differences(%s)"
)
_PREFIX: LiteralString = "select s.value from {schema}.command_bus_setting s where s.name = %s"
_NOTE_PREFIX: LiteralString = (
    "insert into {schema}.command_bus_setting (name, value) values (%s, %s)"
    " on conflict (name) do update set value = excluded.value, updated_at = now()"
)
_OWNER: LiteralString = (
    "select o.rolname, o.rolname = current_user, pg_has_role(current_user, o.oid, 'member')"
    " from pg_class c join pg_roles o on o.oid = c.relowner"
    " where c.oid = to_regclass(quote_ident(%s) || '.command_bus_migration')"
)
_RUNNER: LiteralString = (
    "select r.rolname, r.rolsuper, r.rolsuper or r.rolcreaterole from pg_roles r"
    " where r.rolname = current_user"
)
#: Other databases of the server in which the roles have rights or own something.
_ELSEWHERE: LiteralString = (
    "select distinct d.datname from pg_shdepend s join pg_database d on d.oid = s.dbid"
    " join pg_roles r on r.oid = s.refobjid and s.refclassid = cast('pg_authid' as regclass)"
    " where r.rolname = any(%s) and d.datname <> current_database() order by 1"
)
_MAY_USE: LiteralString = (
    "select pg_has_role(current_user, r.oid, 'usage') from pg_roles r where r.rolname = %s"
)


@dataclass(frozen=True, slots=True)
class RoleDifference:
    """One thing that is not as it should be, and the statement that puts it right."""

    #: role, owner, queue, pgmq, default or right: what it takes to run the statement.
    kind: str
    role: str
    problem: str
    statement: str


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """The roles of a database."""

    prefix: str
    #: Whether `db roles --apply` has ever run here.
    is_set_up: bool
    differences: tuple[RoleDifference, ...]


async def role_status(
    conn: psycopg.AsyncConnection[Any], settings: Settings, prefix: str | None = None
) -> RoleStatus:
    """Compare the roles with what they should be; changes nothing."""
    noted = await _noted_prefix(conn, settings)
    wanted = _check_prefix(prefix or noted or settings.schema)
    return RoleStatus(wanted, noted == wanted, await _differences(conn, settings, wanted))


async def apply_roles(
    conn: psycopg.AsyncConnection[Any], settings: Settings, prefix: str | None = None
) -> tuple[str, ...]:
    """Make the roles and give them exactly what they need; returns the statements that were run.

    One transaction. The caller must own the schema, or be a superuser, and may create roles.
    """
    async with conn.transaction():
        # One at a time: two would both find a role missing.
        await conn.execute("select pg_advisory_xact_lock(hashtextextended('commandbus roles', 0))")
        status = await role_status(conn, settings, prefix)
        ran = await _run_all(conn, settings, status)
        await _execute(conn, settings, _NOTE_PREFIX, PREFIX_SETTING, status.prefix)
    return ran


async def apply_rights(conn: psycopg.AsyncConnection[Any], settings: Settings) -> None:
    """Give the roles their rights on what a migration has made; nothing if there are no roles."""
    noted = await _noted_prefix(conn, settings)
    if noted is None:
        return
    found = await _differences(conn, settings, noted)
    made = {name for (name,) in await fetch(conn, "select rolname from pg_roles")}
    for difference in found:
        if difference.kind == "right" and (
            difference.role == "public" or f"{noted}_{difference.role}" in made
        ):
            await conn.execute(difference.statement.encode())


async def become_owner(conn: psycopg.AsyncConnection[Any], settings: Settings) -> None:
    """Until the end of the transaction act as the owner of our tables, if that is another role.

    What a migration makes must belong to that role: functions act with the rights of their owner.
    """
    for owner, is_self, is_member in await fetch(conn, _OWNER, settings.schema):
        if is_self:
            continue
        if not is_member:
            raise DatabaseError(
                f"the tables of {settings.schema!r} belong to the role {owner!r}; migrate with a "
                f"login that is a member of it (grant {owner} to <login>)"
            )
        await conn.execute(sql.SQL("set local role {}").format(sql.Identifier(owner)))


async def _run_all(
    conn: psycopg.AsyncConnection[Any], settings: Settings, status: RoleStatus
) -> tuple[str, ...]:
    ((runner, is_super, may_create),) = await fetch(conn, _RUNNER)
    await _refuse_shared(conn, status)
    ran: list[str] = []
    differences = status.differences
    if not may_create and any(d.kind == "role" for d in differences):
        raise DatabaseError(
            f"the login {runner!r} may not create roles; run this as one that may (alter role "
            f"{runner} createrole), or give the output of `commandbus db roles --sql` to one who "
            "can"
        )
    for _ in range(_ROUNDS):
        if not differences:
            break
        for kind in ("role", ""):
            if kind == "" and not is_super:
                ran += await _join_migrator(conn, status.prefix, runner)
            for each in differences:
                if (each.kind == "role") == (kind == "role"):
                    await _run_one(conn, each.statement, runner)
                    ran.append(each.statement)
        differences = await _differences(conn, settings, status.prefix)
    if differences:
        raise DatabaseError(f"could not be put right: {differences[0].problem}")
    return tuple(ran)


async def _join_migrator(
    conn: psycopg.AsyncConnection[Any], prefix: str, runner: str
) -> Sequence[str]:
    """To hand something over to a role takes membership in it."""
    migrator = f"{prefix}_migrator"
    if await fetch(conn, _MAY_USE, migrator) == [(True,)]:
        return ()
    text = sql.SQL("grant {} to {}").format(sql.Identifier(migrator), sql.Identifier(runner))
    statement = text.as_string(conn)
    await _run_one(conn, statement, runner)
    return (statement,)


async def _run_one(conn: psycopg.AsyncConnection[Any], statement: str, runner: str) -> None:
    try:
        await conn.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        said = " ".join((error.diag.message_primary or str(error)).split())
        raise DatabaseError(
            f"the login {runner!r} may not run `{statement}`: {said}; run this as the owner of the "
            "schema with the right to create roles, or give the output of `commandbus db roles "
            "--sql` to one who can"
        ) from error


async def _refuse_shared(conn: psycopg.AsyncConnection[Any], status: RoleStatus) -> None:
    """Roles belong to the server: a worker of one installation must not be one of another."""
    if status.is_set_up:
        return
    names = [f"{status.prefix}_{role}" for role in ROLES]
    others = [row[0] for row in await fetch(conn, _ELSEWHERE, names)]
    if others:
        raise InvalidSettingError(
            f"the roles {status.prefix}_… belong to another installation already, in the database "
            f"{', '.join(others)}; choose other names: `commandbus db roles --apply --prefix …`"
        )


def _check_prefix(prefix: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,49}", prefix) or prefix.startswith("pg_"):
        raise InvalidSettingError(
            f"{prefix!r} is no prefix of roles; use a-z, 0-9 and _, at most 50 characters"
        )
    return prefix


async def _noted_prefix(conn: psycopg.AsyncConnection[Any], settings: Settings) -> str | None:
    rows = await _execute(conn, settings, _PREFIX, PREFIX_SETTING)
    return rows[0][0] if rows else None


async def _differences(
    conn: psycopg.AsyncConnection[Any], settings: Settings, prefix: str
) -> tuple[RoleDifference, ...]:
    rows = await _execute(conn, settings, _DIFFERENCES, prefix)
    return tuple(RoleDifference(*row) for row in rows)


async def _execute(
    conn: psycopg.AsyncConnection[Any], settings: Settings, text: LiteralString, *params: object
) -> list[Row]:
    query = sql.SQL(text).format(schema=sql.Identifier(settings.schema))
    return await fetch(conn, query, *params)

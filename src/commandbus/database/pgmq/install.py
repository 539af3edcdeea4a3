"""Installing PGMQ: the server's extension if it has one, else the SQL of the PyPI package.

Features are detected, not concluded from a version number. Must run inside a transaction that
holds the migration lock: the script itself is not made to be run twice.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from commandbus.database.connections import fetch
from commandbus.errors import PgmqError

#: What we call, by signature. 1.8 brought the array form of set_vt; nothing older will do.
REQUIRED_FUNCTIONS = (
    "pgmq.create(text)",
    "pgmq.send_batch(text, jsonb[])",
    "pgmq.read(text, integer, integer, jsonb)",
    "pgmq.delete(text, bigint[])",
    "pgmq.archive(text, bigint[])",
    "pgmq.set_vt(text, bigint[], integer)",
    "pgmq.set_vt(text, bigint[], timestamp with time zone)",
)

#: Only what this role may change: other programs may have queues too.
_MONITORED = (
    "select c.relname from pg_class c cross join aclexplode(c.relacl) a"
    " where c.relnamespace = cast('pgmq' as regnamespace) and c.relkind in ('r', 'p', 'v')"
    " and a.grantee = cast('pg_monitor' as regrole) and a.privilege_type = 'SELECT'"
    " and pg_has_role(c.relowner, 'usage')"
)


async def install_pgmq(conn: psycopg.AsyncConnection[Any]) -> None:
    """Install PGMQ if it is missing, check that it has what we call, and protect its messages."""
    if not await is_installed(conn):
        if await fetch(conn, "select 1 from pg_available_extensions where name = 'pgmq'"):
            await conn.execute("create extension pgmq")
        else:
            await conn.execute(packaged_sql().encode())
            await conn.execute(
                sql.SQL("comment on schema pgmq is {}").format(sql.Literal(packaged_version()))
            )
    lacking = await lacking_functions(conn)
    if lacking:
        raise PgmqError(
            f"the installed PGMQ lacks {', '.join(lacking)}; upgrade it to 1.8 or later "
            "(alter extension pgmq update)"
        )
    # PGMQ lets pg_monitor read every message; payloads are not monitoring data.
    for (table,) in await fetch(conn, _MONITORED):
        await conn.execute(
            sql.SQL("revoke select on table pgmq.{} from pg_monitor").format(sql.Identifier(table))
        )
    await conn.execute(
        "alter default privileges in schema pgmq revoke select on tables from pg_monitor"
    )


async def is_installed(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the database has PGMQ."""
    return bool(await fetch(conn, "select 1 where to_regtype('pgmq.message_record') is not null"))


def packaged_sql() -> str:
    """The script that the PyPI package `pgmq` ships."""
    return files("pgmq").joinpath("sql", "pgmq.sql").read_text(encoding="utf-8")


def packaged_version() -> str:
    """The version of that script."""
    text = files("pgmq").joinpath("sql", "VERSION").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    return next(line for line in lines if line and not line.startswith("#"))


async def lacking_functions(conn: psycopg.AsyncConnection[Any]) -> tuple[str, ...]:
    """Those of REQUIRED_FUNCTIONS that the database does not have."""
    # Not by to_regprocedure: that takes rights on the schema, which only the owner has.
    query = (
        "select s from unnest(%s::text[]) s where not exists (select from pg_proc p"
        " where p.pronamespace = (select n.oid from pg_namespace n where n.nspname = 'pgmq')"
        " and format('pgmq.%%s(%%s)', p.proname, oidvectortypes(p.proargtypes)) = s)"
    )
    return tuple(row[0] for row in await fetch(conn, query, list(REQUIRED_FUNCTIONS)))

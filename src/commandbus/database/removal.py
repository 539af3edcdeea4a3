"""Removal: all of an installation out of a database, the queues and the schema, or nothing of it.

What goes is looked at first, and under a lock once more: a command that is sent in between is not
removed unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from commandbus.database.connections import Row, fetch
from commandbus.database.migrations import MIGRATION_LOCK
from commandbus.database.roles import become_owner
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.settings import Settings

#: What is typed in place of the names of domains if there are none.
NO_DOMAINS = "none"
#: How long transactions of others are waited for, in seconds. Senders wait behind us as long.
LOCK_SECONDS = 10
FEW = 5

#: Queues of commands that another program made are only ours if we have commands of that domain.
_QUEUES: LiteralString = (
    "select q.queue, q.physical, {schema}.is_made_by_us(q.physical) or q.queue like '%.commands'"
    "   and exists (select from {schema}.command_bus_command c"
    "                where c.domain = split_part(q.queue, '.', 1))"
    " from {schema}.own_queues() q order by 1"
)
_COMMANDS: LiteralString = (
    "select c.domain, count(*), count(*) filter (where c.status in ('PENDING', 'IN_PROGRESS')),"
    "       count(*) filter (where c.status = 'IN_TROUBLESHOOTING_QUEUE')"
    " from (select c.domain, c.status from {schema}.command_bus_command c"
    "       union all select h.domain, h.status from {schema}.command_bus_history h) c"
    " group by 1 order by 1"
)
#: Tables of others that lie in our schema: a login that is called like it makes its tables there.
_STRANGERS: LiteralString = """
    select c.relname from pg_class c
     where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
       and c.relname !~ '^(command_bus|rate_limit)_'
       and c.relname not in ('approval_tickets', 'batch_approval_tickets', 'v_batch_success_rate',
                             'v_pending_retry', 'v_queue_lag')
     order by 1
"""
#: What others have built on our tables, functions and types, and would go with them: views, foreign
#: keys, triggers, defaults, policies, functions.
_DEPENDENTS: LiteralString = """
    with ours as (
        select 'pg_class'::regclass::oid as kind, c.oid from pg_class c
         where c.relnamespace = %(schema)s::regnamespace
        union all select 'pg_proc'::regclass, p.oid from pg_proc p
         where p.pronamespace = %(schema)s::regnamespace
        union all select 'pg_type'::regclass, t.oid from pg_type t
         where t.typnamespace = %(schema)s::regnamespace
    ), found as (
        select distinct d.classid, d.objid,
               coalesce(rule.ev_class, con.conrelid, trg.tgrelid, def.adrelid, pol.polrelid, rel.oid) as owner,
               proc.pronamespace as of_function
          from ours o
          join pg_depend d on d.refclassid = o.kind and d.refobjid = o.oid and d.deptype in ('n', 'a')
          left join pg_rewrite rule on d.classid = 'pg_rewrite'::regclass and rule.oid = d.objid
          left join pg_constraint con on d.classid = 'pg_constraint'::regclass and con.oid = d.objid
          left join pg_trigger trg on d.classid = 'pg_trigger'::regclass and trg.oid = d.objid
          left join pg_attrdef def on d.classid = 'pg_attrdef'::regclass and def.oid = d.objid
          left join pg_policy pol on d.classid = 'pg_policy'::regclass and pol.oid = d.objid
          left join pg_class rel on d.classid = 'pg_class'::regclass and rel.oid = d.objid
          left join pg_proc proc on d.classid = 'pg_proc'::regclass and proc.oid = d.objid
    )
    select pg_describe_object(f.classid, f.objid, 0)
      from found f left join pg_class c on c.oid = f.owner
     where coalesce(c.relnamespace, f.of_function) not in (%(schema)s::regnamespace, 'pgmq'::regnamespace)
     order by 1
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class DomainContents:
    """What a domain has."""

    domain: str
    commands: int
    #: Not ended: pending or in progress.
    open: int
    #: In the troubleshooting queue.
    parked: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What an installation has in a database."""

    domains: tuple[DomainContents, ...]
    #: By the names that PGMQ has for them.
    queues: tuple[str, ...]
    #: Queues that look like ours, but that another program made; they stay.
    others: tuple[str, ...]

    @property
    def confirmation(self) -> str:
        """What has to be typed to remove it."""
        return ",".join(each.domain for each in self.domains) or NO_DOMAINS


async def look_at_contents(conn: psycopg.AsyncConnection[Any], settings: Settings) -> Contents:
    """Count what there is; changes nothing."""
    queues = await _fetch(conn, settings, _QUEUES)
    counted = {row[0]: row[1:] for row in await _fetch(conn, settings, _COMMANDS)}
    names = counted.keys() | {queue.partition(".")[0] for queue, _, is_ours in queues if is_ours}
    return Contents(
        tuple(DomainContents(name, *counted.get(name, (0, 0, 0))) for name in sorted(names)),
        tuple(physical for _, physical, is_ours in queues if is_ours),
        tuple(physical for _, physical, is_ours in queues if not is_ours),
    )


async def remove_installation(
    conn: psycopg.AsyncConnection[Any],
    settings: Settings,
    domains: Collection[str],
    *,
    even_open: bool = False,
) -> Contents:
    """Drop the queues, their archives and the schema in one transaction; returns what went.

    `domains` must name all domains that there are. Refused while a command is open or parked,
    unless `even_open`, and while anything of others depends on the schema.
    """
    try:
        async with conn.transaction():
            await become_owner(conn, settings)
            await conn.execute(
                "select set_config('lock_timeout', %s, true)", [f"{LOCK_SECONDS * 1000}"]
            )
            # No migration in between; then nobody who sends, receives or completes.
            await conn.execute("select pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            await _execute(conn, settings, "lock table {schema}.command_bus_command")
            found = await look_at_contents(conn, settings)
            _refuse_other_names(found, domains)
            if not even_open:
                _refuse_open(found.domains)
            await _refuse_what_is_not_ours(conn, settings)
            for physical in found.queues:
                await conn.execute("select pgmq.drop_queue(%s)", [physical])
            await _execute(conn, settings, "drop schema {schema} cascade")
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise InvalidOperationError(
            f"others use the tables, and did not let go within {LOCK_SECONDS} seconds; nothing was "
            "removed: stop senders, workers and services first"
        ) from error
    return found


def _refuse_other_names(found: Contents, typed: Collection[str]) -> None:
    known = {each.domain for each in found.domains} or {NO_DOMAINS}
    if missing := sorted(known - set(typed)):
        shown = ", ".join(missing[:FEW]) + (" …" if len(missing) > FEW else "")
        raise InvalidInputError(
            f"not all domains were named, and all go: {shown}; nothing was removed. "
            f"Type --yes-delete {found.confirmation}"
        )
    if unknown := sorted(set(typed) - known):
        raise InvalidInputError(
            f"there is no domain {unknown[0]!r} here; nothing was removed. Is this the right "
            f"database? It has {found.confirmation}"
        )


def _refuse_open(domains: Sequence[DomainContents]) -> None:
    waiting = [each for each in domains if each.open or each.parked]
    if waiting:
        shown = ", ".join(
            f"{each.domain} ({each.open:,} open, {each.parked:,} parked)" for each in waiting[:FEW]
        )
        more = " …" if len(waiting) > FEW else ""
        raise InvalidOperationError(
            f"commands would never run: {shown}{more}; nothing was removed. Let workers finish "
            "them, cancel them, or say --even-open"
        )


async def _refuse_what_is_not_ours(conn: psycopg.AsyncConnection[Any], settings: Settings) -> None:
    name = settings.schema
    if found := await _names(conn, settings, _STRANGERS):
        raise InvalidOperationError(
            f"the schema {name!r} also has tables that are not ours: {found}; nothing was removed. "
            "Move them (alter table … set schema public), or drop them"
        )
    if found := await _names(conn, settings, _DEPENDENTS):
        raise InvalidOperationError(
            f"this depends on the schema {name!r} and would go with it: {found}; nothing was "
            "removed. Drop it first, if you can do without it"
        )


async def _names(
    conn: psycopg.AsyncConnection[Any], settings: Settings, query: LiteralString
) -> str:
    schema = sql.Identifier(settings.schema).as_string()
    cursor = await conn.execute(query, {"schema": schema})
    found = [str(row[0]) for row in await cursor.fetchall()]
    return ", ".join(found[:FEW]) + (" …" if len(found) > FEW else "")


async def _execute(
    conn: psycopg.AsyncConnection[Any], settings: Settings, query: LiteralString
) -> None:
    await conn.execute(sql.SQL(query).format(schema=sql.Identifier(settings.schema)))


async def _fetch(
    conn: psycopg.AsyncConnection[Any], settings: Settings, query: LiteralString
) -> list[Row]:
    return await fetch(conn, sql.SQL(query).format(schema=sql.Identifier(settings.schema)))

"""The verbs of the doctor and of retention on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg

from commandbus.database.connections import AsyncPool, Row, Statement, run
from commandbus.database.migrations import function_bodies, schema_status
from commandbus.database.pgmq.install import REQUIRED_FUNCTIONS
from commandbus.database.sqlstate import translated
from commandbus.settings import Settings
from commandbus.store.upkeep import Examination, PruneStep, RetentionRule, Symptom

#: Above so many commands (an estimate) only what was touched lately is looked at by default.
FULL_LIMIT = 1_000_000
RECENT = timedelta(days=1)
#: A clock that is off by more makes leases and delays look wrong in logs.
CLOCK_TOLERANCE = timedelta(seconds=5)
EXAMPLES = 5

CHECKS: tuple[LiteralString, ...] = (
    "check_messages", "check_commands", "check_troubleshooting", "check_batches", "check_audit",
    "check_replies", "check_work", "check_server",
)  # fmt: skip
REPAIRS: tuple[LiteralString, ...] = (
    "repair_queues", "repair_messages", "repair_lost_messages", "repair_troubleshooting",
    "repair_groups", "repair_batches", "repair_workers",
)  # fmt: skip
PRUNERS: tuple[LiteralString, ...] = (
    "prune_audit", "prune_archives", "prune_replies", "prune_commands", "prune_batches",
)  # fmt: skip

_CHECK: LiteralString = (
    "select f.code, f.domain, count(*), (array_agg(f.subject order by f.subject))[1:5]"
    " from {schema}.%(name)s(cast(%%s as text), cast(%%s as timestamptz)) f"
    " group by 1, 2 order by 1, 2"
)
_FACTS: LiteralString = (
    "select clock_timestamp(), current_setting('server_version'), current_database(), current_user,"
    " pg_database_size(current_database()), greatest(c.reltuples, 0)::bigint,"
    " has_function_privilege('pg_ls_waldir()', 'execute'), pg_is_in_recovery()"
    " from pg_class c where c.oid = cast('{schema}.command_bus_command' as regclass)"
)
_WAL: LiteralString = "select sum(size) from pg_ls_waldir()"
_LARGEST: LiteralString = (
    "select cast(t.relid as regclass)::text, pg_total_relation_size(t.relid), t.n_dead_tup"
    " from pg_stat_all_tables t where t.schemaname in ('pgmq', %s)"
    " order by 2 desc limit 5"
)
_FUNCTIONS: LiteralString = (
    "select p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
    " where n.nspname = %s"
)


class PostgresDoctor(ABC):
    """Implements commandbus.store.upkeep.UpkeepStore."""

    _pool: AsyncPool
    _settings: Settings

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    # -- the doctor

    async def examine(
        self, domain: str | None, *, window: timedelta | None, is_full: bool
    ) -> Examination:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                await conn.execute("set transaction isolation level repeatable read, read only")
                await conn.execute("set local jit = off")
                asked_at = datetime.now(UTC)
                row = (await self._ask(conn, _FACTS, ()))[0]
                facts = await self._facts(conn, row)
                symptoms = list(_clock(asked_at, datetime.now(UTC), row[0]))
                if window is None and not is_full and row[5] > FULL_LIMIT:
                    window = RECENT
                since = None if window is None else row[0] - window
                symptoms += await self._schema(conn)
                for name in CHECKS:
                    symptoms += await self._check(conn, name, domain, since)
        unknown = ["free disk space: PostgreSQL does not tell; look at the server itself"]
        if facts["wal_bytes"] is None:
            unknown.append("size of the WAL: this role may not ask (pg_monitor may)")
        return Examination(tuple(symptoms), since, facts, tuple(unknown))

    async def _ask(
        self, conn: psycopg.AsyncConnection[Any], text: LiteralString, params: Row
    ) -> list[Row]:
        return await run(conn, Statement(text, self._settings.schema), params)

    async def _check(
        self,
        conn: psycopg.AsyncConnection[Any],
        name: LiteralString,
        domain: str | None,
        since: datetime | None,
    ) -> list[Symptom]:
        text: LiteralString = _CHECK.replace("%(name)s", name).replace("%%", "%")
        try:
            async with conn.transaction():  # one check that cannot run must not hide the others
                rows = await self._ask(conn, text, (domain, since))
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            return [Symptom("CHECK_FAILED", None, 1, (f"{name}: SQLSTATE {error.sqlstate}",))]
        return [Symptom(code, where, n, tuple(ids)) for code, where, n, ids in rows]

    async def _facts(self, conn: psycopg.AsyncConnection[Any], row: Row) -> dict[str, Any]:
        largest = await self._ask(conn, _LARGEST, (self._settings.schema,))
        wal = None
        if row[6]:
            wal = int((await self._ask(conn, _WAL, ()))[0][0])
        return {
            "server_version": row[1], "database": row[2], "role": row[3],
            "database_bytes": row[4], "commands_estimated": row[5], "wal_bytes": wal,
            "is_standby": row[7],
            "largest_tables": [
                {"table": name, "bytes": size, "dead_rows": dead} for name, size, dead in largest
            ],
        }  # fmt: skip

    async def _schema(self, conn: psycopg.AsyncConnection[Any]) -> list[Symptom]:
        symptoms = []
        status = await schema_status(conn, self._settings)
        if status.pending:
            symptoms.append(Symptom("SCHEMA_OLD", None, len(status.pending), status.pending))
        lacking = [
            signature
            for signature in REQUIRED_FUNCTIONS
            if (await self._ask(conn, "select to_regprocedure(%s) is null", (signature,)))[0][0]
        ]
        if lacking:
            symptoms.append(Symptom("PGMQ_LACKS", None, len(lacking), tuple(lacking[:EXAMPLES])))
        if (status.installed_version or 0) <= status.package_version:
            rows = await self._ask(conn, _FUNCTIONS, (self._settings.schema,))
            there = {name: _plain(body) for name, body in rows}
            ours = function_bodies(self._settings.schema)
            changed = sorted(n for n, body in ours.items() if there.get(n) != _plain(body))
            if changed:
                symptoms.append(
                    Symptom("FUNCTION_CHANGED", None, len(changed), tuple(changed[:EXAMPLES]))
                )
        return symptoms

    async def repair(self, verb: str, domain: str, *, actor: str | None, limit: int) -> list[str]:
        name = next(known for known in REPAIRS if known == verb)
        text: LiteralString = "select * from {schema}." + name + "(%s, %s, %s)"  # noqa: S608  (literals only)
        with translated(domain):
            async with self._pool.connection() as conn:
                return [row[0] for row in await self._ask(conn, text, (domain, actor, limit))]

    async def domains(self, domain: str | None) -> list[str]:
        return [row[0] for row in await self._call("doctor_domains", (domain,))]

    # -- retention

    async def list_retention(self) -> list[RetentionRule]:
        rows = await self._call("list_retention", ())
        return [RetentionRule(None if row[0] == "*" else row[0], *row[1:]) for row in rows]

    async def set_retention(
        self, domain: str | None, kind: str, keep: timedelta | None, *, actor: str | None
    ) -> None:
        await self._call("set_retention", (domain, kind, keep, actor), domain=domain or "")

    async def clear_retention(self, domain: str | None, kind: str) -> bool:
        return bool((await self._call("clear_retention", (domain, kind)))[0][0])

    async def retention_due(self, domain: str | None) -> list[tuple[str, str, datetime]]:
        rows = await self._call("retention_due", (domain,))
        return [(name, kind, before) for name, kind, before in rows]

    async def now(self) -> datetime:
        with translated():
            async with self._pool.connection() as conn:
                found: datetime = (await self._ask(conn, "select clock_timestamp()", ()))[0][0]
                return found

    async def count_prunable(self, domain: str, kind: str, before: datetime) -> dict[str, int]:
        rows = await self._call("count_prunable", (domain, kind, before), domain=domain)
        return {what: int(n) for what, n in rows}

    async def prune(
        self,
        verb: str,
        domain: str,
        before: datetime,
        *,
        limit: int,
        after: str | None,
        actor: str | None,
    ) -> PruneStep:
        name = next(known for known in PRUNERS if known == verb)
        text: LiteralString = (
            "select o_pruned, o_after, o_is_done"  # noqa: S608  (literals only)
            " from {schema}." + name + "(%s, %s, %s, %s, %s)"
        )
        with translated(domain):
            async with self._pool.connection() as conn:
                rows = await self._ask(conn, text, (domain, before, limit, after, actor))
        return PruneStep(*rows[0])


def _clock(before: datetime, after: datetime, server: datetime) -> list[Symptom]:
    # The server answered at some time in between; only what lies outside is a difference.
    off = max(before - server, server - after)
    if off <= CLOCK_TOLERANCE:
        return []
    return [Symptom("CLOCK_DIFFERENCE", None, 1, (f"{off.total_seconds():.0f} s",))]


def _plain(body: str) -> str:
    return re.sub(r"\s+", " ", body)

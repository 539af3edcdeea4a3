"""The doctor: is everything in the database as it must be, and if not, what now?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from commandbus.database.store import Store
from commandbus.errors import InvalidSettingError
from commandbus.names import check_names, check_operator
from commandbus.upkeep.checks import record_check
from commandbus.upkeep.findings import FINDINGS, Diagnosis, Finding, Repair, finding_of, worst_first
from commandbus.upkeep.retention import LONGEST_AGE
from commandbus.upkeep.seal_reading import HOLD_PARTS
from commandbus.upkeep.seals import SealKeys

if TYPE_CHECKING:
    from commandbus.database.gateway import Session

#: Places that one transaction of a repair changes at most.
REPAIR_LIMIT = 1_000
#: With more commands than this (an estimate) only what was changed lately is looked at.
FULL_LIMIT = 1_000_000
RECENT = timedelta(days=1)
#: A clock that is off by more makes the times in logs misleading.
CLOCK_TOLERANCE = timedelta(seconds=5)

_CHECK_NAMES: tuple[LiteralString, ...] = (
    "check_messages", "check_commands", "check_troubleshooting", "check_batches", "check_audit",
    "check_replies", "check_reply_queues", "check_work", "check_server",
    "check_roles", "check_seals", "check_schedules", "check_gates", "check_keys",
)  # fmt: skip
#: The statement of each check, by the name of its SQL function.
CHECKS: dict[str, LiteralString] = {
    name: "select f.code, f.domain, count(*), (array_agg(f.subject order by f.subject))[1:5]"  # noqa: S608  (literals only)
    " from {schema}." + name + "(cast(%s as text), cast(%s as timestamptz)) f"
    " group by 1, 2 order by 1, 2"
    for name in _CHECK_NAMES
}
_SERVER: LiteralString = (
    "select clock_timestamp(), current_setting('server_version'), current_database(), current_user,"
    " pg_database_size(current_database()), cast(greatest(c.reltuples, 0) as bigint),"
    " has_function_privilege('pg_ls_waldir()', 'execute'), pg_is_in_recovery(),"
    " pg_is_in_recovery() or current_setting('default_transaction_read_only') = 'on'"
    " from pg_class c where c.oid = cast('{schema}.command_bus_command' as regclass)"
)
_LAST_KEY: LiteralString = (
    "select s.key_id from {schema}.command_bus_audit_seal s order by s.seal_number desc limit 1"
)
_WAL_BYTES: LiteralString = "select cast(sum(size) as bigint) from pg_ls_waldir()"
#: A table in parts is shown as one: by itself it has no size.
_LARGEST_TABLES: LiteralString = (
    "select cast(coalesce(pg_partition_root(t.relid), t.relid) as regclass)::text,"
    " cast(sum(pg_total_relation_size(t.relid)) as bigint), cast(sum(t.n_dead_tup) as bigint)"
    " from pg_stat_all_tables t where t.schemaname in ('pgmq', %s) group by 1"
    " order by 2 desc nulls last limit 5"
)


#: A check by an idea that stands above this one, and knows more than the database.
FurtherCheck = Callable[["Session"], Awaitable[list[Finding]]]


class _Server(NamedTuple):
    now: datetime
    version: str
    database: str
    role: str
    bytes: int
    commands: int
    may_read_wal: bool
    is_standby: bool
    only_reads: bool


class Doctor:
    """Examines a database, and repairs what can be repaired safely."""

    def __init__(self, store: Store, further: FurtherCheck | None = None) -> None:
        self._store = store
        self._further = further

    async def doctor(
        self,
        *,
        domain: str | None = None,
        window: timedelta | None = None,
        full: bool = False,
        fix: bool = False,
        operator: str | None = None,
    ) -> Diagnosis:
        """Examine the database in one read-only snapshot; with `fix`, repair and examine it again.

        With more than a million commands only what was changed in the last day is looked at: give a
        `window`, or `full` for everything. After a repair the findings are what is left. The result
        is kept for `runs.last`, if the role may write it.
        """
        began = datetime.now(UTC)
        found = await self._diagnose(
            domain=domain, window=window, full=full, fix=fix, operator=operator
        )
        await record_check(
            self._store, "doctor", began, found, domain=domain, actor=operator, is_fix=fix
        )
        return found

    async def _diagnose(
        self,
        *,
        domain: str | None = None,
        window: timedelta | None = None,
        full: bool = False,
        fix: bool = False,
        operator: str | None = None,
    ) -> Diagnosis:
        """The same, without keeping the result."""
        check_names(domain)
        if window is not None and (full or window <= timedelta(0)):
            raise InvalidSettingError(
                "`window` must be a positive time, and contradicts `full`; give one of them"
            )
        actor = check_operator(operator)
        found = await self._examine(domain, window, is_full=full)
        if not fix:
            return found
        repairs = await self._repair(found, actor)
        left = await self._examine(domain, window, is_full=full)
        return replace(left, repairs=repairs)

    async def _examine(
        self, domain: str | None, window: timedelta | None, *, is_full: bool
    ) -> Diagnosis:
        async with self._store.gateway.patient.snapshot() as session:
            await session.try_rows(HOLD_PARTS, ())
            await session.rows("set local jit = off")  # compiling would take longer than the checks
            asked_at = datetime.now(UTC)
            server = _Server(*(await session.rows(_SERVER))[0])
            findings = _clock_findings(asked_at, datetime.now(UTC), server.now)
            if server.only_reads:
                findings.append(finding_of("SERVER_ONLY_READS", None, 1, [server.database]))
            if window is None and not is_full and server.commands > FULL_LIMIT:
                window = RECENT
            since = None if window is None else server.now - min(window, LONGEST_AGE)
            facts = await _facts(session, server)
            findings += await _schema_findings(session)
            findings += await _key_findings(session)
            for name, statement in CHECKS.items():
                # One check that cannot run must not hide the others.
                rows, state = await session.try_rows(statement, (domain, since))
                findings += [finding_of(*row) for row in rows]
                if state is not None:
                    findings.append(
                        finding_of("CHECK_FAILED", None, 1, [f"{name}: SQLSTATE {state}"])
                    )
            if self._further is not None and domain is None:
                findings += await self._further(session)
        unknown = ["free disk space: PostgreSQL does not tell; look at the server itself"]
        if not server.may_read_wal:
            unknown.append("size of the WAL: this role may not read it (pg_monitor may)")
        return Diagnosis(worst_first(findings), since, facts, tuple(unknown))

    async def _repair(self, found: Diagnosis, actor: str | None) -> tuple[Repair, ...]:
        # In the order of FINDINGS, without repeating a function.
        order = dict.fromkeys(known.repair for known in FINDINGS.values() if known.repair)
        due = {
            (FINDINGS[finding.code].repair, finding.domain)
            for finding in found.findings
            if finding.can_fix and finding.domain is not None
        }
        # A queue that is created again is empty: its messages have to be sent again.
        due |= {("repair_lost_messages", where) for name, where in due if name == "repair_queues"}
        repairs = []
        for function in order:
            for domain in sorted(where for name, where in due if name == function):
                repaired = await self._run_repair(function, domain, actor)
                if repaired:
                    repairs.append(Repair(domain, function, repaired))
        return tuple(repairs)

    async def _run_repair(
        self, function: LiteralString, domain: str, actor: str | None
    ) -> tuple[str, ...]:
        statement: LiteralString = "select * from {schema}." + function + "(%s, %s, %s)"  # noqa: S608  (literals only)
        params = (domain, actor, REPAIR_LIMIT)
        repaired: dict[str, None] = {}
        while True:
            rows = await self._store.gateway.patient.rows(statement, params, domain=domain)
            now = dict.fromkeys(row[0] for row in rows)
            # It comes to an end: each round repairs something that was not repaired before.
            if now.keys() <= repaired.keys():
                return tuple(repaired)
            repaired |= now


async def _facts(session: Session, server: _Server) -> dict[str, Any]:
    tables = await session.rows(_LARGEST_TABLES, (session.gateway.settings.schema,))
    return {
        "server_version": server.version, "database": server.database, "role": server.role,
        "database_bytes": server.bytes, "commands_estimated": server.commands,
        "wal_bytes": await session.value(_WAL_BYTES) if server.may_read_wal else None,
        "is_standby": server.is_standby,
        "largest_tables": [
            {"table": name, "bytes": size, "dead_rows": dead} for name, size, dead in tables
        ],
    }  # fmt: skip


async def _schema_findings(session: Session) -> list[Finding]:
    found = await session.inspect_schema()
    by_code = {
        "SCHEMA_OLD": found.pending,
        "PGMQ_LACKS": found.lacking,
        "FUNCTION_CHANGED": found.changed,
    }
    return [finding_of(code, None, len(names), names) for code, names in by_code.items() if names]


async def _key_findings(session: Session) -> list[Finding]:
    rows, _ = await session.try_rows(_LAST_KEY)
    if not rows:
        return []
    keys = SealKeys(session.gateway.settings.keys_folder)
    try:
        key = keys.find()
    except InvalidSettingError:  # a worker that needs it says why it cannot be read
        return []
    if key is None or keys.id_of(key) == rows[0][0]:
        return []
    example = f"the last seal is of {rows[0][0]}, {keys.place} has {keys.id_of(key)}"
    return [finding_of("SEAL_KEY_OTHER", None, 1, [example])]


def _clock_findings(before: datetime, after: datetime, server: datetime) -> list[Finding]:
    # The server read its clock at some time in between; only what lies outside is a difference.
    off = max(before - server, server - after)
    if off <= CLOCK_TOLERANCE:
        return []
    return [finding_of("CLOCK_DIFFERENCE", None, 1, [f"{off.total_seconds():.0f} s"])]

"""How the doctor reads seals, removals and rows, in statements of its own.

The owner of the database can replace our functions, and put others in front of PostgreSQL's own
by a search path. So these call only what is in pg_catalog, with nothing else on the path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, LiteralString, NamedTuple

from commandbus.upkeep.sealing import REMOVAL_COLUMNS
from commandbus.upkeep.seals import Removal, Seal

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway, Session

#: Seals that are read at once.
PAGE = 1_000

#: Before the snapshot is taken: a part that was dropped since would be gone, its record unseen.
HOLD_PARTS: LiteralString = "lock table {schema}.command_bus_audit in access share mode"
_ONLY_CATALOG: LiteralString = "set local search_path = pg_catalog, pg_temp"
_HEADERS: LiteralString = (
    "select s.seal_number, s.first_id, s.last_id, s.row_count,"
    " cast(extract(epoch from s.oldest_ts) as text), s.entries_digest, s.removals, s.previous,"
    " cast(extract(epoch from s.sealed_at) as text), s.key_id, s.digest, s.signature"
    " from {schema}.command_bus_audit_seal s where s.seal_number > %s"
    " order by s.seal_number limit %s"
)
_SIGNED: LiteralString = (
    "select " + REMOVAL_COLUMNS + " from {schema}.command_bus_audit_removal r"  # noqa: S608  (literals only)
    " where r.sealed_by between %s and %s order by r.removal_number"
)
_OTHER_REMOVALS: LiteralString = (
    "select " + REMOVAL_COLUMNS + " from {schema}.command_bus_audit_removal r"  # noqa: S608  (literals only)
    " where r.sealed_by is null or r.sealed_by > %s order by r.removal_number"
)
_OVERLAPPING: LiteralString = (
    "select " + REMOVAL_COLUMNS + " from {schema}.command_bus_audit_removal r"  # noqa: S608  (literals only)
    " where r.ids && int8range(%s, %s, '[]') order by r.removal_number"
)
#: The same expression as in the SQL function audit_row_digest, whose comment explains it.
_ENTRIES: LiteralString = (
    "string_agg(int4send(cast(a.audit_id - %s as int)) || substr(sha256(int8send(a.audit_id)"
    " || coalesce(cast('\\x01' as bytea) || timestamptz_send(a.ts), cast('\\x00' as bytea))"
    " || coalesce(cast('\\x01' as bytea) || uuid_send(a.command_id), cast('\\x00' as bytea))"
    " || coalesce(cast('\\x01' as bytea) || uuid_send(a.batch_id), cast('\\x00' as bytea))"
    " || convert_to(coalesce(length(a.domain) || ':' || a.domain, '-')"
    " || coalesce(length(a.event_type) || ':' || a.event_type, '-')"
    " || coalesce(length(a.actor) || ':' || a.actor, '-')"
    " || coalesce('+' || cast(a.details_json as text), '-'), 'UTF8')), 1, 16),"
    " cast('' as bytea) order by a.audit_id)"
)
_OF_RANGE: LiteralString = (
    " from {schema}.command_bus_audit a where a.audit_id between cast(%s as bigint)"
    " and cast(%s as bigint)"
)
_DIGEST_NOW: LiteralString = (
    "select sha256(coalesce(" + _ENTRIES + ", cast('' as bytea)))" + _OF_RANGE
)
_ENTRIES_NOW: LiteralString = "select coalesce(" + _ENTRIES + ", cast('' as bytea))" + _OF_RANGE
_ENTRIES_SEALED: LiteralString = (
    "select s.entries from {schema}.command_bus_audit_seal s where s.seal_number = %s"
)
_OUTSIDE: LiteralString = (
    "select a.audit_id from {schema}.command_bus_audit a where a.audit_id < %s"
    " order by a.audit_id limit 1000"
)
_UNSEALED: LiteralString = (
    "select count(*), min(a.audit_id) from {schema}.command_bus_audit a where a.audit_id > %s"
)
#: Whether the tables are tables, and whether their triggers are there; parts of the audit too.
_TABLES: LiteralString = (
    "select c.relname, case when c.relkind not in ('r', 'p') then 'it is not a table'"
    " when c.relhasrules then 'it has rules, which can hide rows'"
    " when c.relrowsecurity then 'it has row security, which can hide rows'"
    " when not exists (select from pg_trigger g where g.tgrelid = c.oid"
    " and g.tgname = coalesce(cast(t.name as text), cast(c.relname as text)) || '_append_only'"
    " and g.tgenabled in ('O', 'A'))"
    " then 'its trigger is missing or disabled' end"
    " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " left join lateral (select 'command_bus_audit' from pg_inherits i join pg_class p"
    " on p.oid = i.inhparent where i.inhrelid = c.oid and p.relname = 'command_bus_audit'"
    " and p.relnamespace = n.oid) t(name) on true"
    " where n.nspname = %s and (t.name is not null or c.relname in ('command_bus_audit',"
    " 'command_bus_audit_seal', 'command_bus_audit_removal'))"
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SignedSeal(NamedTuple):
    """A seal as the database has it, with the digest and the signature that it should have."""

    seal: Seal
    digest: bytes
    signature: bytes


class SealReader:
    """Reads in one snapshot: what a removal took away is recorded in it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def seals(self, after: int) -> list[SignedSeal]:
        """The next seals after this number, without the entries of their rows."""
        rows = await self._session.rows(_HEADERS, (after, PAGE))
        return [SignedSeal(_seal_of(*row[:10]), row[10], row[11]) for row in rows]

    async def signed_removals(self, first: int, last: int) -> list[Removal]:
        """Those that say that one of these seals signed them."""
        return await self._session.rows(_SIGNED, (first, last), into=Removal)

    async def other_removals(self, last: int) -> list[Removal]:
        """Those that no seal up to this one has signed."""
        return await self._session.rows(_OTHER_REMOVALS, (last,), into=Removal)

    async def removals_in(self, first_id: int, last_id: int) -> list[Removal]:
        """Those that took events out of this range."""
        return await self._session.rows(_OVERLAPPING, (first_id, last_id), into=Removal)

    async def digest_now(self, seal: Seal) -> bytes:
        """The digest of the entries that the rows of its range would have now."""
        params = (seal.first_id, seal.first_id, seal.last_id)
        return bytes(await self._session.value(_DIGEST_NOW, params))

    async def entries_now(self, seal: Seal) -> bytes:
        """The entries that the rows of its range would have now."""
        params = (seal.first_id, seal.first_id, seal.last_id)
        return bytes(await self._session.value(_ENTRIES_NOW, params))

    async def entries_sealed(self, seal: Seal) -> bytes:
        """The entries that were sealed."""
        return bytes(await self._session.value(_ENTRIES_SEALED, (seal.seal_number,)) or b"")

    async def ids_before(self, first_id: int) -> list[int]:
        """Events below everything that was sealed."""
        return [row[0] for row in await self._session.rows(_OUTSIDE, (first_id,))]

    async def unsealed(self, last_id: int) -> int:
        """How many events are not sealed yet."""
        return int(await self._session.value(_UNSEALED, (last_id,)))

    async def table_faults(self) -> list[tuple[str, str]]:
        """Tables that are not as they must be, and why."""
        rows = await self._session.rows(_TABLES, (self._session.gateway.settings.schema,))
        return [(name, why) for name, why in rows if why is not None]


@asynccontextmanager
async def reading(gateway: Gateway) -> AsyncIterator[SealReader]:
    """A reader, with one snapshot for everything that it reads."""
    async with gateway.snapshot() as session:
        await session.rows(_ONLY_CATALOG)
        await session.rows(HOLD_PARTS)
        await session.rows("set local jit = off")
        yield SealReader(session)


def moment_of(text: str) -> datetime | None:
    """A time from its seconds, exactly; None: no program could have sealed at such a time."""
    whole, _, fraction = text.partition(".")
    try:
        return _EPOCH + timedelta(seconds=int(whole), microseconds=int(fraction or 0))
    except (ValueError, OverflowError):
        return None


def _seal_of(*row: object) -> Seal:
    number, first, last, count, oldest, entries, removals, previous, sealed_at, key_id = row
    values = (number, first, last, count, oldest and moment_of(str(oldest)), entries, removals)
    return Seal(*values, previous, moment_of(str(sealed_at)) or _EPOCH, key_id)  # type: ignore[arg-type]

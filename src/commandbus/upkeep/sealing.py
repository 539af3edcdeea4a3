"""Sealing: close what was written to the audit, so that a later change of it shows."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, LiteralString, NamedTuple

from commandbus.database.store import Store
from commandbus.errors import InvalidOperationError, InvalidSettingError
from commandbus.keys import Key
from commandbus.upkeep.heads import Head, HeadFile
from commandbus.upkeep.seals import Removal, Seal, SealKeys, pack_removals

if TYPE_CHECKING:
    from commandbus.database.gateway import Session

#: Rows of one seal, which is one transaction.
CHUNK = 10_000
#: Removals that one seal signs.
REMOVALS_LIMIT = 10_000
#: Seconds to wait for transactions that may still add an event.
WAIT_SECONDS = 3.0

_MOVE_HORIZON: LiteralString = (
    "select o_safe_to, o_waits_for, o_noted_at from {schema}.move_audit_horizon()"
)
_DRAFT: LiteralString = (
    "select seal_number, first_id, last_id, row_count, oldest_ts, entries, previous, previous_key"
    " from {schema}.draft_seal(%s)"
)
#: Times as text: the owner of the database can write ones that no program can read.
REMOVAL_COLUMNS: LiteralString = (
    "r.removal_number, r.domain, cast(r.ids as text), r.row_count, r.sealed_to, r.rows_digest,"
    " cast(extract(epoch from r.before) as text), r.keep_seconds, r.actor,"
    " cast(extract(epoch from r.removed_at) as text), r.sealed_by"
)
_UNSIGNED: LiteralString = (
    "select " + REMOVAL_COLUMNS + " from {schema}.command_bus_audit_removal r"  # noqa: S608  (literals only)
    " where r.sealed_by is null order by r.removal_number limit %s"
)
_ADD: LiteralString = (
    "select {schema}.add_seal(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_LAST: LiteralString = (
    "select s.seal_number, s.last_id, encode(s.digest, 'hex'), encode(s.signature, 'hex'),"
    " s.key_id, to_char(s.sealed_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    " from {schema}.command_bus_audit_seal s"
)
_LAST_HEAD: LiteralString = _LAST + " order by s.seal_number desc limit %s"
_ONE_HEAD: LiteralString = _LAST + " where s.seal_number = %s"
#: Which database it is: the same after a restart or at another address, another one if it was
#: dropped and made again, or copied to another server.
_DATABASE: LiteralString = (
    "select d.oid || ' ' || d.datname || ' ' || case when has_function_privilege("
    "'pg_control_system()', 'execute') then (select cast(c.system_identifier as text)"
    " from pg_control_system() c) else '' end"
    " from pg_database d where d.datname = current_database()"
)


@dataclass(frozen=True, slots=True)
class SealResult:
    """What one run sealed."""

    seals: int = 0
    rows: int = 0
    removals: int = 0
    #: The last id that is sealed now; None: none is.
    sealed_to: int | None = None
    key_id: str | None = None
    #: False: the time was over, and the next run continues.
    is_done: bool = True
    #: Open transactions that may still add events, so that later ones cannot be sealed yet.
    waits_for: tuple[str, ...] = ()
    waits_since: datetime | None = None


class _Draft(NamedTuple):
    seal_number: int
    first_id: int
    last_id: int
    row_count: int
    oldest_ts: datetime | None
    entries: bytes
    previous: bytes
    previous_key: str | None


class Sealing:
    """Seals the audit, and keeps its head outside the database."""

    _seal_keys: SealKeys | None = None

    def __init__(self, store: Store) -> None:
        self._store = store

    async def seal_audit(
        self,
        *,
        new_key: bool = False,
        seconds: float | None = None,
        progress: Callable[[SealResult], None] | None = None,
    ) -> SealResult:
        """Seal all events that no open transaction can still add to, in steps.

        With `seconds` it stops after the step in which that time is over. With `new_key` the chain
        goes on with another key than that of the last seal; without, a process that has another key
        refuses. A key is made if the audit was never sealed and none is configured.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        last = await self._last_head()
        file = await self._head_file()
        await self._refuse_cut(file, last)
        key = await asyncio.to_thread(self._key, None if last is None else last.key_id, new_key)
        result = await self._wait(SealResult(key_id=self._keys.id_of(key)))
        while True:
            made = await self._seal_next(key, last, new_key=new_key)
            if made is None:
                break
            seal, signed = made
            last = seal.head(key)
            result = replace(
                result,
                seals=result.seals + 1,
                rows=result.rows + seal.row_count,
                removals=result.removals + signed,
                sealed_to=seal.last_id,
            )
            new_key = False
            if progress is not None:
                progress(result)
            if deadline is not None and time.monotonic() >= deadline:
                result = replace(result, is_done=False)
                break
        last = await self._last_head()
        if last is not None:
            await asyncio.to_thread(_keep, file, last)
            result = replace(result, sealed_to=last.last_id)
        return result

    async def get_seal_heads(self, *, limit: int = 1) -> list[Head]:
        """The last seals, the newest first, to be kept outside the database."""
        return await self._store.gateway.rows(_LAST_HEAD, (limit,), into=Head)

    @property
    def _keys(self) -> SealKeys:
        if self._seal_keys is None:
            settings = self._store.gateway.settings
            self._seal_keys = SealKeys(settings.keys_folder)
        return self._seal_keys

    def _key(self, last_id: str | None, new_key: bool) -> Key:
        if new_key:
            return self._keys.replace(last_id)
        # A key that is made here would be another one than that of the seals.
        key = self._keys.find(allow_create=last_id is None)
        if key is None:
            raise InvalidOperationError(
                f"the audit is sealed with the key {last_id}, which is not at {self._keys.place}; "
                "give this process the same key, or leave the sealing to the one that has it. If "
                "the key is lost, `commandbus seals now --new-key` goes on with a new one"
            )
        self._refuse_other(key, last_id)
        return key

    def _refuse_other(self, key: Key, last_id: str | None) -> None:
        if last_id is not None and self._keys.id_of(key) != last_id:
            raise InvalidOperationError(
                f"the audit is sealed with the key {last_id}, and {self._keys.place} has the key "
                f"{self._keys.id_of(key)}; give all processes the same key, or change it for good "
                "with `commandbus seals now --new-key`"
            )

    async def _wait(self, result: SealResult) -> SealResult:
        """Move the horizon; waits a little for transactions that may still add events."""
        until, first = time.monotonic() + WAIT_SECONDS, None
        while True:
            ((_, waits_for, noted_at),) = await self._store.gateway.patient.rows(_MOVE_HORIZON)
            first = first or noted_at
            # Another candidate: all that was written before this run began can be sealed.
            if not waits_for or noted_at != first or time.monotonic() >= until:
                return replace(
                    result,
                    waits_for=tuple(waits_for) if noted_at == first else (),
                    waits_since=noted_at if waits_for and noted_at == first else None,
                )
            await asyncio.sleep(0.1)

    async def _seal_next(
        self, key: Key, last: Head | None = None, *, new_key: bool
    ) -> tuple[Seal, int] | None:
        """One seal, in one transaction; None: there is nothing to seal."""
        async with self._store.gateway.patient.transaction() as session:
            drafted = await session.row(_DRAFT, (CHUNK,), into=_Draft)
            if drafted is None:
                return None
            _refuse_repeated(drafted, last)
            if not new_key:  # asked again under the lock: another process may have been quicker
                self._refuse_other(key, drafted.previous_key)
            removals = await session.rows(_UNSIGNED, (REMOVALS_LIMIT,), into=Removal)
            seal = Seal(
                *drafted[:5],
                hashlib.sha256(drafted.entries).digest(),
                pack_removals(removals),
                drafted.previous,
                datetime.now(UTC),
                self._keys.id_of(key),
            )
            await _add(session, seal, drafted.entries, removals, key)
            return seal, len(removals)

    async def _last_head(self) -> Head | None:
        return await self._store.gateway.row(_LAST_HEAD, (1,), into=Head)

    async def _head_file(self) -> HeadFile | None:
        database = await self._store.gateway.value(_DATABASE)
        try:
            schema = self._store.gateway.settings.schema
            return HeadFile(self._keys.folder, f"{database} {schema}")
        except InvalidSettingError:  # no folder: nothing can be kept
            return None

    async def _refuse_cut(self, file: HeadFile | None, last: Head | None) -> None:
        """Refuse to go on with a chain that lacks a seal which this machine has seen."""
        known = None if file is None else await asyncio.to_thread(file.read)
        if known is None or file is None or (last is not None and known.digest == last.digest):
            return
        found = await self._store.gateway.row(_ONE_HEAD, (known.seal_number,), into=Head)
        if found is None or found.digest != known.digest:
            raise InvalidOperationError(
                f"seal {known.seal_number} of {known.sealed_at} is not in the database any more, "
                "or it is another one: seals were removed or replaced. Look with `commandbus "
                f"doctor --audit`. If the database was restored from a backup, remove {file.path}"
            )


def _refuse_repeated(drafted: _Draft, last: Head | None) -> None:
    """Sign nothing in the place of a seal that is known: the functions that draft belong to the
    owner of the database, who could have the whole chain signed once more over changed rows.
    """
    if last is None or drafted.seal_number > last.seal_number + 1:  # another process was quicker
        return
    if (
        drafted.seal_number <= last.seal_number
        or drafted.previous.hex() != last.digest
        or drafted.first_id != last.last_id + 1
    ):
        raise InvalidOperationError(
            f"the database asks for a signature of seal {drafted.seal_number}, which does not "
            f"follow the last one, {last.seal_number}: somebody has changed its functions or its "
            "seals. Look with `commandbus doctor --audit`"
        )


async def _add(
    session: Session, seal: Seal, entries: bytes, removals: list[Removal], key: Key
) -> None:
    values = asdict(seal)
    await session.rows(
        _ADD,
        (
            *(values[name] for name in ("seal_number", "first_id", "last_id", "row_count")),
            seal.oldest_ts, entries, seal.entries_digest, seal.removals,
            [each.removal_number for each in removals], seal.previous, seal.sealed_at, seal.key_id,
            seal.digest, seal.signature(key),
        ),
    )  # fmt: skip


def _keep(file: HeadFile | None, head: Head) -> None:
    try:
        if file is not None:
            file.keep(head)
    except OSError:  # a folder that cannot be written: the docs say to export heads
        return

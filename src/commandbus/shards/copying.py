"""Copying a domain to another database: parts are walked in chunks, and what differs is carried.

Nothing is remembered between two runs but what is in the databases: a chunk that is the same on
both sides is passed over, so a copy goes on after any end, and the last walk is the verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

import orjson

from commandbus.errors import DatabaseError, DatabaseUnavailableError, InvalidOperationError

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

#: Rows of a chunk, and numbers of the whole audit that one looks at.
CHUNK_ROWS = 2_000
#: Bytes of text that one chunk has at most, if it has more than one row.
CHUNK_BYTES = 16 * 1024 * 1024
CHUNK_EVENTS = 5_000
#: Those that one removal takes: each is on record, and shown by the doctor.
REMOVED_EVENTS = 50_000
#: Chunks of the audit that one statement compares.
COMPARED_CHUNKS = 200
#: Before the first number, and after the last one.
_FIRST, _LAST = -(2**63), 2**63 - 1
#: Progress is told this often, in seconds.
_TELL_SECONDS = 1.0

_PARTS: LiteralString = (
    "select p.part, p.early is not null from {schema}.move_parts(%s) p order by p.place, p.part"
)
_LAYOUT: LiteralString = "select l.part, l.columns from {schema}.move_layout(%s) l"
_CHUNK: LiteralString = (
    "select c.o_upto, c.o_rows, c.o_digest, c.o_bytes"
    " from {schema}.move_chunk(%s, %s, %s, cast(%s as jsonb), %s) c"
)
_DIGEST: LiteralString = (
    "select d.o_rows, d.o_digest"
    " from {schema}.move_digest(%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb)) d"
)
_ROWS: LiteralString = (
    "select r from {schema}.move_rows(%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb)) r"
)
_PUT: LiteralString = (
    "select p.o_rows, p.o_digest from {schema}.put_moved_rows("
    "%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb), cast(%s as text[])) p"
)
_FORGET: LiteralString = "select {schema}.forget_moved_rows(%s, %s, %s)"
_SETTLED: LiteralString = "select {schema}.settled_audit()"
_EVENTS: LiteralString = (
    "select e.o_upto_id, e.o_old_ids, e.o_rows, e.o_digest"
    " from {schema}.move_events(%s, %s, %s, %s) e"
)
_DIGEST_EVENTS: LiteralString = (
    "select d.amount, d.digest from {schema}.digest_events("
    "%s, cast(%s as bigint[]), cast(%s as bigint[])) d order by d.n"
)
_CHUNKS: LiteralString = (
    "select c.chunk_no, c.upto_id, c.row_count, c.digest, c.is_whole"
    " from {schema}.moved_chunks(%s) c order by c.chunk_no"
)
_LAST_CHUNK: LiteralString = (
    "select c.chunk_no, c.upto_id from {schema}.command_bus_moved_audit c"
    " where c.move_id = %s order by c.chunk_no desc limit 1"
)
_PUT_EVENTS: LiteralString = (
    "select {schema}.put_moved_events("
    "%s, %s, %s, %s, cast(%s as bigint[]), cast(%s as text[]), cast(%s as bytea))"
)
_DROP_CHUNK: LiteralString = "select {schema}.drop_moved_chunk(%s, %s)"
_FORGET_EVENTS: LiteralString = "select {schema}.forget_moved_events(%s, %s, %s)"

#: What the audit is called among the parts.
AUDIT = "command_bus_audit"
_BATCHES = "command_bus_batch"


@dataclass(slots=True)
class Copy:
    """The copy of one domain; `source` and `target` are its two databases."""

    source: Gateway
    target: Gateway
    move_id: UUID
    domain: str
    tell: Callable[[str], None]
    _told_at: float = field(default=0.0)

    async def require_layout(self) -> None:
        """Refuse two databases whose tables differ: rows are carried as they are."""
        here: dict[str, str] = dict(await self.source.patient.rows(_LAYOUT, (self.domain,)))
        there: dict[str, str] = dict(await self.target.patient.rows(_LAYOUT, (self.domain,)))
        for part, columns in here.items():
            if there.get(part) != columns:
                raise InvalidOperationError(
                    f"table {part} is not the same in both databases; bring both to one version "
                    "(`commandbus db upgrade`) and run the move again"
                )

    async def ahead(self) -> int:
        """Copy what is history, while traffic goes on; how many rows were carried."""
        carried = await self._copy_events(await self.source.patient.value(_SETTLED))
        for part, is_early in await self._parts():
            if is_early:
                carried += (await self._walk(part, is_early=True))[1]
        return carried

    async def all(self) -> dict[str, int]:
        """Copy the rest of a domain that nobody changes, and verify everything; rows by part."""
        counts = {AUDIT: await self._all_events()}
        for part, _ in await self._parts():
            counts[part], _ = await self._walk(part, is_early=False)
        return {part: rows for part, rows in counts.items() if rows}

    async def forget(self, gateway: Gateway) -> None:
        """Remove all that a database has of the domain, those that refer to others first."""
        for part, _ in reversed(await self._parts(gateway)):
            gone = CHUNK_ROWS
            while gone == CHUNK_ROWS:
                gone = await gateway.patient.value(_FORGET, (self.move_id, part, CHUNK_ROWS))
                self._say(f"removing {part}")

    async def forget_events(self) -> None:
        """Remove the events of the domain where it was."""
        after: int | None = _FIRST
        while after is not None:
            params = (self.move_id, after, REMOVED_EVENTS)
            after = await self.source.patient.value(_FORGET_EVENTS, params)
            self._say("removing events of the audit")

    async def drop_chunks(self, first: int) -> None:
        """Remove chunks of the audit where they were copied to, from a number on."""
        while await self.target.patient.value(_DROP_CHUNK, (self.move_id, first)):
            self._say("removing copied events of the audit")

    async def _parts(self, gateway: Gateway | None = None) -> list[tuple[str, bool]]:
        rows = await (gateway or self.source).rows(_PARTS, (self.domain,))
        return [(part, is_early) for part, is_early in rows]

    async def _walk(self, part: str, *, is_early: bool) -> tuple[int, int]:
        """Make a part the same on both sides: how many rows it has, and how many were carried."""
        seen = carried = 0
        after: str | None = None
        size = CHUNK_ROWS
        while True:
            where = (self.domain, part, is_early, after)
            found = await self.source.patient.rows(_CHUNK, (*where, size))
            last, rows, digest, amount = found[0]
            if amount > CHUNK_BYTES and rows > 1:
                # The rows are large: fewer at once, as what carries them holds all of a chunk.
                size = max(1, min(rows - 1, rows * CHUNK_BYTES // amount))
                continue
            size = min(CHUNK_ROWS, size * 2)
            upto = None if last is None else orjson.dumps(last).decode()
            there = (await self.target.patient.rows(_DIGEST, (*where, upto)))[0]
            if tuple(there) != (rows, digest):
                there = await self._carry(part, is_early=is_early, after=after, upto=upto)
                carried += rows
                # While traffic goes on it may have changed in between; the last walk sees it.
                if not is_early and tuple(there) != (rows, digest):
                    raise DatabaseError(
                        f"{part} of domain {self.domain!r} is not the same on both sides after it "
                        "was copied; nothing was switched, run the move again"
                    )
            seen += rows
            self._say(f"{part}: {seen:,} rows")
            if upto is None:
                return seen, carried
            after = upto

    async def _carry(
        self, part: str, *, is_early: bool, after: str | None, upto: str | None
    ) -> tuple[Any, ...]:
        where = (self.domain, part, is_early, after, upto)
        lines = [row for (row,) in await self.source.patient.rows(_ROWS, where)]
        params = (self.move_id, part, is_early, after, upto, lines)
        try:
            return tuple((await self.target.patient.rows(_PUT, params))[0])
        except DatabaseUnavailableError:
            raise
        except DatabaseError:
            # Commands of a batch that is newer than our walk over batches.
            if not is_early or part == _BATCHES:
                raise
        await self._walk(_BATCHES, is_early=True)
        return tuple((await self.target.patient.rows(_PUT, params))[0])

    # -- the audit

    async def _copy_events(self, safe: int | None) -> int:
        """Add events up to a number to what was copied; how many were carried."""
        if safe is None:
            return 0
        number, after = await self._last_chunk()
        carried, start = 0, after
        while True:
            params = (self.domain, after, safe, CHUNK_EVENTS)
            upto, ids, rows, digest = (await self.source.patient.rows(_EVENTS, params))[0]
            if upto is None:
                return carried
            after = upto
            if ids:
                put = (self.move_id, number + 1, start, upto, ids, rows, digest)
                if not await self.target.patient.value(_PUT_EVENTS, put):
                    # Another process runs the same move: after what that has copied.
                    number, after = await self._last_chunk()
                    start = after
                    continue
                number += 1
                start = upto
                carried += len(ids)
                self._say(f"{AUDIT}: {carried:,} events")

    async def _last_chunk(self) -> tuple[int, int]:
        """Its number, and the number of the event that it ends with."""
        found = await self.target.rows(_LAST_CHUNK, (self.move_id,))
        return found[0] if found else (0, _FIRST)

    async def _all_events(self) -> int:
        """Copy the rest of the audit. A chunk that differs goes, with all after it, and is copied
        again: events keep their order.
        """
        chunks = await self.target.patient.rows(_CHUNKS, (self.move_id,))
        total, before = 0, _FIRST
        for place in range(0, len(chunks), COMPARED_CHUNKS):
            some = chunks[place : place + COMPARED_CHUNKS]
            ends = [upto for _, upto, *_ in some]
            params = (self.domain, [before, *ends[:-1]], ends)
            here = await self.source.patient.rows(_DIGEST_EVENTS, params)
            before = ends[-1]
            for (number, _, amount, digest, is_whole), (found, there) in zip(
                some, here, strict=True
            ):
                if not is_whole or (amount, digest) != (found, there):
                    await self.drop_chunks(number)
                    return total + await self._copy_events(_LAST)
                total += amount
        return total + await self._copy_events(_LAST)

    def _say(self, text: str) -> None:
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._told_at = time.monotonic()
            self.tell(text)

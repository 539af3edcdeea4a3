"""Sending many commands in one transaction, without holding all of them in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import LiteralString
from uuid import UUID

import psycopg

from commandbus.database import encoding
from commandbus.database.connections import Row, run
from commandbus.database.gateway import Gateway
from commandbus.database.rows import raise_if_known
from commandbus.errors import DuplicateCommandError
from commandbus.models import NewCommand

#: Commands that are prepared before the event loop gets its turn. A chunk does not fit into the
#: socket: each turn sends some more of it, and the server begins when it has all.
SLICE = 20
#: Chunks of this size are packed. A known id is then an error in the server's log, so what single
#: senders share is not: there a repeat is nothing special.
PACKED_FROM = 500
#: The size of the first chunk, which the server waits for; that of the next ones doubles.
FIRST = 500

OFFER: LiteralString = (
    "select {schema}.offer_commands(%s, cast(%s as jsonb), cast(%s as uuid), cast(%s as text))"
)
OFFER_ONE: LiteralString = (
    "select {schema}.offer_one(%s, %s, %s, %s, %s, cast(%s as int), %s, cast(%s as uuid))"
)
OFFER_NEW: LiteralString = (
    "select {schema}.offer_new(%s, cast(%s as jsonb), cast(%s as uuid), cast(%s as text))"
)
OFFER_UNIQUE: LiteralString = (
    "select n, verdict, command_id from {schema}.offer_unique("
    "%s, cast(%s as jsonb), cast(%s as uuid), cast(%s as text), %s)"
)
_SEND_PACKED: LiteralString = (
    "select {schema}.send_packed(%s, %s, %s, %s, %s, %s, %s, cast(%s as uuid), cast(%s as text))"
)
_SENT_IDS: LiteralString = "select unnest({schema}.known_ids(%s, cast(%s as uuid[])))"

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Connection = psycopg.AsyncConnection[object]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Commands that are ready to go."""

    ids: list[UUID]
    statement: LiteralString
    params: Row
    #: How many commands came before it.
    before: int


class ChunkSender:
    """Sends in chunks, on one connection of our own."""

    def __init__(
        self,
        gateway: Gateway,
        domain: str,
        batch_id: UUID | None,
        actor: str | None = None,
        *,
        skips_known: bool = False,
    ) -> None:
        self._gateway = gateway
        self._actor = actor
        self._domain = domain
        self._most = gateway.settings.send_chunk_size
        self._size = min(FIRST, self._most)
        self._batch_id = batch_id
        self._skips_known = skips_known
        #: Commands that were taken from the caller, and are in no chunk yet.
        self._taken: list[NewCommand] = []
        self._before = 0
        #: The places of what was left out because its id is known, from 1.
        self.left_out: list[int] = []
        #: Not where ids must be looked for in all domains: send_packed does not.
        self._packs = not skips_known and gateway.settings.command_id_scope == "domain"

    async def send(self, conn: Connection, commands: Iterable[NewCommand]) -> None:
        """Send all or, on any error, none. The next chunk is made ready while the server works."""
        waiting = iter(commands)
        chunk: _Chunk | None
        if isinstance(commands, list) and 0 < len(commands) <= min(PACKED_FROM - 1, self._most):
            # What single senders share: nothing to divide, so the event loop is not asked to wait.
            chunk = self._document(commands)
        else:
            chunk = await self._next_chunk(waiting)
            self._taken = self._taken or list(islice(waiting, min(SLICE, self._most)))
        if chunk is None:
            return
        at_work = chunk
        try:
            if not self._taken:
                await self._call(conn, chunk)  # a transaction of its own
                return
            async with conn.transaction():
                while chunk is not None:
                    at_work = chunk
                    sending = asyncio.create_task(self._call(conn, chunk))
                    try:
                        chunk = await self._next_chunk(waiting)
                    finally:
                        # Whatever went wrong meanwhile, the connection is free only after this.
                        await asyncio.wait([sending])
                    sending.result()
        except psycopg.errors.UniqueViolation as error:
            raise await self._duplicates(conn, at_work, error) from error

    async def _call(self, conn: Connection, chunk: _Chunk) -> None:
        rows = await run(conn, self._gateway.statement(chunk.statement), chunk.params)
        if chunk.statement is OFFER_NEW:
            self.left_out += [chunk.before + number for number in rows[0][0]]
        elif chunk.statement is not _SEND_PACKED:  # there a known id is an error of the server
            raise_if_known(self._domain, rows[0][0])

    async def _next_chunk(self, commands: Iterator[NewCommand]) -> _Chunk | None:
        """The next commands, encoded slice by slice once it is known how.

        Thousands of prepared commands at once would be objects enough that the garbage collector
        looks through all that the process has.
        """
        size, self._size = self._size, min(2 * self._size, self._most)
        chunk: list[NewCommand] = []
        ids: list[UUID] = []
        parts: list[encoding.Packed] = []
        may_pack = self._packs
        while len(chunk) + len(ids) < size:
            await asyncio.sleep(0)
            taken = min(SLICE, size - len(chunk) - len(ids))
            piece = self._taken or list(islice(commands, taken))
            self._taken = []
            if not piece:
                break
            if not parts:
                chunk += piece
                if not may_pack or len(chunk) < PACKED_FROM:
                    continue
                piece, may_pack = chunk, False
            if any(command.flow is not None for command in piece):
                if not parts:
                    continue  # a chunk that is not packed
                self._taken = piece  # for the next one
                break
            ids += [command.command_id for command in piece]
            parts.append(encoding.packed(piece))
            chunk = []
        if parts:
            return self._ready(ids, _SEND_PACKED, encoding.joined(parts))
        return self._document(chunk) if chunk else None

    def _document(self, chunk: list[NewCommand]) -> _Chunk:
        ids = [command.command_id for command in chunk]
        statement = OFFER_NEW if self._skips_known else OFFER
        return self._ready(ids, statement, (encoding.sends(chunk),))

    def _ready(self, ids: list[UUID], statement: LiteralString, document: Row) -> _Chunk:
        before, self._before = self._before, self._before + len(ids)
        return _Chunk(
            ids, statement, (self._domain, *document, self._batch_id, self._actor), before
        )

    async def _duplicates(
        self, conn: Connection, chunk: _Chunk, error: psycopg.Error
    ) -> DuplicateCommandError:
        ids = list(dict.fromkeys(chunk.ids))
        rows = await run(conn, self._gateway.statement(_SENT_IDS), (self._domain, ids))
        known = {UUID(str(row[0])) for row in rows}
        if not known:
            # It stands twice in this very call, so it is gone with the call.
            known = {UUID(found) for found in _UUID.findall(error.diag.message_detail or "")}
        return DuplicateCommandError(self._domain, [each for each in ids if each in known] or ids)

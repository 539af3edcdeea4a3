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
_SENT_IDS: LiteralString = (
    "select c.command_id from {schema}.command_bus_command c"
    " where c.domain = %s and c.command_id = any(cast(%s as uuid[]))"
)

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
        self._size = gateway.settings.send_chunk_size
        self._batch_id = batch_id
        self._skips_known = skips_known
        self._before = 0
        #: The places of what was left out because its id is known, from 1.
        self.left_out: list[int] = []
        #: Not where ids must be looked for in all domains: send_packed does not.
        self._packs = gateway.settings.command_id_scope == "domain"

    async def send(self, conn: Connection, commands: Iterable[NewCommand]) -> None:
        """Send all or, on any error, none. The next chunk is made ready while the server works."""
        waiting = iter(commands)
        chunk: _Chunk | None
        following: _Chunk | None
        if isinstance(commands, list) and 0 < len(commands) <= self._size:
            # What single senders share: nothing to divide, so the event loop is not asked to wait.
            chunk, following = self._ready(commands), None
        else:
            chunk, following = await self._next_chunk(waiting), await self._next_chunk(waiting)
        if chunk is None:
            return
        at_work = chunk
        try:
            if following is None:
                await self._call(conn, chunk)  # a transaction of its own
                return
            async with conn.transaction():
                while chunk is not None:
                    at_work = chunk
                    sending = asyncio.create_task(self._call(conn, chunk))
                    try:
                        chunk, following = following, await self._next_chunk(waiting)
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
        chunk: list[NewCommand] = []
        while len(chunk) < self._size:
            await asyncio.sleep(0)
            piece = list(islice(commands, min(SLICE, self._size - len(chunk))))
            chunk += piece
            if not piece:
                break
        return self._ready(chunk) if chunk else None

    def _ready(self, chunk: list[NewCommand]) -> _Chunk:
        ids = [command.command_id for command in chunk]
        document: Row
        before, self._before = self._before, self._before + len(chunk)
        if self._skips_known:
            statement, document = OFFER_NEW, (encoding.sends(chunk),)
        elif self._packs and len(chunk) >= PACKED_FROM and all(c.flow is None for c in chunk):
            statement, document = _SEND_PACKED, encoding.packed(chunk)
        else:
            statement, document = OFFER, (encoding.sends(chunk),)
        params = (self._domain, *document, self._batch_id, self._actor)
        return _Chunk(ids, statement, params, before)

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

"""Sending many commands in one transaction, without holding all of them in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

import psycopg

from commandbus.database import encoding
from commandbus.database.gateway import Row, Statement, run
from commandbus.errors import DuplicateCommandError
from commandbus.models import NewCommand
from commandbus.store.postgres_batches import raise_if_known

#: Commands that are prepared before the event loop gets its turn. A chunk does not fit into the
#: socket: each turn sends some more of it, and the server begins when it has all.
SLICE = 20
#: Chunks of this size are packed. A known id is then an error in the server's log, so what single
#: senders share is not: there a repeat is nothing special.
PACKED_FROM = 500

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Connection = psycopg.AsyncConnection[object]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Commands that are ready to go."""

    ids: list[UUID]
    statement: str
    params: Row


class BulkSender:
    """Sends in chunks, on one connection of our own."""

    def __init__(
        self,
        statements: Mapping[str, Statement],
        domain: str,
        *,
        size: int,
        batch_id: UUID | None,
        packs: bool,
    ) -> None:
        self._sql = statements
        self._domain = domain
        self._size = size
        self._batch_id = batch_id
        #: Not where ids must be looked for in all domains: send_packed does not.
        self._packs = packs

    async def send(self, conn: Connection, commands: Iterable[NewCommand]) -> None:
        """Send all or, on any error, none. The next chunk is made ready while the server works."""
        if isinstance(commands, list) and 0 < len(commands) <= self._size:
            await self._offer(conn, self._ready(commands))  # nothing to divide or to overlap
            return
        waiting = iter(commands)
        chunk = await self._next_chunk(waiting)
        following = await self._next_chunk(waiting)
        if chunk is None:
            return
        if following is None:
            await self._offer(conn, chunk)
            return
        at_work = chunk
        try:
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

    async def _offer(self, conn: Connection, chunk: _Chunk) -> None:
        try:
            await self._call(conn, chunk)
        except psycopg.errors.UniqueViolation as error:
            raise await self._duplicates(conn, chunk, error) from error

    async def _call(self, conn: Connection, chunk: _Chunk) -> None:
        rows = await run(conn, self._sql[chunk.statement], chunk.params)
        if chunk.statement != "send_packed":  # there a known id is an error of the server
            raise_if_known(self._domain, rows)

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
        if self._packs and len(chunk) == 1:
            statement, document = "offer_one", encoding.alone(chunk[0])
        elif self._packs and len(chunk) >= PACKED_FROM:
            statement, document = "send_packed", encoding.packed(chunk)
        else:
            statement, document = "offer", (encoding.sends(chunk),)
        return _Chunk(ids, statement, (self._domain, *document, self._batch_id))

    async def _duplicates(
        self, conn: Connection, chunk: _Chunk, error: psycopg.Error
    ) -> DuplicateCommandError:
        ids = list(dict.fromkeys(chunk.ids))
        rows = await run(conn, self._sql["sent_ids"], (self._domain, ids))
        known = {UUID(str(row[0])) for row in rows}
        if not known:
            # It stands twice in this very call, so it is gone with the call.
            known = {UUID(found) for found in _UUID.findall(error.diag.message_detail or "")}
        return DuplicateCommandError(self._domain, [each for each in ids if each in known] or ids)

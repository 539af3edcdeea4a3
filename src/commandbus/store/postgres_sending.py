"""Sending many commands in one transaction, without holding all of them in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from uuid import UUID

import psycopg

from commandbus.errors import DuplicateCommandError
from commandbus.models import NewCommand
from commandbus.store import documents
from commandbus.store.connection import Row, Statement, run
from commandbus.store.postgres_batches import raise_if_known

#: Commands that are prepared before the event loop gets its turn: what was written to the server is
#: flushed meanwhile.
SLICE = 100
#: Chunks of this size are packed. A known id is then an error in the server's log, so what single
#: senders share is not: there a repeat is nothing special.
PACKED_FROM = 500

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Connection = psycopg.AsyncConnection[object]


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
        """Send all or, on any error, none. The next chunk is prepared while the server works."""
        if isinstance(commands, list) and 0 < len(commands) <= self._size:
            await self._offer(conn, commands)  # nothing to divide or to overlap
            return
        waiting = iter(commands)
        chunk = await _next_chunk(waiting, self._size)
        following = await _next_chunk(waiting, self._size)
        if not chunk:
            return
        if not following:
            await self._offer(conn, chunk)
            return
        at_work: list[NewCommand] = []
        try:
            async with conn.transaction():
                while chunk:
                    at_work = chunk
                    sending = asyncio.create_task(self._call(conn, chunk))
                    try:
                        chunk, following = following, await _next_chunk(waiting, self._size)
                    finally:
                        # Whatever went wrong meanwhile, the connection is free only after this.
                        await asyncio.wait([sending])
                    sending.result()
        except psycopg.errors.UniqueViolation as error:
            raise await self._duplicates(conn, at_work, error) from error

    async def _offer(self, conn: Connection, chunk: list[NewCommand]) -> None:
        try:
            await self._call(conn, chunk)
        except psycopg.errors.UniqueViolation as error:
            raise await self._duplicates(conn, chunk, error) from error

    async def _call(self, conn: Connection, chunk: list[NewCommand]) -> None:
        if self._packs and len(chunk) >= PACKED_FROM:
            params: Row = (self._domain, *documents.packed(chunk), self._batch_id)
            await run(conn, self._sql["send_packed"], params)
        else:
            params = (self._domain, documents.sends(chunk), self._batch_id)
            raise_if_known(self._domain, await run(conn, self._sql["offer"], params))

    async def _duplicates(
        self, conn: Connection, chunk: list[NewCommand], error: psycopg.Error
    ) -> DuplicateCommandError:
        ids = list(dict.fromkeys(command.command_id for command in chunk))
        rows = await run(conn, self._sql["sent_ids"], (self._domain, ids))
        known = {UUID(str(row[0])) for row in rows}
        if not known:
            # It stands twice in this very call, so it is gone with the call.
            known = {UUID(found) for found in _UUID.findall(error.diag.message_detail or "")}
        return DuplicateCommandError(self._domain, [each for each in ids if each in known] or ids)


async def _next_chunk(commands: Iterator[NewCommand], size: int) -> list[NewCommand]:
    chunk: list[NewCommand] = []
    while len(chunk) < size:
        await asyncio.sleep(0)
        piece = list(islice(commands, min(SLICE, size - len(chunk))))
        chunk += piece
        if not piece:
            break
    return chunk

"""Sending many commands in one transaction, without holding all of them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from uuid import UUID

import psycopg

from commandbus.models import NewCommand
from commandbus.store import documents
from commandbus.store.connection import Row, Statement, run
from commandbus.store.postgres_batches import raise_if_known

#: Commands that are prepared before the event loop gets its turn: what was written to the server is
#: flushed meanwhile.
SLICE = 100


async def send_in_chunks(
    conn: psycopg.AsyncConnection[object],
    offer: Statement,
    domain: str,
    commands: Iterable[NewCommand],
    *,
    size: int,
    batch_id: UUID | None,
) -> None:
    """Send all or, on any error, none. The next chunk is prepared while the server is at work."""
    if isinstance(commands, list) and 0 < len(commands) <= size:
        await _offer(conn, offer, domain, commands, batch_id)  # nothing to divide or to overlap
        return
    waiting = iter(commands)
    chunk = await _next_chunk(waiting, size)
    following = await _next_chunk(waiting, size)
    if not chunk:
        return
    if not following:
        await _offer(conn, offer, domain, chunk, batch_id)
        return
    async with conn.transaction():
        while chunk:
            sending = asyncio.create_task(_offer(conn, offer, domain, chunk, batch_id))
            try:
                chunk, following = following, await _next_chunk(waiting, size)
            finally:
                # Whatever went wrong meanwhile, the connection is free again only after this.
                await asyncio.wait([sending])
            sending.result()


async def _offer(
    conn: psycopg.AsyncConnection[object],
    offer: Statement,
    domain: str,
    chunk: list[NewCommand],
    batch_id: UUID | None,
) -> None:
    params: Row = (domain, documents.sends(chunk), batch_id)
    raise_if_known(domain, await run(conn, offer, params))


async def _next_chunk(commands: Iterator[NewCommand], size: int) -> list[NewCommand]:
    chunk: list[NewCommand] = []
    while len(chunk) < size:
        await asyncio.sleep(0)
        piece = list(islice(commands, min(SLICE, size - len(chunk))))
        chunk += piece
        if not piece:
            break
    return chunk

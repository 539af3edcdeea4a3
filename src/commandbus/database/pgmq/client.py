"""PgmqClient: PGMQ's own verbs over psycopg, for code that wants the queue and nothing more.

The bus does not use it on its hot path: there PGMQ is called from within our SQL functions, next
to the rows that must change with it. `commandbus.testing.FakePgmqClient` has the same verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import orjson
import psycopg

from commandbus.database.connections import Row, fetch
from commandbus.database.model import PgmqMessage
from commandbus.database.sqlstate import translated
from commandbus.names import physical_queue


class PgmqClient:
    """The verbs of PGMQ on one connection; the caller commits. Queue names are logical (dotted)."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    async def _rows(self, query: LiteralString, queue: str, *params: object) -> list[Row]:
        with translated():
            return await fetch(self._conn, query, physical_queue(queue), *params)

    async def _ids(self, query: LiteralString, queue: str, *params: object) -> list[int]:
        return [row[0] for row in await self._rows(query, queue, *params)]

    async def create(self, queue: str) -> None:
        """Create a queue; no harm if it exists."""
        await self._rows("select pgmq.create(%s)", queue)

    async def send(self, queue: str, message: Any, delay: int = 0) -> int:
        """Queue one message, visible after `delay` seconds."""
        return (await self.send_batch(queue, [message], delay))[0]

    async def send_batch(self, queue: str, messages: Sequence[Any], delay: int = 0) -> list[int]:
        """Queue messages in this order."""
        return await self._ids(
            "select pgmq.send_batch(%s, array(select jsonb_array_elements(%s::jsonb)), %s::int)",
            queue, orjson.dumps(list(messages)).decode(), delay,
        )  # fmt: skip

    async def read(self, queue: str, vt: int, qty: int = 1) -> list[PgmqMessage]:
        """Lease up to `qty` messages for `vt` seconds."""
        rows = await self._rows(
            "select msg_id, read_ct, enqueued_at, vt, message from pgmq.read(%s, %s, %s)"
            " order by msg_id",
            queue, vt, qty,
        )  # fmt: skip
        return [PgmqMessage(*row) for row in rows]

    async def read_texts(self, queue: str, vt: int, qty: int) -> list[tuple[int, str]]:
        """The same, as texts: whatever numbers or depth a message has, it can be looked at."""
        return await self._rows(
            "select msg_id, message::text from pgmq.read(%s, %s, %s) order by msg_id",
            queue, vt, qty,
        )  # fmt: skip

    async def delete(self, queue: str, msg_ids: Sequence[int]) -> list[int]:
        """Delete messages; returns those that were there."""
        return await self._ids("select pgmq.delete(%s, %s::bigint[])", queue, list(msg_ids))

    async def archive(self, queue: str, msg_ids: Sequence[int]) -> list[int]:
        """Move messages to the archive; returns those that were there."""
        return await self._ids("select pgmq.archive(%s, %s::bigint[])", queue, list(msg_ids))

    async def set_vt(self, queue: str, msg_ids: Sequence[int], vt: int) -> list[int]:
        """Make messages visible in `vt` seconds; returns those that were there."""
        query = "select msg_id from pgmq.set_vt(%s, %s::bigint[], %s::int)"
        return await self._ids(query, queue, list(msg_ids), vt)

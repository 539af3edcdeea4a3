"""RemoteQueue: PGMQ in another database than the commands.

No transaction spans the two, so a message may arrive twice, or before its command is marked, and
that must be harmless. It is: a relay (`bus.batches.relay`) brings each message to the queue beside
the commands, where each is queued at most once, and workers stay one commit with their rows.
The remote database needs PGMQ and nothing of ours.

The driver is imported only when a queue is opened, so that naming the class does not load it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import orjson

from commandbus.addresses import libpq_address
from commandbus.transport import TransportMessage

if TYPE_CHECKING:
    from commandbus.database.connections import AsyncPool
    from commandbus.database.pgmq.client import PgmqClient

#: Keeps two processes from installing PGMQ at once; "cmdbusrq" as a number.
INSTALL_LOCK = 0x636D646275737271


class RemoteQueue:
    """Implements commandbus.brokers.Transport, on a pool that the caller owns.

    Its queues are called `<domain>.dispatch` and the like, so that none is mistaken for the queue
    that workers read, even if somebody puts both into one database.
    """

    def __init__(self, pool: AsyncPool, *, name: str = "remote") -> None:
        self._pool = pool
        self.name = name
        self._known: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, dsn: str, *, name: str = "remote", pool_size: int = 2, timeout_seconds: float = 5.0
    ) -> AsyncIterator[RemoteQueue]:
        """Open a queue on a database; creates PGMQ and the queues there if they are missing."""
        from commandbus.database.connections import ConnectionSource  # noqa: PLC0415  (the driver)
        from commandbus.database.sessions import Timeouts  # noqa: PLC0415  (the driver)
        from commandbus.database.sqlstate import translated  # noqa: PLC0415  (the driver)

        with translated():
            pool = await ConnectionSource(libpq_address(dsn), None).open_pool(
                "remote-queue",
                pool_size,
                timeout_seconds=timeout_seconds,
                timeouts=Timeouts(),
            )
        try:
            yield cls(pool, name=name)
        finally:
            await pool.close()

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        """Queue all of them, in this order and one commit, or raise."""
        if not messages:
            return
        async with self._client(queue) as client:
            await client.send_batch(queue, [orjson.Fragment(message) for message in messages])

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        """Lease some, oldest first. A token is the number of the message in PGMQ."""
        async with self._client(queue) as client:
            found = await client.read_texts(queue, lease_seconds, quantity)
        return [TransportMessage(str(msg_id), text) for msg_id, text in found]

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Delete them."""
        async with self._client(queue) as client:
            await client.delete(queue, [int(each.token) for each in messages])

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Archive them: they are in the table `a_<queue>` from then on."""
        async with self._client(queue) as client:
            await client.archive(queue, [int(each.token) for each in messages])

    @asynccontextmanager
    async def _client(self, queue: str) -> AsyncIterator[PgmqClient]:
        from commandbus.database.connections import borrowed  # noqa: PLC0415  (the driver)
        from commandbus.database.pgmq.client import PgmqClient  # noqa: PLC0415  (the driver)
        from commandbus.database.pgmq.install import install_pgmq, is_installed  # noqa: PLC0415
        from commandbus.database.sqlstate import translated  # noqa: PLC0415  (the driver)

        with translated():
            async with borrowed(self._pool) as conn, conn.transaction():
                if queue not in self._known:
                    await conn.execute("select pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
                    if not await is_installed(conn):
                        await install_pgmq(conn)
                    await PgmqClient(conn).create(queue)
                yield PgmqClient(conn)
        self._known.add(queue)

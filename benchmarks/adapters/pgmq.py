"""Raw PGMQ: read and delete, keeping nothing of what commandbus keeps. The floor."""

from __future__ import annotations

import asyncio

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from benchmarks.adapters.base import PAYLOAD, Adapter, serve
from commandbus.database.pgmq.install import install_pgmq

IDLE_SECONDS = 0.002


class PgmqAdapter(Adapter):
    """Settings: `group` messages a read, `loops` groups in flight, `pool_size`."""

    packages = ("pgmq", "psycopg")
    unfinished = "select from pgmq.q_bench"

    async def setup(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.conninfo) as conn:
            await install_pgmq(conn)
            await conn.execute("select pgmq.create('bench')")

    async def open(self) -> None:
        self._pool = AsyncConnectionPool(
            self.conninfo,
            min_size=4,
            max_size=self.settings.get("pool_size", 10),
            kwargs={"autocommit": True},
            open=False,
        )
        await self._pool.open(wait=True)
        self._loops: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def close(self) -> None:
        await self._pool.close()

    async def bulk_send(self, count: int) -> None:
        async with self._pool.connection() as conn, conn.transaction():
            for start in range(0, count, 1_000):
                chunk = [PAYLOAD] * min(1_000, count - start)
                await conn.execute(
                    "select pgmq.send_batch('bench',"
                    " array(select jsonb_array_elements(%s::jsonb)))",
                    (orjson.dumps(chunk).decode(),),
                )

    async def send(self) -> None:
        async with self._pool.connection() as conn:
            await conn.execute(
                "select pgmq.send('bench', %s::jsonb)", (orjson.dumps(PAYLOAD).decode(),)
            )

    async def start_worker(self) -> None:
        self._is_stopping = False
        loops = self.settings.get("loops", 2)
        self._loops = [asyncio.create_task(self._loop()) for _ in range(loops)]

    async def stop_worker(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._loops)

    async def _loop(self) -> None:
        group = self.settings.get("group", 1)
        async with self._pool.connection() as conn:
            while not self._is_stopping:
                cursor = await conn.execute(
                    "select msg_id, message from pgmq.read('bench', 30, %s)", (group,)
                )
                ids = [row[0] for row in await cursor.fetchall()]
                if not ids:
                    await asyncio.sleep(IDLE_SECONDS)
                    continue
                if self.handler_seconds:
                    await asyncio.gather(*(self.handle() for _ in ids))
                else:
                    for _ in ids:
                        await self.handle()
                await conn.execute("select pgmq.delete('bench', %s::bigint[])", (ids,))


if __name__ == "__main__":
    serve(PgmqAdapter)

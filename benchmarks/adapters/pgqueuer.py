"""pgqueuer, over asyncpg or psycopg."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver, PsycopgDriver
from pgqueuer.queries import Queries

from benchmarks.adapters.base import PAYLOAD, Adapter, serve


class PgQueuerAdapter(Adapter):
    """Settings: `driver` (asyncpg, pool, psycopg), `pool_size`, and those of `PgQueuer.run`."""

    packages = ("pgqueuer", "asyncpg", "psycopg")
    unfinished = "select from pgqueuer"

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self._opened: list[Any] = []
        self._queries = Queries(await self._driver())
        self._worker: asyncio.Task[None] | None = None

    async def _driver(self) -> Any:
        kind = self.settings.get("driver", "asyncpg")
        if kind == "psycopg":
            conn = await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True)
            self._opened.append(conn)
            return PsycopgDriver(conn)
        if kind == "pool":
            size = self.settings.get("pool_size", 10)
            pool = await asyncpg.create_pool(self.url, min_size=min(4, size), max_size=size)
            self._opened.append(pool)
            return AsyncpgPoolDriver(pool)
        connection = await asyncpg.connect(self.url)
        self._opened.append(connection)
        return AsyncpgDriver(connection)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()

    async def bulk_send(self, count: int) -> None:
        await self._queries.enqueue(
            ["work"] * count,
            [json.dumps(PAYLOAD).encode() for _ in range(count)],
            [0] * count,
        )

    async def send(self) -> None:
        await self._queries.enqueue("work", json.dumps(PAYLOAD).encode())

    async def start_worker(self) -> None:
        self._manager = PgQueuer(await self._driver())

        @self._manager.entrypoint("work")  # type: ignore[untyped-decorator]
        async def work(job: Any) -> None:
            json.loads(job.payload)
            await self.handle()

        options = {"batch_size": self.settings.get("batch_size", 10)}
        if limit := self.settings.get("max_concurrent_tasks"):
            options["max_concurrent_tasks"] = limit
        self._worker = asyncio.create_task(self._manager.run(**options))

    async def stop_worker(self) -> None:
        self._manager.shutdown.set()
        if self._worker is not None:
            await self._worker


if __name__ == "__main__":
    serve(PgQueuerAdapter)

"""chancy, with its asyncio executor."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from chancy import Chancy, Queue, Worker, job
from psycopg.rows import dict_row

from benchmarks.adapters.base import PAYLOAD, Adapter, serve

#: Its jobs are found by import path, so the adapter must be found from a function.
ACTIVE: list[ChancyAdapter] = []


@job(queue="bench")  # type: ignore[untyped-decorator]
async def work(**_: Any) -> None:
    """The job; it must be importable."""
    await ACTIVE[0].handle()


class ChancyAdapter(Adapter):
    """Settings: `concurrency`, `flush_seconds`, `pool_size`.

    Eager polling is always on: without it a full queue is looked at every five seconds only.
    """

    packages = ("chancy", "psycopg")
    unfinished = "select from chancy_jobs where state in ('pending', 'running', 'retrying')"
    _log: ClassVar[logging.Logger] = logging.getLogger("chancy-bench")

    async def setup(self) -> None:
        async with self._app() as app:
            await app.migrate()

    def _app(self) -> Any:
        self._log.setLevel(logging.WARNING)  # it logs a line for each job
        return Chancy(
            self.conninfo,
            max_connection_pool_size=self.settings.get("pool_size", 10),
            log=self._log,
        )

    async def open(self) -> None:
        ACTIVE[:] = [self]
        self._chancy = self._app()
        await self._chancy.__aenter__()
        await self._chancy.declare(
            Queue(
                "bench",
                concurrency=self.settings.get("concurrency", 10),
                executor=Chancy.Executor.Async,
                eager_polling=True,
            ),
            upsert=True,
        )

    async def close(self) -> None:
        await self._chancy.__aexit__(None, None, None)

    async def bulk_send(self, count: int) -> None:
        jobs = [work.job.with_kwargs(**PAYLOAD) for _ in range(count)]
        async with (
            self._chancy.pool.connection() as conn,
            conn.transaction(),
            conn.cursor(row_factory=dict_row) as cursor,
        ):
            await self._chancy.push_many_ex(cursor, jobs)

    async def send(self) -> None:
        await self._chancy.push(work.job.with_kwargs(**PAYLOAD))

    async def start_worker(self) -> None:
        self._worker = Worker(self._chancy, register_signal_handlers=False)
        if flush := self.settings.get("flush_seconds"):
            self._worker.send_outgoing_interval = flush
        await self._worker.start()

    async def stop_worker(self) -> None:
        await self._worker.stop()


if __name__ == "__main__":
    serve(ChancyAdapter)

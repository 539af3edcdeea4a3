"""procrastinate."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import procrastinate

from benchmarks.adapters.base import PAYLOAD, Adapter, serve


class ProcrastinateAdapter(Adapter):
    """Settings: `concurrency`, `pool_size`, and those of `run_worker_async`."""

    packages = ("procrastinate", "psycopg")
    unfinished = "select from procrastinate_jobs where status in ('todo', 'doing')"

    async def setup(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    def _app(self) -> Any:
        size = self.settings.get("pool_size", 10)
        connector = procrastinate.PsycopgConnector(
            conninfo=self.conninfo, min_size=min(4, size), max_size=size
        )
        return procrastinate.App(connector=connector)

    async def open(self) -> None:
        # At INFO it formats a line for each job, wherever the line goes.
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        self._opened = self._app()

        @self._opened.task(name="work")  # type: ignore[untyped-decorator]
        async def work(**_: Any) -> None:
            await self.handle()

        self._task = work
        await self._opened.open_async()
        self._worker: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self._opened.close_async()

    async def bulk_send(self, count: int) -> None:
        await self._task.batch_defer_async(*([PAYLOAD] * count))

    async def send(self) -> None:
        await self._task.defer_async(**PAYLOAD)

    async def start_worker(self) -> None:
        self._worker = asyncio.create_task(
            self._opened.run_worker_async(
                concurrency=self.settings.get("concurrency", 10),
                install_signal_handlers=False,
            )
        )

    async def stop_worker(self) -> None:
        # Cancelling is its documented way to end a worker that runs as a task.
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)


if __name__ == "__main__":
    serve(ProcrastinateAdapter)

"""awa (awa-pg), on its own storage engine for queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.adapters.base import PAYLOAD, Adapter, serve


@dataclass
class Work:
    """The payload, as the class that its API asks for."""

    account: str
    amount: int
    currency: str
    note: str


class AwaAdapter(Adapter):
    """Settings: `workers`, `connections`, `queue` (more keys of its queue), `start` (options).

    For bulk sends: `ready` (arguments are made before), `sync` (by the call without asyncio).
    """

    packages = ("awa-pg",)
    finished = (
        "select coalesce((select sum(completed_count) from awa.receipt_completion_batches), 0)"
        " + (select count(*) from awa.done_entries)"
    )

    async def setup(self) -> None:
        client = awa.AsyncClient(self.dsn["url_with_host"])
        await client.migrate()
        await client.install_queue_storage(schema="awa")
        await client.close()

    async def open(self) -> None:
        self._ready: list[Work] = []
        self._client = awa.AsyncClient(
            self.dsn["url_with_host"], max_connections=self.settings.get("connections", 10)
        )
        self._sync_client = (
            awa.Client(self.dsn["url_with_host"]) if "sync" in self.settings else None
        )

        @self._client.task(Work, queue="bench")  # type: ignore[untyped-decorator]
        async def work(job: Any) -> None:
            await self.handle()

    async def close(self) -> None:
        await self._client.close()

    async def bulk_send(self, count: int) -> None:
        given = self._ready or [Work(**PAYLOAD) for _ in range(count)]
        self._ready = []
        if self.settings.get("sync"):
            assert self._sync_client is not None
            sent = self._sync_client.enqueue_many_copy(given, queue="bench")
        else:
            sent = await self._client.enqueue_many_copy(given, queue="bench")
        assert sent == count, sent

    def make_ready(self, count: int) -> None:
        self._ready = [Work(**PAYLOAD) for _ in range(count)]

    async def send(self) -> None:
        await self._client.insert(Work(**PAYLOAD), queue="bench")

    async def start_worker(self) -> None:
        queue = {
            "name": "bench",
            "max_workers": self.settings.get("workers", 10),
            **self.settings.get("queue", {}),
        }
        await self._client.start([queue], **self.settings.get("start", {}))

    async def stop_worker(self) -> None:
        await self._client.shutdown()


if __name__ == "__main__":
    serve(AwaAdapter)

"""taskiq-pg: sending only. Its broker hands a message to listeners of NOTIFY and to nobody else."""

from __future__ import annotations

from typing import Any

from taskiq_pg.broker import AsyncpgBroker

from benchmarks.adapters.base import PAYLOAD, Adapter, serve


class TaskiqAdapter(Adapter):
    """Settings: `pool_size`."""

    packages = ("taskiq-pg", "taskiq", "asyncpg")
    unfinished = "select from taskiq_messages"

    async def open(self) -> None:
        self._broker = AsyncpgBroker(
            self.url, pool_kwargs={"max_size": self.settings.get("pool_size", 10)}
        )

        @self._broker.task(task_name="work")  # type: ignore[untyped-decorator]
        async def work(**_: Any) -> None:
            await self.handle()

        self._task = work
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def send(self) -> None:
        await self._task.kiq(**PAYLOAD)

    async def bulk_send(self, count: int) -> None:
        raise NotImplementedError("taskiq-pg sends one message at a time")

    async def start_worker(self) -> None:
        raise NotImplementedError("a message sent while nobody listens is not delivered")

    async def stop_worker(self) -> None:
        raise NotImplementedError


if __name__ == "__main__":
    serve(TaskiqAdapter)

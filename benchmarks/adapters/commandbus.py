"""commandbus, as a user would call it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

# Otherwise the first worker loads it, in the time that is measured; a process does that once, so it
# is not what a command costs.
import commandbus.worker.worker  # noqa: F401
from benchmarks.adapters.base import PAYLOAD, Adapter, serve
from commandbus import BatchCommand, Command, CommandBus, HandlerContext, Settings, new_id

if TYPE_CHECKING:
    from commandbus.middleware import Middleware

#: `settings` that are ours, not of commandbus.Settings.
OWN = {
    "handler_ms", "concurrency", "transactional", "in_batch", "loop", "use_notify", "random_ids",
    "middleware", "ready",
}  # fmt: skip


class CommandBusAdapter(Adapter):
    """Settings: those of `commandbus.Settings`, `run_worker` and the switches in OWN."""

    packages = ("commandbus", "psycopg")
    unfinished = "select from pgmq.q_bench__commands"

    async def setup(self) -> None:
        async with CommandBus.connect(self.conninfo) as bus:
            await bus.send("setup", "Work", uuid4(), {})  # the first use creates queues

    async def open(self) -> None:
        self._new_id = uuid4 if self.settings.get("random_ids") else new_id
        self._ready: list[BatchCommand] = []
        self._stack = AsyncExitStack()
        chosen = {name: value for name, value in self.settings.items() if name not in OWN}
        wanted = self.settings.get("middleware", False)
        names = {"opentelemetry", "sentry", "timing"} if wanted is True else set(wanted or ())
        # Named only if it is asked for: checkouts of before do not know it.
        around: dict[str, Any] = {"middleware": built_in_middleware(names)} if names else {}
        self._bus = await self._stack.enter_async_context(
            CommandBus.connect(self.conninfo, settings=Settings(**chosen), **around)
        )
        if "timing" in names:
            self._bus.monitor()
        self._bus.register_handler(
            "bench", "Work", self._work, transactional=self.settings.get("transactional", False)
        )
        self._worker: asyncio.Task[None] | None = None

    async def _work(self, command: Command, context: HandlerContext) -> None:
        if self.settings.get("transactional"):
            assert context.conn is not None
            await context.conn.execute("select 1")
        await self.handle()

    async def close(self) -> None:
        await self._stack.aclose()

    async def bulk_send(self, count: int) -> None:
        if self.settings.get("in_batch"):
            await self._bus.create_batch("bench", list(new_commands(count, self._new_id)))
        else:
            given = self._ready or new_commands(count, self._new_id)
            self._ready = []
            await self._bus.send_many("bench", given)

    def make_ready(self, count: int) -> None:
        self._ready = list(new_commands(count, self._new_id))

    async def send(self) -> None:
        await self._bus.send("bench", "Work", self._new_id(), PAYLOAD)

    async def submissions(self, count: int, children: int) -> list[float]:
        from benchmarks.governed import new_token, timed_submissions  # noqa: PLC0415  (rarely)

        token = await new_token(self._bus)
        return await asyncio.to_thread(timed_submissions, self.conninfo, token, count, children)

    async def start_worker(self) -> None:
        # As `commandbus worker` does.
        gc.collect()
        gc.freeze()
        self._worker = asyncio.create_task(
            self._bus.run_worker(
                "bench",
                concurrency=self.settings.get("concurrency", 10),
                use_notify=self.settings.get("use_notify", True),
            )
        )

    async def stop_worker(self) -> None:
        await self._bus.stop()
        if self._worker is not None:
            await self._worker


def new_commands(count: int, make: Callable[[], UUID] = new_id) -> Iterator[BatchCommand]:
    """The requested number of commands, each with a new id."""
    return (BatchCommand("Work", make(), PAYLOAD) for _ in range(count))


def built_in_middleware(names: Collection[str] = ("opentelemetry", "sentry")) -> list[Middleware]:
    """Those of these names, with one trace in a hundred recorded and nothing sent anywhere."""
    found: list[Middleware] = []
    if "opentelemetry" in names:
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  (rarely)
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
            InMemorySpanExporter,
        )
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

        from commandbus.middleware.opentelemetry import OpenTelemetry  # noqa: PLC0415

        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.01))
        provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
        found.append(OpenTelemetry(tracer_provider=provider))
    if "sentry" in names:
        import sentry_sdk  # noqa: PLC0415

        from commandbus.middleware.sentry import Sentry  # noqa: PLC0415

        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1", transport=lambda event: None,
            auto_enabling_integrations=False,
        )  # fmt: skip
        found.append(Sentry())
    return found


if __name__ == "__main__":
    serve(CommandBusAdapter)

"""The lifespan: a bus, and workers in the same process, as long as the application runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from commandbus.bus import CommandBus
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.fastapi.dependencies import STATE
from commandbus.handlers.router import Handlers
from commandbus.http.mounting import NOT_READY
from commandbus.privacy.redaction import redact_text
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings

#: What FastAPI and Starlette take as `lifespan=`.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
_AnyLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
OnWorkerFailure = Literal["log", "exit"]

_log = logging.getLogger("commandbus.fastapi")


def bus_lifespan(
    dsn: str | None = None,
    *,
    handlers: Handlers | None = None,
    workers: Iterable[str] = (),
    concurrency: int = 10,
    on_worker_failure: OnWorkerFailure = "log",
    settings: Settings | None = None,
    retry_policy: RetryPolicy | None = None,
    middleware: Sequence[Any] = (),
    data_dir: Path | None = None,
) -> Lifespan:
    """A lifespan that opens a bus, as `CommandBus.connect` does, and puts it into the state.

    `workers` names the domains that this process serves itself, each with `concurrency` handlers.
    At the end they finish what they run, within `shutdown_grace_seconds`, before the bus closes. A
    worker that fails is a critical line in the log and makes `readyz` fail;
    `on_worker_failure="exit"` also ends the process, gracefully, with SIGTERM.
    """
    domains = [workers] if isinstance(workers, str) else list(workers)
    if on_worker_failure not in {"log", "exit"}:
        raise InvalidSettingError(f"on_worker_failure is {on_worker_failure!r}; use log or exit")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:  # noqa: ARG001
        async with CommandBus.connect(
            dsn, settings=settings, retry_policy=retry_policy, data_dir=data_dir,
            handlers=handlers, middleware=middleware,
        ) as bus:  # fmt: skip
            state: dict[str, Any] = {STATE: bus, NOT_READY: NotReady()}
            running = _Workers(bus, state[NOT_READY], on_worker_failure)
            await running.start(domains, concurrency)
            try:
                yield state
            finally:
                await running.stop()

    return lifespan


class NotReady:
    """Why this process is not ready; empty while it is. Requests share it: they copy the state."""

    def __init__(self) -> None:
        self.reason = ""

    def __str__(self) -> str:
        return self.reason

    def __bool__(self) -> bool:
        return bool(self.reason)


class _Workers:
    """The workers of one process of a server."""

    def __init__(self, bus: CommandBus, not_ready: NotReady, on_failure: OnWorkerFailure) -> None:
        self._bus = bus
        self._not_ready = not_ready
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def start(self, domains: Sequence[str], concurrency: int) -> None:
        """Start them; what is wrong with one from the start ends the start of the application."""
        for domain in domains:
            if domain not in self._bus.domains:
                raise InvalidInputError(
                    f"workers names {domain}, which has no handlers; give them as handlers="
                )
        for domain in domains:
            work = self._bus.run_worker(domain, concurrency=concurrency)
            task = asyncio.create_task(work, name=f"commandbus-worker-{domain}")
            self._tasks.append(task)
        try:
            await self._started()
        except BaseException:
            await self.stop()
            raise
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def _started(self) -> None:
        workers = self._bus._workers.running
        while sum(worker.started.is_set() for worker in workers) < len(self._tasks):
            ended, _ = await asyncio.wait(self._tasks, timeout=0.02)
            for task in ended:
                task.result()
                raise InvalidInputError(f"{task.get_name()} ended as soon as it was started")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._is_stopping or task.cancelled():
            return
        error = task.exception()
        text = "it ended" if error is None else f"{type(error).__name__}: {error}"
        self._not_ready.reason = f"{task.get_name()} has failed: {redact_text(text)}"
        _log.critical("%s", self._not_ready.reason)
        if self._on_failure == "exit":
            # The server ends as it always does: requests first, then this lifespan.
            os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        """Let them finish what they run, then end."""
        self._is_stopping = True
        if self._tasks:
            await self._bus.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def combine(*lifespans: Lifespan | _AnyLifespan) -> Lifespan:
    """One lifespan out of several: opened from the first to the last, closed the other way.

    Their states are put together.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            state: dict[str, Any] = {}
            for each in lifespans:
                found = await stack.enter_async_context(each(app))
                if found is not None:
                    state.update(found)
            yield state

    return lifespan

"""Worker: starts the parts, and stops them in the right order. Workers: those of one bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commandbus.commands.drafted import outgoing
from commandbus.commands.preparing import Preparer
from commandbus.database.store import Store
from commandbus.handler import SendPreparer
from commandbus.handlers.registry import HandlerRegistry
from commandbus.handlers.scopes import OpenResources
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings
from commandbus.worker.emptying import Emptying, UntilEmpty
from commandbus.worker.metered import Plain
from commandbus.worker.options import WorkerOptions, new_worker_id
from commandbus.worker.parts import ABORT_GRACE_SECONDS, Parts
from commandbus.worker.shared import Shared
from commandbus.worker.transactions import check_providers
from commandbus.worker.watching import own_work, watchers_of

if TYPE_CHECKING:
    from commandbus.monitoring.monitor import Monitor

_log = logging.getLogger("commandbus.worker")


@dataclass(eq=False)
class Worker:
    """Processes the commands of one domain until stopped."""

    store: Store
    registry: HandlerRegistry
    options: WorkerOptions
    settings: Settings
    default_policy: RetryPolicy
    prepare: SendPreparer
    worker_id: str = field(default_factory=new_worker_id)
    #: What it has together with the other workers of its bus; None: it is the only one.
    shared: Shared | None = None
    #: What measures it; None: nothing does.
    monitor: Monitor | None = None
    #: How it ends with others once nothing is left; None: it runs until it is stopped.
    until_empty: UntilEmpty | None = None
    #: What a test takes in place of some parts; None: the usual ones.
    parts: Plain | None = None
    #: Set once the worker takes commands, and once it has ended.
    started: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _parts: Parts | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether handlers that do not end have taken all threads, or all connections."""
        return self._parts is not None and self._parts.is_stuck

    def stop(self) -> None:
        """Ask for a graceful stop: nothing new is leased, what runs may finish."""
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped. Cancelling cancels the handlers, and still gives the leases back."""
        domain = self.options.domain
        try:
            graph = self.registry.resources_for(domain)
            shared = self.shared or Shared(self.store, self.settings, self.registry)
            async with AsyncExitStack() as stack:
                entries = self.registry.of_domain(domain)
                stack.enter_context(own_work(watchers_of(entries)))
                await stack.enter_async_context(shared.used())
                handlers = shared.control
                await check_providers(entries, shared.control)
                if any(entry.needs_pool for entry in entries):
                    handlers = await shared.handlers(self.options.concurrency, stack)
                await shared.set_up(domain, self.registry.secret_keys(domain))
                parts = Parts(self, shared, handlers)
                if graph is not None:
                    # Closed before the connections, and after the last handler has ended.
                    parts.execution.resources = resources = OpenResources(graph)
                    await resources.open(stack)
                await self._run_parts(parts)
        finally:
            self.finished.set()
        if self.until_empty is not None and self.until_empty.error is not None:
            raise self.until_empty.error

    async def _run_parts(self, parts: Parts) -> None:
        self._parts = parts
        parts.start()
        _log.info("worker %s serves %s", self.worker_id, self.options.domain)
        self.started.set()
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(agent) for agent in parts.background()]
                receiving = group.create_task(parts.receiver.run())
                try:
                    await self._stop.wait()
                    await self._stop_gracefully(parts, receiving)
                finally:
                    await self._give_back(parts, receiving)
                    for task in background:
                        task.cancel()
        finally:
            await parts.stop()
            parts.executor.end()
            await parts.say_goodbye()
            _log.info("worker %s has stopped", self.worker_id)

    async def _stop_gracefully(self, parts: Parts, receiving: asyncio.Task[None]) -> None:
        parts.receiver.stop()
        parts.executor.close()
        # wait() and not await: a cancel of this task must not cancel the receive on its way.
        await asyncio.wait([receiving])
        grace = self.settings.shutdown_grace_seconds
        try:
            async with asyncio.timeout(grace):
                await parts.executor.drained()
                # If the database is away for a moment, the results must not be lost.
                await parts.completer.drained()
        except TimeoutError:
            _log.warning("handlers still running after %g s are cancelled", grace)

    async def _give_back(self, parts: Parts, receiving: asyncio.Task[None]) -> None:
        parts.receiver.stop()
        parts.executor.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_GRACE_SECONDS):
                # A receive that is on its way still brings leases, which must go back.
                await asyncio.wait([receiving])
                parts.executor.cancel_running()
                await parts.executor.drained()
                await parts.completer.drained()
        receiving.cancel()


@dataclass(slots=True)
class Workers:
    """The workers of one bus."""

    store: Store
    registry: HandlerRegistry
    settings: Settings
    default_policy: RetryPolicy
    preparer: Preparer
    #: Called before each worker begins: what the database must know of this process.
    on_start: Callable[[], Awaitable[None]] | None = None
    #: What measures those that are started from now on; None: nothing does.
    monitor: Monitor | None = None
    running: set[Worker] = field(default_factory=set)
    shared: Shared = field(init=False)
    emptying: Emptying = field(default_factory=Emptying)
    _stops: int = 0  # calls of `stop` that have not returned

    def __post_init__(self) -> None:
        self.shared = Shared(self.store, self.settings, self.registry)
        self.shared.marks = self.preparer.marks

    def new(self, options: WorkerOptions) -> Worker:
        """A worker that is to be run."""
        worker = Worker(
            self.store,
            self.registry,
            options,
            settings=self.settings,
            default_policy=self.default_policy,
            prepare=outgoing(self.preparer),
            shared=self.shared,
            monitor=self.monitor,
        )
        if options.until_empty:
            worker.until_empty = UntilEmpty(
                options.domain, options.include_delayed, self.emptying, stop=worker.stop
            )
        return worker

    async def run(self, options: WorkerOptions) -> None:
        """Run a new worker until it is stopped."""
        await self.serve(self.new(options))

    async def serve(self, worker: Worker) -> None:
        """Run one worker until it is stopped; one that is started while others stop ends too."""
        if self._stops:
            worker.finished.set()
            # Others get their turn, should somebody start workers again and again.
            return await asyncio.sleep(0)
        self.running.add(worker)
        if worker.until_empty is not None:
            # Before anything is waited for: workers that are started at once must know each other.
            self.emptying.join(worker.until_empty)
        try:
            if self.on_start is not None:
                await self.on_start()
            await worker.run()
        finally:
            worker.finished.set()
            self.running.discard(worker)
            if worker.until_empty is not None:
                self.emptying.leave(worker.until_empty)

    def measure(self, monitor: Monitor) -> None:
        """Measure those that are started from now on."""
        self.monitor = self.shared.monitor = monitor

    async def stop(self) -> None:
        """Stop all of them gracefully, and wait until they have ended."""
        self._stops += 1
        if self.monitor is not None:
            self.monitor.health.is_stopping = True
        try:
            workers = list(self.running)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*(worker.finished.wait() for worker in workers))
        finally:
            self._stops -= 1
            if self.monitor is not None:
                self.monitor.health.is_stopping = self._stops > 0

    def started(self) -> list[str]:
        """The domains whose worker takes commands."""
        return sorted({w.options.domain for w in self.running if w.started.is_set()})

    def stuck(self) -> list[str]:
        """The domains whose worker has no place left for some of its handlers."""
        return sorted({worker.options.domain for worker in self.running if worker.is_stuck})

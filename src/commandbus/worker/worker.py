"""Worker: starts the parts, and stops them in the right order. Workers: those of one bus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commandbus.commands.drafted import outgoing
from commandbus.commands.preparing import Preparer
from commandbus.database.model import Lease
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.handler import SendPreparer
from commandbus.handlers.registry import HandlerRegistry
from commandbus.handlers.scopes import OpenResources
from commandbus.names import cancels_channel, wakeup_channel
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings
from commandbus.worker.cancels import CancelWatch
from commandbus.worker.completer import Completer
from commandbus.worker.emptying import Emptying, UntilEmpty
from commandbus.worker.executor import Executor
from commandbus.worker.lease import LeaseKeeper
from commandbus.worker.metered import Plain, measures_of
from commandbus.worker.options import WorkerOptions, new_worker_id
from commandbus.worker.receiver import Receiver
from commandbus.worker.shared import Shared
from commandbus.worker.transactions import check_providers
from commandbus.worker.watching import own_work, tell_received, watchers_of

if TYPE_CHECKING:
    from commandbus.monitoring.monitor import Monitor

#: How long leases may take to be given back after a cancel, in seconds.
ABORT_GRACE_SECONDS = 2.0

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
    _parts: _Parts | None = None

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
                parts = _Parts(self, shared, handlers)
                if graph is not None:
                    # Closed before the connections, and after the last handler has ended.
                    parts.execution.resources = resources = OpenResources(graph)
                    await resources.open(stack)
                await self._run_parts(parts)
        finally:
            self.finished.set()
        if self.until_empty is not None and self.until_empty.error is not None:
            raise self.until_empty.error

    async def _run_parts(self, parts: _Parts) -> None:
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

    async def _stop_gracefully(self, parts: _Parts, receiving: asyncio.Task[None]) -> None:
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

    async def _give_back(self, parts: _Parts, receiving: asyncio.Task[None]) -> None:
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


class _Parts:
    """The agents of one worker, wired to one another. It is the Room that the receiver fills."""

    def __init__(self, worker: Worker, shared: Shared, handlers: Store) -> None:
        options, settings = worker.options, worker.settings
        control = shared.control
        self._worker = worker
        self._shared = shared
        self._store = control
        self.domain = options.domain
        measures = self._measures = worker.parts or measures_of(
            worker.monitor, self.domain, worker.registry
        )
        self.completer = Completer(measures.settles(control), self.domain, on_settled=self._ended)
        self.receiver = Receiver(
            control,
            self,
            options.domain,
            worker=worker.worker_id,
            vt_seconds=options.vt_seconds,
            limits=lambda: worker.registry.limits(options.domain),
            mark_in_progress=settings.mark_in_progress,
            poll_max_seconds=settings.poll_max_seconds,
            announce_idle=self.beat if options.use_notify else None,
            count_every=lambda: worker.registry.count_every(options.domain, worker.default_policy),
            due_in=shared.due_in,
            until_empty=worker.until_empty,
            with_due=worker.monitor is not None,
        )
        self.execution = measures.execution(
            control,
            transactions=handlers,
            registry=worker.registry,
            prepare=worker.prepare,
            default_policy=worker.default_policy,
            max_result_bytes=settings.max_payload_bytes,
            max_threads=options.concurrency,
            on_extended=self._extended,
            timeout_seconds=settings.handler_timeout,
            deadline_seconds=settings.lease_deadline_seconds,
            worker_id=worker.worker_id,
        )
        self.executor = Executor(
            control,
            self.execution,
            self.completer,
            on_room=self.receiver.room_freed,
            on_ended=self._ended,
            on_early=self._keep_on,
            concurrency=options.concurrency,
            max_prefetch=settings.max_prefetch,
        )
        self.keeper = LeaseKeeper(
            shared.leases,
            options.domain,
            vt_seconds=options.vt_seconds,
            deadline_seconds=settings.lease_deadline_seconds,
            on_lost=measures.on_lost(self.executor.lose),
            on_overdue=self.executor.overdue,
            on_canceled=self.executor.cancel,
        )
        self.executor.on_progress = self.keeper.say
        self.cancels = CancelWatch(
            control, options.domain, lambda: self.executor.leases, self.executor.cancel
        )
        self._watchers = watchers_of(worker.registry.of_domain(self.domain))
        self._until_empty = worker.until_empty
        if self._until_empty is not None:
            self._until_empty.wake = self.receiver.wake
            self._until_empty.is_quiet = self._is_quiet

    def _is_quiet(self) -> bool:
        return not self.executor.in_flight and not self.completer.backlog

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the receiver."""
        return [self.completer.run(), self._shared.broken()]

    def start(self) -> None:
        """Begin to be one of the workers of the bus."""
        self.keeper.start()
        self._measures.start(self.executor)
        self._shared.add(self, self._hints())

    async def stop(self) -> None:
        """Cease to be one."""
        self._measures.stop()
        self._shared.remove(self, self._hints())
        await self.cancels.stop()
        await self.keeper.stop()

    def _hints(self) -> dict[str, Callable[[], None]]:
        if not self._worker.options.use_notify:
            return {}
        return {
            cancels_channel(self.domain): self.cancels.hint,
            wakeup_channel(self.domain): self._hint,
        }

    def _hint(self) -> None:
        self.receiver.wake()
        if self.executor.has_unstarted:
            self._shared.look_for_pauses()

    @property
    def has_begun(self) -> bool:
        return self.receiver.has_asked

    @property
    def is_stuck(self) -> bool:
        return self.executor.is_stuck

    @property
    def has_unstarted(self) -> bool:
        return self.executor.has_unstarted

    def give_back_unstarted(self, types: Collection[str] | None = None) -> int:
        return self.executor.release_unstarted(types)

    def give_back_aged(self) -> None:
        self.executor.release_aged()

    def wanted(self) -> int:
        return self.executor.wanted()

    def places(self) -> int:
        return self.executor.places()

    def submit(self, leases: Sequence[Lease], asked_at: float) -> None:
        if self._watchers:
            tell_received(self._watchers, leases, time.monotonic() - asked_at)
        self.keeper.add(leases, asked_at)
        self.executor.submit(leases)

    def release(self, leases: Sequence[Lease]) -> None:
        self.executor.release(leases)

    def _ended(self, leases: Sequence[Lease]) -> None:
        self.keeper.remove(leases)
        for lease in leases:
            if lease.is_limited:
                # Others may wait for the place that has just been given back, or for their turn.
                self.receiver.wake()
                break
        else:
            self.receiver.room_freed()
        if self._until_empty is not None:
            self._until_empty.committed(is_idle=not self.executor.in_flight)

    def _keep_on(self, lease: Lease) -> None:
        self.keeper.keep_on(lease)

    def left_out(self) -> Sequence[str]:
        if not self.executor.leaves_threads_out:
            return ()
        return self.execution.thread_types(self._worker.options.domain)

    def _extended(self, lease: Lease, seconds: float) -> None:
        self.keeper.set_expiry(lease, seconds)

    async def beat(self) -> None:
        """Tell the database that this worker lives, and whether it waits."""
        await self._store.heartbeat(**self.figures())

    def figures(self) -> dict[str, Any]:
        """What a heartbeat says."""
        options = self._worker.options
        return {
            "worker": self._worker.worker_id,
            "domain": options.domain,
            # A worker that does not listen needs no wake-ups: each one delays all commits.
            "is_idle": self.receiver.is_idle and options.use_notify,
            "concurrency": options.concurrency,
            "in_flight": self.executor.in_flight,
            "stuck": self.executor.stuck,
        }

    async def say_goodbye(self) -> None:
        """Take this worker off the list; if that fails, it is taken for gone after a while."""
        with suppress(CommandBusError, TimeoutError):
            async with asyncio.timeout(ABORT_GRACE_SECONDS):
                await self._store.worker_gone(self._worker.worker_id)

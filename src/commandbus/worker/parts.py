"""The parts of one worker: receiver, executor, completer, lease keeper, and how they meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from commandbus._version import __version__
from commandbus.database.model import Lease
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.names import cancels_channel, wakeup_channel
from commandbus.worker.cancels import CancelWatch
from commandbus.worker.completer import Completer
from commandbus.worker.executor import FEW, Executor
from commandbus.worker.lease import LeaseKeeper
from commandbus.worker.metered import measures_of
from commandbus.worker.receiver import Receiver
from commandbus.worker.shared import Shared
from commandbus.worker.watching import tell_received, watchers_of

if TYPE_CHECKING:
    from commandbus.worker.worker import Worker

#: How long leases may take to be given back after a cancel, in seconds.
ABORT_GRACE_SECONDS = 2.0


class Parts:
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
        self.completer.refills = self.receiver
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
            # With more places than few each end asks the receiver, and nothing in between.
            on_room=self.receiver.room_freed if options.concurrency > FEW else self._room_freed,
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
        watchers = watchers_of(worker.registry.of_domain(self.domain))
        self._watchers = tuple(each for each in watchers if each.sees_receives)
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

    def has_few(self) -> bool:
        return self.executor.has_few()

    def places(self) -> int:
        return self.executor.places()

    def submit(self, leases: Sequence[Lease], asked_at: float) -> None:
        if self._watchers:
            tell_received(self._watchers, leases, time.monotonic() - asked_at)
        self.keeper.add(leases, asked_at)
        self.executor.submit(leases)

    def release(self, leases: Sequence[Lease]) -> None:
        self.executor.release(leases)

    def _room_freed(self) -> None:
        # Of few places one is filled with the commit that ends its command; then _ended follows.
        if not (self.completer.will_refill and self.executor.has_few()):
            self.receiver.room_freed()

    def _ended(self, leases: Sequence[Lease]) -> None:
        self.keeper.remove(leases)
        for lease in leases:
            if lease.is_limited:
                # Others may wait for the place that has just been given back, or for their turn.
                self.receiver.places_freed()
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
        figures = self.figures()
        try:
            await self._store.heartbeat(**figures)
        except BaseException:
            self.unheard(figures)
            raise

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
            "more": {
                "version": __version__,
                **({"stuck_types": self._stuck_types()} if self.executor.stuck else {}),
                **self.completer.totals.take(),
            },
        }

    def _stuck_types(self) -> list[str]:
        abandoned = {run.lease.command_type for run in self.executor.abandoned}
        return sorted(self.execution.stuck_types | abandoned)

    def unheard(self, figures: Mapping[str, Any]) -> None:
        self.completer.totals.give_back(figures["more"])

    async def say_goodbye(self) -> None:
        """Take this worker off the list; if that fails, it is taken for gone after a while."""
        with suppress(CommandBusError, TimeoutError):
            async with asyncio.timeout(ABORT_GRACE_SECONDS):
                if not self._shared.is_broken:
                    await self.beat()  # with what has ended since the last one
                await self._shared.tell_counts()
                await self._store.worker_gone(self._worker.worker_id)

"""Metered parts of a worker: they take the place of the plain ones when somebody measures.

So a worker that nobody measures has no call more than without metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import ReceiveOptions, Store
from commandbus.handler import HandlerEntry
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import Command
from commandbus.monitoring.catalogue import POOL, SLOTS, STUCK, Family
from commandbus.monitoring.metrics import Ended, Metrics, Times
from commandbus.monitoring.samples import Labels, Value
from commandbus.worker.completer import Settles
from commandbus.worker.execution import Execution
from commandbus.worker.executor import Executor
from commandbus.worker.running import Run

if TYPE_CHECKING:
    from commandbus.monitoring.monitor import Monitor

OnLost = Callable[[Lease, str], None]

OUTCOME_OF = {
    OutcomeKind.COMPLETE: "completed",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.PARK: "parked",
    OutcomeKind.FAIL: "failed",
    OutcomeKind.RELEASE: "released",
    OutcomeKind.SNOOZE: "snoozed",
    OutcomeKind.DISCARD: "discarded",
}


@dataclass(eq=False, slots=True)
class MeteredExecution(Execution):
    """Knows how long commands waited for their handlers, and how long these ran."""

    metrics: Metrics | None = None
    domain: str = ""

    def __post_init__(self) -> None:
        if self.metrics is not None:
            self.run_type = metered_run(self.metrics.times(self.domain))

    async def _run_in_transaction(
        self, run: Run, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        return self._counted(run, await Execution._run_in_transaction(self, run, entry, command))

    async def _run_in_thread_transaction(
        self, run: Run, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        return self._counted(
            run, await Execution._run_in_thread_transaction(self, run, entry, command)
        )

    def _counted(self, run: Run, outcome: Outcome | None) -> Outcome | None:
        if outcome is None and not run.is_abandoned and self.metrics is not None:
            # It was committed together with what the handler wrote; nobody settles it again.
            lease = run.lease
            self.metrics.ended(lease.domain, lease.command_type, "completed", lease.attempt)
        return outcome


def metered_run(times: Times) -> type[Run]:
    """Runs that tell how long they waited and took: no coroutine is around them for that."""
    handled, waited = times.handled, times.waited
    now, begin, end = time.monotonic, Run.begin, Run.end

    class MeteredRun(Run):
        began_at: float = 0.0

        def begin(self, entry: HandlerEntry, timeout_seconds: float) -> float:
            self.began_at = began = begin(self, entry, timeout_seconds)
            lease = self.lease
            due_at = lease.due_at
            if due_at is not None:  # now, and not when the handler ends: that may take hours
                waited[lease.command_type].append(began - due_at if began > due_at else 0.0)
            return began

        def end(self) -> None:
            handled[self.lease.command_type].append(now() - self.began_at)
            end(self)

    return MeteredRun


class MeteredSettling:
    """Counts outcomes when they are committed: what is decided and not written has not happened."""

    def __init__(self, store: Settles, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write them; returns the commands whose lease is lost."""
        began = time.monotonic()
        lost = await self._store.settle(domain, outcomes)
        self._count(domain, outcomes, lost, began)
        return lost

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
    ) -> tuple[set[UUID], list[Lease]]:
        """The same, and what was leased in the places that they have given back."""
        began = time.monotonic()
        lost, leases = await self._store.settle_and_receive(domain, outcomes, options)
        self._count(domain, outcomes, lost, began)
        return lost, leases

    def _count(
        self, domain: str, outcomes: Sequence[Outcome], lost: set[UUID], began: float
    ) -> None:
        self._metrics.settled(domain, time.monotonic() - began)
        completed = OutcomeKind.COMPLETE  # nearly all: those are told here, without a call
        self._metrics.ended_together(
            domain,
            [
                (each.lease.command_type, "completed", each.lease.attempt, None)
                if each.kind is completed and not lost
                else _ended(each, lost)
                for each in outcomes
            ],
        )
        for outcome in outcomes:
            if outcome.sends and outcome.lease.command_id not in lost:
                self._count_sends(outcome)

    def _count_sends(self, outcome: Outcome) -> None:
        for each in outcome.sends:
            types = [command.command_type for command in each.commands]
            self._metrics.sent(each.domain, types, None)


def _ended(outcome: Outcome, lost: Collection[UUID]) -> Ended:
    lease, kind, failure = outcome.lease, outcome.kind, outcome.failure
    if lost and lease.command_id in lost:
        return lease.command_type, "stale", lease.attempt, None
    name = OUTCOME_OF[kind]
    return lease.command_type, name, lease.attempt, None if failure is None else failure.code


class Plain:
    """The parts of a worker that nobody measures."""

    metrics: Metrics | None = None

    def settles(self, store: Store) -> Settles:
        """Where the completer writes."""
        return store

    @property
    def execution(self) -> Callable[..., Execution]:
        """What runs handlers."""
        return Execution

    def on_lost(self, lose: OnLost) -> OnLost:
        """What is called when a lease is lost."""
        return lose

    def start(self, executor: Executor) -> None:
        """The worker begins."""

    def stop(self) -> None:
        """It has ended."""


class Measured(Plain):
    """The same of one that is measured."""

    def __init__(self, metrics: Metrics, domain: str, registry: HandlerRegistry) -> None:
        self.metrics = self._metrics = metrics
        self._domain = domain
        self._registry = registry
        self._executor: Executor | None = None

    def settles(self, store: Store) -> Settles:
        """Where the completer writes."""
        return MeteredSettling(store, self._metrics)

    @property
    def execution(self) -> Callable[..., Execution]:
        """What runs handlers."""
        return partial(MeteredExecution, metrics=self._metrics, domain=self._domain)

    def on_lost(self, lose: OnLost) -> OnLost:
        """What is called when a lease is lost."""

        def count(lease: Lease, why: str) -> None:
            self._metrics.lease_lost(self._domain)
            lose(lease, why)

        return count

    def start(self, executor: Executor) -> None:
        """Show its types, with zeros, and its slots."""
        self._executor = executor
        types = [entry.command_type for entry in self._registry.of_domain(self._domain)]
        self._metrics.know(self._domain, types)
        self._metrics.collect(self._samples)

    def stop(self) -> None:
        """Show its slots no more."""
        self._metrics.uncollect(self._samples)

    def _samples(self) -> Iterable[tuple[Family, Labels, Value]]:
        return () if self._executor is None else slot_samples(self._domain, self._executor)


def measures_of(monitor: Monitor | None, domain: str, registry: HandlerRegistry) -> Plain:
    """Those of a worker that this monitor measures, if there is one."""
    return Plain() if monitor is None else Measured(monitor.metrics, domain, registry)


def slot_samples(domain: str, executor: Executor) -> Iterator[tuple[Family, Labels, Value]]:
    """How many places of a worker are taken; from any thread."""
    running, held = len(executor._running), executor._held
    yield SLOTS, (domain, "busy"), running
    yield SLOTS, (domain, "buffered"), executor.in_flight - running
    yield SLOTS, (domain, "free"), max(executor.concurrency - running - held, 0)
    yield STUCK, (domain,), executor.stuck


def pool_samples(stores: Mapping[str, Store | None]) -> Iterator[tuple[Family, Labels, Value]]:
    """How many connections the pools have; from any thread."""
    for name, store in stores.items():
        if store is None or not store.has_gateway:
            continue
        pool = store.gateway.pool
        stats = pool.get_stats()
        yield POOL["max"], (name,), pool.max_size
        yield POOL["size"], (name,), stats.get("pool_size", 0)
        yield POOL["available"], (name,), stats.get("pool_available", 0)
        yield POOL["waiting"], (name,), stats.get("requests_waiting", 0)

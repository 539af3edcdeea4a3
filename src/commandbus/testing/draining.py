"""drain: work off what is due on a bus, on PostgreSQL or in memory, and say what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, overload
from uuid import UUID

import orjson
from psycopg import sql

from commandbus.blocking import BlockingBus
from commandbus.bus import CommandBus
from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import ReceiveOptions, Store
from commandbus.errors import InvalidOperationError
from commandbus.handler import HandlerContext, HandlerEntry
from commandbus.names import commands_queue, physical_queue
from commandbus.testing.helpers import PATIENCE_SECONDS, due_times
from commandbus.testing.memory import InMemoryStore
from commandbus.worker.completer import Settles
from commandbus.worker.execution import Execution
from commandbus.worker.executor import Executor
from commandbus.worker.metered import OUTCOME_OF, MeteredExecution, Plain, measures_of
from commandbus.worker.options import WorkerOptions
from commandbus.worker.running import Run

#: Who made waiting commands due, in the audit.
ACTOR = "drain"
#: Leases of these workers, in seconds: long enough for somebody who looks around in a debugger.
LEASE_SECONDS = 3_600
#: Commands that are made due at once.
MAX_DUE = 10_000


@dataclass(frozen=True, slots=True)
class Drained:
    """One attempt at a command, and how it ended: completed, retried, parked, failed, snoozed or
    discarded.
    """

    domain: str
    command_type: str
    command_id: UUID
    attempt: int
    outcome: str
    #: What the handler returned, as the reply has it.
    result: Any = None
    error_code: str | None = None
    error_message: str | None = None


@overload
def drain(
    bus: BlockingBus,
    *domains: str,
    skip_waits: bool = False,
    concurrency: int = 10,
    timeout: float = PATIENCE_SECONDS,
) -> list[Drained]: ...


@overload
def drain(
    bus: CommandBus,
    *domains: str,
    skip_waits: bool = False,
    concurrency: int = 10,
    timeout: float = PATIENCE_SECONDS,
) -> Coroutine[Any, Any, list[Drained]]: ...


def drain(
    bus: CommandBus | BlockingBus,
    *domains: str,
    skip_waits: bool = False,
    concurrency: int = 10,
    timeout: float = PATIENCE_SECONDS,
) -> list[Drained] | Coroutine[Any, Any, list[Drained]]:
    """Run what is due (in these domains, or in all that have handlers) until nothing is left.

    Returns each attempt, in the order in which they ended. With `skip_waits` what is delayed or
    backs off is made due too: on PostgreSQL by giving it another time, because there the time is
    the server's; in memory by advancing the clock. A TimeoutError names the handler that hangs.
    To be awaited for a CommandBus; for a BlockingBus it waits itself.
    """
    if isinstance(bus, BlockingBus):
        own = bus._bridge.open()
        return bus._bridge.run(_Drain(own, domains, concurrency, timeout).run(skip_waits))
    return _Drain(bus, domains, concurrency, timeout).run(skip_waits)


class _Drain:
    def __init__(
        self, bus: CommandBus, domains: Sequence[str], concurrency: int, timeout: float
    ) -> None:
        self._bus = bus
        self._domains = tuple(dict.fromkeys(domains or bus.domains))
        if not self._domains:
            raise InvalidOperationError(
                "this bus has no handlers, so nothing would run; include them first, or name the "
                "domains to drain"
            )
        self._concurrency = concurrency
        self._timeout = timeout
        self._ends_at = time.monotonic() + timeout
        self._done: list[Drained] = []

    async def run(self, skip_waits: bool) -> list[Drained]:
        self._ends_at = time.monotonic() + self._timeout
        await self._work()
        while skip_waits and await self._make_due():
            await self._work()
        await self._bus._completions.step()
        return self._done

    async def _work(self) -> None:
        """Workers that end together once nothing is due in any of the domains."""
        workers = self._bus._workers
        watches, tasks = [], []
        for domain in self._domains:
            worker = workers.new(
                WorkerOptions(domain, self._concurrency, LEASE_SECONDS, False, until_empty=True)
            )
            plain = measures_of(worker.monitor, domain, worker.registry)
            worker.parts = watch = _Watch(plain, self._done)
            watches.append(watch)
            tasks.append(asyncio.create_task(workers.serve(worker)))
        try:
            left = max(self._ends_at - time.monotonic(), 0.0)
            # Not asyncio.timeout: it would cancel the handlers before they can be named.
            done, late = await asyncio.wait(
                tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if late:
                raise TimeoutError(self._why([run for each in watches for run in each.running]))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _why(self, running: Sequence[Run]) -> str:
        late = f"drain did not come to an end in {self._timeout:g} s: "
        if running:
            names = ", ".join(dict.fromkeys(_name(run) for run in running))
            return f"{late}still running: {names}"
        if not self._done:
            return f"{late}no handler has begun"
        last = self._done[-1]
        return (
            f"{late}{len(self._done)} attempts ended, at last {last.command_type} of {last.domain} "
            f"({last.outcome}); does its handler send itself, or snooze, without end?"
        )

    async def _make_due(self) -> bool:
        """Skip the time until the next command is due; False: none waits."""
        store = self._bus._store
        if not isinstance(store, InMemoryStore):
            moved = [await _make_due(store, domain) for domain in self._domains]
            return any(moved)
        later = due_times(store, self._domains)
        if later:
            store.clock.advance_to(min(later))
        return bool(later)


async def _make_due(store: Store, domain: str) -> int:
    gateway = store.gateway
    schema = sql.Identifier(gateway.settings.schema)
    queue = sql.Identifier(f"q_{physical_queue(commands_queue(domain))}")
    waiting = sql.SQL(
        "select c.command_id from pgmq.{queue} q"
        "  join {schema}.command_bus_command c on c.domain = %s and c.msg_id = q.msg_id"
        " where q.vt > clock_timestamp() and q.vt < 'infinity'"
        "   and c.status = 'PENDING' and c.leased_by is null"
        " order by q.vt limit %s"
    ).format(queue=queue, schema=schema)
    async with gateway.transaction(domain) as session:
        rows = await (await session.conn.execute(waiting, (domain, MAX_DUE))).fetchall()
        ids = [row[0] for row in rows]
        # Not strict: what cannot get a time waits for something else than time.
        moving = sql.SQL("select {schema}.reschedule_commands(%s, %s, null, 0, %s, false)").format(
            schema=schema
        )
        moved = await (await session.conn.execute(moving, (domain, ids, ACTOR))).fetchall()
    return len(moved)


@dataclass(eq=False, slots=True)
class _Execution(MeteredExecution):
    """Keeps the outcomes that are committed together with what a handler wrote."""

    keep: Callable[[Outcome], None] = lambda _: None
    decided: dict[UUID, Outcome] = field(default_factory=dict)

    async def run(self, run: Run) -> Outcome | None:
        """Execute one command."""
        outcome = await MeteredExecution.run(self, run)
        decided = self.decided.pop(run.lease.command_id, None)
        if outcome is None and not run.is_abandoned:
            self.keep(decided or Outcome(run.lease, OutcomeKind.COMPLETE))
        return outcome

    async def _outcome_of(
        self, run: Run, entry: HandlerEntry, context: HandlerContext, driver: object = None
    ) -> Outcome:
        outcome = await MeteredExecution._outcome_of(self, run, entry, context, driver)
        self.decided[run.lease.command_id] = outcome
        return outcome


class _Watch(Plain):
    """The parts of a worker, seen by the one who drains; measured too if the bus is."""

    def __init__(self, plain: Plain, done: list[Drained]) -> None:
        self._plain = plain
        self._done = done
        self._store: Settles | None = None
        self._executor: Executor | None = None

    @property
    def running(self) -> list[Run]:
        """What runs now."""
        return [] if self._executor is None else list(self._executor._running.values())

    def keep(self, outcome: Outcome) -> None:
        """This is committed."""
        if outcome.kind is OutcomeKind.RELEASE:
            return  # given back: it counts as not tried
        lease, failure = outcome.lease, outcome.failure
        self._done.append(
            Drained(
                lease.domain, lease.command_type, lease.command_id, lease.attempt,
                OUTCOME_OF[outcome.kind], orjson.loads(outcome.result),
                None if failure is None else failure.code,
                None if failure is None else failure.message,
            )
        )  # fmt: skip

    def settles(self, store: Store) -> Settles:
        """Where the completer writes."""
        self._store = self._plain.settles(store)
        return self

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes, and keep those that were written."""
        assert self._store is not None
        lost = await self._store.settle(domain, outcomes)
        self._keep_all(outcomes, lost)
        return lost

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
    ) -> tuple[set[UUID], list[Lease]]:
        """The same, and what was leased in the places that they have given back."""
        assert self._store is not None
        lost, leases = await self._store.settle_and_receive(domain, outcomes, options)
        self._keep_all(outcomes, lost)
        return lost, leases

    def _keep_all(self, outcomes: Sequence[Outcome], lost: set[UUID]) -> None:
        for outcome in outcomes:
            if outcome.lease.command_id not in lost:
                self.keep(outcome)

    @property
    def execution(self) -> Callable[..., Execution]:
        """What runs handlers."""
        return partial(_Execution, metrics=self._plain.metrics, keep=self.keep)

    def on_lost(self, lose: Callable[[Lease, str], None]) -> Callable[[Lease, str], None]:
        """What is called when a lease is lost."""
        return self._plain.on_lost(lose)

    def start(self, executor: Executor) -> None:
        """The worker begins."""
        self._executor = executor
        self._plain.start(executor)

    def stop(self) -> None:
        """It has ended."""
        self._plain.stop()


def _name(run: Run) -> str:
    handler = None if run.found is None else run.found.handler
    named = f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', handler)}"
    return f"{run.lease.command_type} of {run.lease.domain} (handler {named})"

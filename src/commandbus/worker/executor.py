"""Executor: which leased command runs when. Never more handlers at once than `concurrency`.

A command whose lease lapsed twice in a row is a suspect: it may have killed its worker. Suspects
run alone, one by one, so that it is known which command does that.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.logging import HANDLED
from commandbus.privacy.redaction import redact_text
from commandbus.worker.completer import Completer
from commandbus.worker.execution import Execution
from commandbus.worker.places import ThreadPlaces
from commandbus.worker.running import Key, OnProgress, Run, TimeOuts

#: What is leased ahead is at most what the handlers get through in this many seconds.
PREFETCH_SECONDS = 0.05
#: Up to this number leased at once are few: a commit more costs the server more than they do.
FEW = 8
#: How long a suspect waits for running handlers to end; then it runs beside them, unconfirmed.
#: And how long the others wait for a suspect that runs alone.
SUSPECT_PATIENCE_SECONDS = 5.0
#: Commands that have not started go back to the queue after this, if handlers have become slow.
MAX_BUFFERED_SECONDS = 2.0

_log = logging.getLogger("commandbus.worker")


@dataclass(eq=False)
class Executor:
    """Starts executions as there is room, and hands on how each lease ended."""

    store: Store
    execution: Execution
    completer: Completer
    on_room: Callable[[], None]  # a handler has ended
    on_ended: Callable[[Sequence[Lease]], None]  # these leases need not be extended any more
    on_early: Callable[[Lease], None]  # this lease must be extended on
    concurrency: int
    max_prefetch: int
    on_progress: OnProgress | None = None  # a handler says how far it has come

    def __post_init__(self) -> None:
        self._buffer: deque[Lease] = deque()
        self._buffered_since = time.monotonic()
        self._suspects: deque[Lease] = deque()
        self._suspects_since = 0.0
        self._alone: Key | None = None  # the suspect that nothing may run beside
        self._running: dict[Key, Run] = {}
        deadline, worker = self.execution.deadline_seconds, self.execution.worker_id
        self._timeouts = TimeOuts(self._running, deadline, self._abandon, worker)
        #: Async handlers that did not end after their time-out; those with a transaction keep
        #: their slot, because they keep a connection.
        self.abandoned: set[Run] = set()
        self._held = 0
        self._places = ThreadPlaces(self.execution, self.concurrency)
        self.execution.on_thread_freed = self._thread_freed
        #: Whether the last receive was to bring one command under a limit that cannot start at
        #: once; and the last lease of those that such a receive has brought.
        self._asks_ahead = False
        self._ahead: Lease | None = None
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._finished = 0
        self._rate = 0.0  # handlers per second, smoothed
        self._rate_at = time.monotonic()
        # Of each command a copy: what a handler leaves in context variables is not for the next.
        self._context = contextvars.copy_context()

    # -- room

    @property
    def in_flight(self) -> int:
        """Commands that are leased and not ended."""
        waiting = len(self._buffer) + len(self._suspects) + len(self._places.waiting)
        return len(self._running) + waiting

    @property
    def stuck(self) -> int:
        """Places that handlers keep which did not end after their time-out."""
        return self.execution.stuck_threads + self._held

    @property
    def is_stuck(self) -> bool:
        """Whether no place is left for some kind of handler; restarting the process helps."""
        return self._places.are_lost or self._held >= self.concurrency

    def wanted(self) -> int:
        """How many commands to lease now."""
        if self._is_closing or self._suspects or self._alone in self._running:
            return 0
        ahead = self._prefetch()
        if self.completer.backlog > 2 * (self.concurrency + self.max_prefetch):
            return 0  # the database is behind: leasing more would only let leases age
        # Written out, as in `places`: this is asked for each command that ends.
        free = self.concurrency - self._held - len(self._running) - len(self._buffer)
        if free <= 0 and len(self._buffer) * 2 > ahead:
            return 0
        if not self._places.are_free:
            free = self._places.limit(free, ahead)
        return max(free + ahead, 0)

    def has_few(self) -> bool:
        """Whether few commands are leased at once."""
        return self.concurrency <= FEW and self.concurrency + self._prefetch() <= FEW

    def places(self) -> int:
        """How many commands under a limit to lease now: no more than would start at once.

        But one, or they would never have their turn beside others that are leased ahead; and none
        until what came with that one has started. Which of these has a limit is not known here.
        """
        free = self.concurrency - self._held - len(self._running) - len(self._buffer)
        self._asks_ahead = free <= 0 and not any(each is self._ahead for each in self._buffer)
        return max(free, int(self._asks_ahead))

    @property
    def leaves_threads_out(self) -> bool:
        """Whether to lease no commands that need a thread; asked after `wanted`."""
        return not self._places.are_free and self._places.are_left_out

    def _prefetch(self) -> int:
        now = time.monotonic()
        elapsed = now - self._rate_at
        if elapsed >= 0.01:
            weight = min(1.0, elapsed / 0.1)
            self._rate += weight * (self._finished / elapsed - self._rate)
            self._finished = 0
            self._rate_at = now
        return min(self.max_prefetch, int(self._rate * PREFETCH_SECONDS))

    def submit(self, leases: Sequence[Lease]) -> None:
        """Take leases; start what can start."""
        if not self._buffer:
            self._buffered_since = time.monotonic()
        for lease in leases:
            # A command may still run here with an older lease: that run must end first.
            if lease.is_suspect or (lease.lease_epoch > 1 and self._runs(lease.command_id)):
                if not self._suspects:
                    self._suspects_since = time.monotonic()
                self._suspects.append(lease)
            else:
                self._buffer.append(lease)
                if self._asks_ahead and lease.is_limited:
                    self._ahead = lease
        self._pump()

    def _runs(self, command_id: UUID) -> bool:
        return any(run.lease.command_id == command_id for run in self._running.values())

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back, as if they had never been taken."""
        for lease in leases:
            self.completer.put(Outcome(lease, OutcomeKind.RELEASE))

    def release_aged(self) -> None:
        """Give back what has waited long behind handlers that have become slow."""
        now = time.monotonic()
        if self._buffer and now - self._buffered_since > MAX_BUFFERED_SECONDS:
            self.release(self._buffer)
            self._buffer.clear()
        if now - self._places.waiting_since > MAX_BUFFERED_SECONDS:
            self.release(self._places.waiting)
            self._places.waiting.clear()

    @property
    def has_unstarted(self) -> bool:
        """Whether something is leased and not started."""
        return bool(self._buffer or self._suspects or self._places.waiting)

    def release_unstarted(self, types: Collection[str] | None = None) -> int:
        """Give back what has not started, of these types or of all; returns how many."""
        count = 0
        for waiting in (self._buffer, self._suspects, self._places.waiting):
            back = [each for each in waiting if types is None or each.command_type in types]
            self.release(back)
            for lease in back:
                waiting.remove(lease)
            count += len(back)
        return count

    def lose(self, lease: Lease, why: str) -> None:
        """Stop working on a command that is not ours any more."""
        run = self._running.get(_key_of(lease))
        if run is not None:
            run.log(logging.WARNING, "handler of %s is cancelled: %s", why)
            run.stop()
        self._take_back(lease)

    @property
    def leases(self) -> list[Lease]:
        """All that are leased and not ended."""
        waiting = (*self._buffer, *self._suspects, *self._places.waiting)
        return [*(run.lease for run in self._running.values()), *waiting]

    def cancel(self, lease: Lease) -> None:
        """Somebody wants this command to end; it is given back, and the database cancels it."""
        run = self._running.get(_key_of(lease))
        if run is None:
            if self._take_back(lease):
                self.release([lease])
        elif not run.is_canceled:
            run.log(logging.INFO, "%s is to be canceled while it runs")
            run.request_cancel()

    def overdue(self, lease: Lease) -> None:
        """Its lease is not extended any more: what runs too long has failed, what waits goes back.

        The time of the lease began when it was received, that of the handler when it was called.
        """
        run = self._running.get(_key_of(lease))
        if run is not None and run.is_begun:
            if run.due_at > time.monotonic():
                self.on_early(lease)
            else:
                self._timeouts.end(run)
        elif run is None and self._take_back(lease):
            self.release([lease])

    def _take_back(self, lease: Lease) -> bool:
        for waiting in (self._buffer, self._suspects, self._places.waiting):
            for other in waiting:
                if _key_of(other) == _key_of(lease):
                    waiting.remove(other)
                    return True
        return False

    # -- stopping

    def close(self) -> None:
        """Start nothing new, and give back what has not started."""
        self._is_closing = True
        self.release_unstarted()

    async def drained(self) -> None:
        """Wait until no handler runs."""
        await self._idle.wait()

    def cancel_running(self) -> None:
        """Cancel the handlers that are still running; their commands go back to the queue."""
        for run in (*self._running.values(), *self.abandoned):
            run.stop()

    def end(self) -> None:
        """Nothing runs any more: let go of the timer and of the threads."""
        self._timeouts.close()
        self.execution.close()

    # -- running

    def _pump(self) -> None:
        if self._suspects:
            self._pump_suspect()
            return
        if self._alone in self._running:
            return
        if self._places.are_free:  # nearly always: then a free slot is all that a command needs
            while self._buffer and len(self._running) + self._held < self.concurrency:
                self._start(self._buffer.popleft(), self.execution.run)
                self._buffered_since = time.monotonic()
            return
        while self._has_slot and (lease := self._next()) is not None:
            self._start(lease, self.execution.run)
        if self._places.are_lost:
            self.release(self._places.waiting)
            self._places.waiting.clear()

    @property
    def _has_slot(self) -> bool:
        return len(self._running) + self._held < self.concurrency

    def _next(self) -> Lease | None:
        if (waiting := self._places.next()) is not None:
            return waiting
        while self._buffer:
            lease = self._buffer.popleft()
            self._buffered_since = time.monotonic()
            if not self._places.must_wait(lease):
                return lease
            self._places.wait(lease)
        return None

    def _pump_suspect(self) -> None:
        waited = time.monotonic() - self._suspects_since
        loop = asyncio.get_running_loop()
        if self._places.must_wait(self._suspects[0]):
            self.release([self._suspects.popleft()])
        elif not self._running:
            suspect = self._suspects.popleft()
            self._alone = _key_of(suspect)
            self._start(suspect, self._run_alone)
            loop.call_later(SUSPECT_PATIENCE_SECONDS, self._end_solitude, self._alone)
        elif waited >= SUSPECT_PATIENCE_SECONDS and self._has_slot:
            self._start(self._suspects.popleft(), self.execution.run)
        else:
            delay = max(SUSPECT_PATIENCE_SECONDS - waited, 0.1)
            loop.call_later(delay, self._pump_again)
            return
        self._suspects_since = time.monotonic()
        self._pump()

    def _end_solitude(self, suspect: Key) -> None:
        if self._alone == suspect:
            self._alone = None
            self._pump_again()

    def _pump_again(self) -> None:
        self._pump()
        self.on_room()

    def _start(self, lease: Lease, execute: Callable[[Run], Awaitable[Outcome | None]]) -> None:
        if not self._running:
            self._idle.clear()
        found = self.execution.registry.find(lease.domain, lease.command_type)
        run = self.execution.run_type(lease, self._timeouts, found, self.on_progress)
        if run.needs_thread:
            self._places.used += 1
        self._running[_key_of(lease)] = run
        run.task = asyncio.get_running_loop().create_task(
            self._run_and_report(run, execute), context=self._context.copy()
        )

    async def _run_and_report(
        self, run: Run, execute: Callable[[Run], Awaitable[Outcome | None]]
    ) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await execute(run)
        except asyncio.CancelledError:
            # The worker stops, and the command goes back, uncounted. Or the lease is lost: then
            # this is refused, which leaves a line in the audit.
            outcome = Outcome(run.lease, OutcomeKind.RELEASE)
        except KeyboardInterrupt:
            raise  # it ends the process
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not run.is_alive:
                raise  # the task is destroyed with its loop
            # A lease must not be kept without end, whatever this is.
            outcome = self.execution.broken(run, error)
        finally:
            if run.is_abandoned:
                self.abandoned.discard(run)
                self._held -= run.is_transactional
            else:
                self._leave(run)
        if run.is_abandoned:
            _log.warning("handler of %s has ended, long after its time-out", run.lease.command_id)
            self._go_on()
        else:
            self._report(run, outcome)
        # The run knows its task, the task its context, and this the run: together they would wait
        # for the garbage collector, which took a third of the worker's time.
        if run.needs_thread:
            HANDLED.set(None)  # its thread may go on, and asks the task for its loop
        else:
            run.task = None

    def _leave(self, run: Run) -> None:
        self._running.pop(_key_of(run.lease), None)
        if run.needs_thread:
            self._places.used -= 1
            self._places.look()
        self._finished += 1

    def _report(self, run: Run, outcome: Outcome | None) -> None:
        call = run.call
        if call is not None:
            is_success = outcome is not None and outcome.kind is OutcomeKind.COMPLETE
            if call.tells_success or not is_success:
                self.execution.tell(run, call, outcome)
            else:
                call.forget()
            run.call = None  # it knows the run: together they would wait for the garbage collector
        if outcome is not None:
            self.completer.put(outcome)
        else:
            self.completer.totals.completed_one(run.is_transactional)
            self.on_ended([run.lease])
        if not self._running:
            self._idle.set()
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_closing:
            self._pump()
        self.on_room()

    def _thread_freed(self) -> None:
        self._places.look()
        self._go_on()

    def _abandon(self, run: Run) -> None:
        """An async handler goes on after its time-out: its command has failed without it."""
        if run.entry is None:
            return
        self._leave(run)
        run.is_abandoned = True
        self.abandoned.add(run)
        self._held += run.is_transactional
        self._report(run, self.execution.failure(run, run.entry, None))

    async def _run_alone(self, run: Run) -> Outcome | None:
        # If the suspect kills its worker, commands that ended before it must not run again.
        await self.completer.drained()
        lease = run.lease
        if self._alone != _key_of(lease):
            return await self.execution.run(run)  # that took long: others run beside it by now
        try:
            is_ours = await self.store.confirm_start(lease)
        except CommandBusError as error:
            _log.warning(
                "cannot confirm the start of %s: %s", lease.command_id, redact_text(str(error))
            )
            return Outcome(lease, OutcomeKind.RELEASE)
        return await self.execution.run(run) if is_ours else None


def _key_of(lease: Lease) -> Key:
    return lease.command_id.int, lease.lease_epoch

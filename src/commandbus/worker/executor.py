"""Executor: which leased command runs when. Never more handlers at once than `concurrency`.

A command whose lease lapsed twice in a row is a suspect: it may have killed its worker. Suspects
run alone, one by one, so that it is known which command does that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.privacy.redaction import redact_text
from commandbus.worker.completer import Completer
from commandbus.worker.execution import Execution

#: What is leased ahead is at most what the handlers get through in this many seconds.
PREFETCH_SECONDS = 0.05
#: How long a suspect waits for running handlers to end; then it runs beside them, unconfirmed.
#: And how long the others wait for a suspect that runs alone.
SUSPECT_PATIENCE_SECONDS = 5.0
#: Commands that have not started go back to the queue after this, if handlers have become slow.
MAX_BUFFERED_SECONDS = 2.0

_log = logging.getLogger("commandbus.worker")

# A command may be leased again while the handler of its lost lease still runs.
_Key = tuple[UUID, int]


@dataclass(eq=False)
class Executor:
    """Starts executions as there is room, and hands on how each lease ended."""

    store: Store
    execution: Execution
    completer: Completer
    on_room: Callable[[], None]  # a handler has ended
    on_ended: Callable[[Sequence[Lease]], None]  # these leases need not be extended any more
    concurrency: int
    max_prefetch: int

    def __post_init__(self) -> None:
        self._buffer: deque[Lease] = deque()
        self._buffered_since = time.monotonic()
        self._suspects: deque[Lease] = deque()
        self._suspects_since = 0.0
        self._alone: _Key | None = None  # the suspect that nothing may run beside
        self._running: dict[_Key, asyncio.Task[None]] = {}
        self._lost: set[_Key] = set()
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._finished = 0
        self._rate = 0.0  # handlers per second, smoothed
        self._rate_at = time.monotonic()

    # -- room

    @property
    def in_flight(self) -> int:
        """Commands that are leased and not ended."""
        return len(self._running) + len(self._buffer) + len(self._suspects)

    def wanted(self) -> int:
        """How many commands to lease now."""
        if self._is_closing or self._suspects or self._alone in self._running:
            return 0
        ahead = self._prefetch()
        if self.completer.backlog > 2 * (self.concurrency + self.max_prefetch):
            return 0  # the database is behind: leasing more would only let leases age
        free = self.concurrency - len(self._running) - len(self._buffer)
        if free <= 0 and len(self._buffer) * 2 > ahead:
            return 0
        return free + ahead

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
        self._pump()

    def _runs(self, command_id: UUID) -> bool:
        return any(running == command_id for running, _ in self._running)

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back, as if they had never been taken."""
        for lease in leases:
            self.completer.put(Outcome(lease, OutcomeKind.RELEASE))

    def release_aged(self) -> None:
        """Give back what has waited long behind handlers that have become slow."""
        if self._buffer and time.monotonic() - self._buffered_since > MAX_BUFFERED_SECONDS:
            self.release(self._buffer)
            self._buffer.clear()

    def lose(self, lease: Lease, why: str) -> None:
        """Stop working on a command that is not ours any more."""
        key = _key_of(lease)
        task = self._running.get(key)
        if task is not None:
            _log.warning("handler of %s is cancelled: %s", lease.command_id, why)
            self._lost.add(key)
            _cancel(task)
        for waiting in (self._buffer, self._suspects):
            for lost in [other for other in waiting if _key_of(other) == key]:
                waiting.remove(lost)

    # -- stopping

    def close(self) -> None:
        """Start nothing new, and give back what has not started."""
        self._is_closing = True
        self.release([*self._buffer, *self._suspects])
        self._buffer.clear()
        self._suspects.clear()

    async def drained(self) -> None:
        """Wait until no handler runs."""
        await self._idle.wait()

    def cancel_running(self) -> None:
        """Cancel the handlers that are still running; their commands go back to the queue."""
        for task in self._running.values():
            _cancel(task)

    # -- running

    def _pump(self) -> None:
        if self._suspects:
            self._pump_suspect()
            return
        if self._alone in self._running:
            return
        while self._buffer and len(self._running) < self.concurrency:
            self._start(self._buffer.popleft(), self.execution.run)
            self._buffered_since = time.monotonic()

    def _pump_suspect(self) -> None:
        waited = time.monotonic() - self._suspects_since
        loop = asyncio.get_running_loop()
        if not self._running:
            suspect = self._suspects.popleft()
            self._alone = _key_of(suspect)
            self._start(suspect, self._run_alone)
            loop.call_later(SUSPECT_PATIENCE_SECONDS, self._end_solitude, self._alone)
        elif waited >= SUSPECT_PATIENCE_SECONDS and len(self._running) < self.concurrency:
            self._start(self._suspects.popleft(), self.execution.run)
        else:
            delay = max(SUSPECT_PATIENCE_SECONDS - waited, 0.1)
            loop.call_later(delay, self._pump_again)
            return
        self._suspects_since = time.monotonic()
        self._pump()

    def _end_solitude(self, suspect: _Key) -> None:
        if self._alone == suspect:
            self._alone = None
            self._pump_again()

    def _pump_again(self) -> None:
        self._pump()
        self.on_room()

    def _start(self, lease: Lease, run: Callable[[Lease], Awaitable[Outcome | None]]) -> None:
        self._idle.clear()
        self._running[_key_of(lease)] = asyncio.get_running_loop().create_task(
            self._run_and_report(lease, run)
        )

    async def _run_and_report(
        self, lease: Lease, run: Callable[[Lease], Awaitable[Outcome | None]]
    ) -> None:
        key = _key_of(lease)
        outcome: Outcome | None = None
        try:
            outcome = await run(lease)
        except asyncio.CancelledError:
            # The lease is lost, or the worker stops: then the command goes back, uncounted.
            if key not in self._lost:
                outcome = Outcome(lease, OutcomeKind.RELEASE)
        finally:
            self._running.pop(key, None)
            self._lost.discard(key)
            self._finished += 1
        if outcome is not None:
            self.completer.put(outcome)
        else:
            self.on_ended([lease])
        if not self._running:
            self._idle.set()
        if not self._is_closing:
            self._pump()
        self.on_room()

    async def _run_alone(self, lease: Lease) -> Outcome | None:
        # If the suspect kills its worker, commands that ended before it must not run again.
        await self.completer.drained()
        if self._alone != _key_of(lease):
            return await self.execution.run(lease)  # that took long: others run beside it by now
        try:
            is_ours = await self.store.confirm_start(lease)
        except CommandBusError as error:
            _log.warning(
                "cannot confirm the start of %s: %s", lease.command_id, redact_text(str(error))
            )
            return Outcome(lease, OutcomeKind.RELEASE)
        return await self.execution.run(lease) if is_ours else None


def _key_of(lease: Lease) -> _Key:
    return lease.command_id, lease.lease_epoch


def _cancel(task: asyncio.Task[None]) -> None:
    # After the task's first step, which the loop has planned already: a task that is cancelled
    # before it never reports its end, and its command would count as running without limit.
    asyncio.get_running_loop().call_soon(task.cancel)

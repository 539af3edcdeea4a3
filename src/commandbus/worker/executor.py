"""Executor: a lease in, one Outcome out. Never more handlers at once than `concurrency`.

Commands whose last lease ended without a word are suspects of having killed their worker: they
run alone, one by one, so that the culprit is known and its neighbours are not blamed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import (
    CommandBusError,
    DuplicateCommandError,
    HandlerNotFoundError,
    InvalidPayloadError,
    LeaseLostError,
)
from commandbus.handler import HandlerContext, HandlerEntry, HandlerRegistry, SendPreparer
from commandbus.models import Command, Lease, Outcome, OutcomeKind
from commandbus.payload import encode_json
from commandbus.privacy.redaction import redact_text
from commandbus.retry import (
    GiveUp,
    Park,
    RetryAfter,
    RetryPolicy,
    decide,
)
from commandbus.worker.outcomes import command_of, failure_of, parked
from commandbus.worker.threads import HandlerThreads

#: What is leased ahead is at most what the handlers get through in this many seconds.
PREFETCH_SECONDS = 0.05
#: A suspect waits so long for running handlers to end; then it runs beside them, unconfirmed.
#: One that runs alone keeps the others waiting for so long.
SUSPECT_PATIENCE_SECONDS = 5.0
#: Unstarted commands go back to the queue after this, when the handlers have become slow.
MAX_BUFFERED_SECONDS = 2.0

_log = logging.getLogger("commandbus.worker")

# A command may be leased again while the handler of its lost lease still runs.
_Key = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Links:
    """How the executor reaches the other agents of its worker."""

    put: Callable[[Outcome], None]  # hand an outcome to the completer
    backlog: Callable[[], int]  # outcomes that are not committed yet
    settled: Callable[[], Awaitable[None]]  # wait until there are none
    on_room: Callable[[], None]  # a handler has ended
    on_extended: Callable[[Lease, float], None]  # a handler extended its own lease
    on_ended: Callable[[Sequence[Lease]], None]  # these leases need no keeping any more


class Executor:
    """Runs handlers and says how each lease ends."""

    def __init__(
        self,
        store: Store,
        registry: HandlerRegistry,
        *,
        concurrency: int,
        max_prefetch: int,
        max_result_bytes: int,
        default_policy: RetryPolicy,
        prepare: SendPreparer,
        transactions: Store,
        links: Links,
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._registry = registry
        self._concurrency = concurrency
        self._max_prefetch = max_prefetch
        self._max_result_bytes = max_result_bytes
        self._default_policy = default_policy
        self._prepare = prepare
        self._links = links
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
        self._threads: HandlerThreads | None = None

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
        if self._links.backlog() > 2 * (self._concurrency + self._max_prefetch):
            return 0  # the database is behind: leasing more would only let leases age
        free = self._concurrency - len(self._running) - len(self._buffer)
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
        return min(self._max_prefetch, int(self._rate * PREFETCH_SECONDS))

    def submit(self, leases: Sequence[Lease]) -> None:
        """Take leases; start what can start."""
        if not self._buffer:
            self._buffered_since = time.monotonic()
        for lease in leases:
            # Our own run of a lease that was lost must end before the next one of it begins.
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
            self._links.put(Outcome(lease, OutcomeKind.RELEASE))

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
            for held in [held for held in waiting if _key_of(held) == key]:
                waiting.remove(held)

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

    def shutdown_threads(self) -> None:
        """Let go of the threads of sync handlers; one that still runs ends with the process."""
        if self._threads is not None:
            self._threads.close()

    # -- running

    def _pump(self) -> None:
        if self._suspects:
            self._pump_suspect()
            return
        if self._alone in self._running:
            return
        while self._buffer and len(self._running) < self._concurrency:
            self._start(self._buffer.popleft(), self._run)
            self._buffered_since = time.monotonic()

    def _pump_suspect(self) -> None:
        waited = time.monotonic() - self._suspects_since
        loop = asyncio.get_running_loop()
        if not self._running:
            suspect = self._suspects.popleft()
            self._alone = _key_of(suspect)
            self._start(suspect, self._run_alone)
            loop.call_later(SUSPECT_PATIENCE_SECONDS, self._end_solitude, self._alone)
        elif waited >= SUSPECT_PATIENCE_SECONDS and len(self._running) < self._concurrency:
            self._start(self._suspects.popleft(), self._run)
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
        self._links.on_room()

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
            # The lease is lost, or the worker stops: then the command goes back untried.
            if key not in self._lost:
                outcome = Outcome(lease, OutcomeKind.RELEASE)
        finally:
            self._running.pop(key, None)
            self._lost.discard(key)
            self._finished += 1
        if outcome is not None:
            self._links.put(outcome)
        else:
            self._links.on_ended([lease])
        if not self._running:
            self._idle.set()
        if not self._is_closing:
            self._pump()
        self._links.on_room()

    async def _run_alone(self, lease: Lease) -> Outcome | None:
        # If the suspect ends its worker, what ended before it must not have to run again.
        await self._links.settled()
        if self._alone != _key_of(lease):
            return await self._run(lease)  # that took too long: others run beside it by now
        try:
            is_ours = await self._store.confirm_start(lease)
        except CommandBusError as error:
            _log.warning(
                "cannot confirm the start of %s: %s", lease.command_id, redact_text(str(error))
            )
            return Outcome(lease, OutcomeKind.RELEASE)
        return await self._run(lease) if is_ours else None

    async def _run(self, lease: Lease) -> Outcome | None:
        try:
            entry = self._registry.get(lease.domain, lease.command_type)
            command = command_of(lease)
        except HandlerNotFoundError as error:
            _log.warning("%s is parked: %s", lease.command_id, error)
            return parked(lease, "HANDLER_NOT_FOUND", str(error))
        except InvalidPayloadError as error:
            _log.warning("%s is parked: %s", lease.command_id, error)
            return parked(lease, "PAYLOAD_UNDECODABLE", str(error))
        if entry.is_transactional:
            return await self._run_in_transaction(lease, entry, command)
        return await self._outcome_of(lease, entry, self._context(lease, command))

    async def _outcome_of(
        self, lease: Lease, entry: HandlerEntry, context: HandlerContext
    ) -> Outcome:
        try:
            return self._completed(lease, context, await self._call(entry, context))
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            # From something that the handler waited for: given back untried, it would come again
            # and again.
            return self._failed(lease, entry, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a handler raises)
            return self._failed(lease, entry, error)

    async def _call(self, entry: HandlerEntry, context: HandlerContext) -> object:
        if entry.is_async:
            return await entry.handler(context.command, context)
        if self._threads is None:
            self._threads = HandlerThreads(self._concurrency)
        return await self._threads.run(entry.handler, context.command, context)

    async def _run_in_transaction(
        self, lease: Lease, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        try:
            await self._commit_together(lease, entry, command)
        except _RollBackError as rolled_back:
            return rolled_back.outcome
        except Exception as error:  # noqa: BLE001  (no connection, no commit, a refused send)
            return self._failed(lease, entry, error)
        return None

    async def _commit_together(self, lease: Lease, entry: HandlerEntry, command: Command) -> None:
        async with self._transactions.transaction() as transaction:
            context = self._context(lease, command, conn=transaction.conn)
            outcome = await self._outcome_of(lease, entry, context)
            if outcome.kind is not OutcomeKind.COMPLETE:
                raise _RollBackError(outcome)
            if await transaction.settle(lease.domain, [outcome]):
                # The same outcome, on its own, leaves the audit event of the refusal.
                raise _RollBackError(Outcome(lease, OutcomeKind.COMPLETE))

    def _context(self, lease: Lease, command: Command, conn: object = None) -> HandlerContext:
        return HandlerContext(command, lease, extend=self._extend, prepare=self._prepare, conn=conn)

    async def _extend(self, lease: Lease, seconds: float) -> None:
        if await self._store.extend(lease.domain, [lease], seconds):
            raise LeaseLostError(
                f"the lease of {lease.command_id} was lost; stop working on it, the result would "
                "be ignored"
            )
        self._links.on_extended(lease, seconds)

    # -- outcomes

    def _completed(self, lease: Lease, context: HandlerContext, result: object) -> Outcome:
        if result is None:
            return Outcome(lease, OutcomeKind.COMPLETE, sends=context.sends)
        try:
            encoded = encode_json(
                result, what="the handler's result", max_bytes=self._max_result_bytes
            )
        except InvalidPayloadError as error:
            return parked(lease, "INVALID_RESULT", str(error))
        return Outcome(lease, OutcomeKind.COMPLETE, result=encoded, sends=context.sends)

    def _failed(self, lease: Lease, entry: HandlerEntry, error: BaseException) -> Outcome:
        policy = entry.retry_policy or self._default_policy
        failure = failure_of(lease, entry, error, policy)
        if isinstance(error, DuplicateCommandError) and entry.is_transactional:
            return parked(lease, "DUPLICATE_COMMAND", failure.message)
        match decide(error, lease.attempt, lease.max_attempts, policy):
            case RetryAfter(seconds):
                _log.info(
                    "%s failed on attempt %d of %d, next in %g s: %s",
                    lease.command_id, lease.attempt, lease.max_attempts, seconds, failure.code,
                )  # fmt: skip
                return Outcome(lease, OutcomeKind.RETRY, delay_seconds=seconds, failure=failure)
            case Park(reason):
                _log.warning("%s is parked (%s): %s", lease.command_id, reason, failure.code)
                return Outcome(lease, OutcomeKind.PARK, reason=reason, failure=failure)
            case GiveUp():
                _log.warning("%s has failed for good: %s", lease.command_id, failure.code)
                return Outcome(lease, OutcomeKind.FAIL, failure=failure)


class _RollBackError(Exception):
    """Leaves a transaction without a commit; carries how the lease ends instead."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _key_of(lease: Lease) -> _Key:
    return lease.command_id, lease.lease_epoch


def _cancel(task: asyncio.Task[None]) -> None:
    # After the task's first step, which is ahead in the line: one that is cancelled before it
    # would end without a word, and its command would count as running for ever.
    asyncio.get_running_loop().call_soon(task.cancel)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

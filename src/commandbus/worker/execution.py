"""Execution: a lease in, an outcome out. Finds the handler, runs it, says how the lease ends.

commandbus.worker.outcomes makes the outcome, and decides whether a failed attempt is tried again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store, Transaction
from commandbus.database.transactions import Transactions
from commandbus.errors import (
    DatabaseUnavailableError,
    HandlerError,
    HandlerNotFoundError,
    InvalidPayloadError,
    LeaseLostError,
)
from commandbus.handler import HandlerContext, HandlerEntry, SendPreparer
from commandbus.handlers.registry import HandlerRegistry
from commandbus.handlers.scopes import OpenResources
from commandbus.logging import HANDLED
from commandbus.loops import is_being_cancelled
from commandbus.middleware.base import Call, CallOutcome, enter_all, leave_all
from commandbus.models import Command
from commandbus.outcomes import Discard
from commandbus.privacy.redaction import redact_text
from commandbus.retry import RetryPolicy
from commandbus.worker.outcomes import (
    ConnectionLostError,
    call_outcome,
    canceled,
    command_of,
    completed,
    failed,
    parked,
    secrets_of,
    timed_out,
)
from commandbus.worker.running import Run
from commandbus.worker.threads import HandlerThreads
from commandbus.worker.transactions import (
    RollBackError,
    ThreadContext,
    ThreadTransaction,
    close_thread,
    provided,
    refused,
)

_log = logging.getLogger("commandbus.worker")


@dataclass(eq=False, slots=True)
class Execution:
    """Runs handlers, each with its lease."""

    store: Store
    transactions: Store  # where transactional handlers get their connections
    registry: HandlerRegistry
    prepare: SendPreparer
    default_policy: RetryPolicy
    max_result_bytes: int
    max_threads: int
    on_extended: Callable[[Lease, float], None]  # a handler extended its own lease
    timeout_seconds: float  # of handlers that are registered without a time-out
    deadline_seconds: float  # when a lease is given up; above all time-outs
    on_thread_freed: Callable[[], None] = lambda: None  # one that was given up has ended
    worker_id: str | None = None  # for logs
    #: What handlers take by type; None: none of them takes anything.
    resources: OpenResources | None = None
    #: What the executor watches of each; one that is measured knows its times.
    run_type: type[Run] = Run
    _threads: HandlerThreads | None = None
    _own: Transactions | None = None  # opened with the first handler that needs them

    @property
    def stuck_threads(self) -> int:
        """Threads whose command has ended without them; they may run on without limit."""
        return 0 if self._threads is None else self._threads.stuck

    @property
    def stuck_types(self) -> set[str]:
        """The command types of these."""
        return set() if self._threads is None else self._threads.stuck_kinds

    def needs_thread(self, lease: Lease) -> bool:
        """Whether the handler of this command runs in a thread."""
        entry = self.registry.find(lease.domain, lease.command_type)
        return entry is not None and not entry.is_async

    def thread_types(self, domain: str) -> list[str]:
        """The command types whose handlers run in threads."""
        return [
            entry.command_type for entry in self.registry.of_domain(domain) if not entry.is_async
        ]

    async def run(self, run: Run) -> Outcome | None:
        """Execute one command; None if its outcome is committed already, with its transaction."""
        lease = run.lease
        HANDLED.set(run)
        try:
            entry = run.found or self.registry.get(lease.domain, lease.command_type)
            command = command_of(lease)
        except HandlerNotFoundError as error:
            return parked(lease, "HANDLER_NOT_FOUND", str(error))
        except InvalidPayloadError as error:
            return parked(lease, "PAYLOAD_UNDECODABLE", str(error))
        if entry.is_transactional:
            if entry.commits_in_thread:
                return await self._run_in_thread_transaction(run, entry, command)
            return await self._run_in_transaction(run, entry, command)
        return await self._outcome_of(run, entry, self._context(run, command))

    async def _outcome_of(
        self, run: Run, entry: HandlerEntry, context: HandlerContext, driver: object = None
    ) -> Outcome:
        timeout = entry.timeout_seconds or self.timeout_seconds
        run.begin(entry, timeout)
        try:
            layers = entry.layers
            if layers is None:
                result = await self._call(run, entry, context)
            elif layers.handle is not None:
                inner = partial(self._call, run, entry, context)
                run.call = call = Call(context.command, context, entry, inner, run.redact)
                result = await layers.handle(call)
            else:
                run.call = call = layers.call_type(
                    context.command, context, entry, None, run.redact
                )
                entered = enter_all(layers.surrounding, call)
                try:
                    result = await self._call(run, entry, context)
                finally:
                    if entered is not None:
                        leave_all(call, entered)
            if isinstance(result, HandlerError):  # the same as if it had been raised
                outcome = self.failure(run, entry, result)
            else:
                sends, limit = context.sends, self.max_result_bytes
                outcome = completed(run.lease, result, sends, max_bytes=limit)
        except KeyboardInterrupt:
            raise  # it ends the process
        except BaseException as error:
            run.end()
            if run.call is not None:
                run.call.error = error
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if isinstance(error, GeneratorExit) and not run.is_alive:
                raise
            # Also a CancelledError, if something that the handler waited for was cancelled. A
            # command given back without a counted attempt would come again and again.
            if driver is not None:
                self._own_transactions().leave_reader(driver, error)
                error = self._lost_or(driver, error)
            outcome = self.failure(run, entry, error)
        else:
            run.end()
        if context._reply_meta is not None:
            outcome.meta = context._reply_meta  # nobody else has it yet
        return outcome

    async def _call(self, run: Run, entry: HandlerEntry, context: HandlerContext) -> object:
        if entry.is_async:
            result = await entry.handler(context.command, context)
        else:
            if self._threads is None:
                self._threads = HandlerThreads(
                    self.max_threads, self.on_thread_freed, self._close_thread,
                    self.registry.thread_hooks.started,
                )  # fmt: skip
            run.in_thread = True
            layers = entry.layers
            try:
                if layers is None or layers.in_thread is None or run.call is None:
                    result = await self._threads.run(
                        entry.handler, context.command, context, kind=entry.command_type
                    )
                else:
                    result = await self._threads.run(
                        layers.in_thread, run.call, kind=entry.command_type
                    )
            finally:
                run.in_thread = False
        # A plain callable may return a coroutine: the wrapper of a decorator, a lambda.
        while result is not None and inspect.isawaitable(result):
            result = await result
        return result

    def tell(self, run: Run, call: Call, outcome: Outcome | None) -> None:
        """Tell the middleware of a handler how the attempt ends."""
        decided = call.decided if outcome is None else call_outcome(outcome)
        if decided is not None and run.entry is not None and run.entry.layers is not None:
            run.entry.layers.tell(call, decided)

    def failure(self, run: Run, entry: HandlerEntry, error: BaseException | None) -> Outcome:
        """How a run ends that raised an error, or, with None, that did not end at all."""
        policy = entry.retry_policy or self.default_policy
        if run.is_canceled and not (
            error is None or isinstance(error, Discard) or policy.is_permanent(error)
        ):
            return canceled(run.lease, entry, error, policy)
        if error is None or run.has_timed_out:
            error = timed_out(run.timeout_seconds, error, policy)
        return failed(run.lease, entry, error, self.default_policy)

    def broken(self, run: Run, error: BaseException) -> Outcome | None:
        """An error that is not the handler's: it counts as its failure, so that it has an end."""
        secrets = secrets_of(run.lease, run.entry)
        text = redact_text("".join(traceback.format_exception(error)), 4_000, secrets=secrets)
        _log.error("%s could not be executed: %s", run.lease.command_id, text)
        with suppress(Exception):  # then the lease lapses
            return None if run.entry is None else self.failure(run, run.entry, error)
        return None

    async def _run_in_transaction(
        self, run: Run, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        try:
            await self._commit_together(run, entry, command)
        except RollBackError as rolled_back:
            return rolled_back.outcome
        except Exception as error:  # noqa: BLE001  (no connection, no commit, a refused send)
            if run.is_abandoned:
                return None
            if run.entry is None and isinstance(error, DatabaseUnavailableError):
                # No connection was to be had: the handler did not run, so it has not failed.
                _log.warning(
                    "%s goes back to its queue, uncounted; no connection for its handler: %s",
                    run.lease.command_id, redact_text(str(error)),
                )  # fmt: skip
                return Outcome(run.lease, OutcomeKind.RELEASE)
            return failed(run.lease, entry, error, self.default_policy)
        return None

    async def _commit_together(self, run: Run, entry: HandlerEntry, command: Command) -> None:
        driver: object = None
        try:
            async with self._transaction(entry) as transaction:
                driver = transaction.driver
                await self._work_in(run, entry, command, transaction)
            if run.call is not None:
                run.call.decided = CallOutcome("completed")
        except RollBackError:
            raise
        except Exception as error:
            # Lost with the commit. If it was committed after all, what is said now is refused.
            if driver is None or (lost := self._lost_or(driver, error)) is error:
                raise
            raise lost from error

    async def _work_in(
        self, run: Run, entry: HandlerEntry, command: Command, transaction: Transaction
    ) -> None:
        context = self._context(run, command, conn=transaction.conn)
        outcome = await self._outcome_of(run, entry, context, transaction.driver)
        # The failure of an abandoned run is recorded; its lease would be over, not refused.
        if outcome.kind is not OutcomeKind.COMPLETE or run.is_abandoned:
            raise RollBackError(outcome)
        try:
            is_refused = await transaction.settle(run.lease.domain, [outcome])
        except Exception as error:
            self._own_transactions().leave_reader(transaction.driver, error)
            raise
        if is_refused:
            raise refused(run.lease)

    def _transaction(self, entry: HandlerEntry) -> AbstractAsyncContextManager[Transaction]:
        if entry.provider is None:
            return self.transactions.transaction()
        return provided(entry.provider, self.store, self._own_transactions())

    def _lost_or(self, driver: object, error: BaseException) -> BaseException:
        """The same error, unless it is because of a lost connection and the handler chose none."""
        if not isinstance(error, Exception) or isinstance(error, HandlerError):
            return error
        if not self._own_transactions().is_lost(driver, error):
            return error
        lost = ConnectionLostError.during()
        lost.__cause__ = error
        return lost

    async def _run_in_thread_transaction(
        self, run: Run, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        own = self._own_transactions()
        work = ThreadTransaction(own, run.lease, entry.provider, self.max_result_bytes)
        run.interrupt = work.interrupt
        context = ThreadContext(
            command, run.lease, self._extend, self.prepare, None, run,
            _resources=self.resources, transact=work,
        )  # fmt: skip
        outcome: Outcome | None = None
        try:
            outcome = await self._outcome_of(run, entry, context)
        except asyncio.CancelledError:
            if not work.is_committed:
                raise
            # The cancel came with the commit: there is nothing to give back.
        if work.is_committed and run.call is not None:
            run.call.decided = CallOutcome("completed")
        return None if work.is_committed else work.outcome or outcome

    def _own_transactions(self) -> Transactions:
        if self._own is None:
            self._own = self.store.own_transactions()
        return self._own

    def _close_thread(self) -> None:
        """A handler thread ends."""
        self.registry.thread_hooks.ended()
        close_thread([*self.registry.providers(), self._own])

    def _context(self, run: Run, command: Command, conn: object = None) -> HandlerContext:
        context = HandlerContext(command, run.lease, self._extend, self.prepare, conn, run)
        if self.resources is not None:
            context._resources = self.resources
        return context

    async def _extend(self, lease: Lease, seconds: float) -> None:
        if await self.store.extend(lease.domain, [lease], seconds):
            raise LeaseLostError(
                f"the lease of {lease.command_id} was lost; stop working on it, the result would "
                "be ignored"
            )
        self.on_extended(lease, seconds)

    def close(self) -> None:
        """Let go of the threads of sync handlers; one that still runs ends with the process."""
        if self._threads is not None:
            self._threads.close()

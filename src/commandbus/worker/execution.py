"""Execution: a lease in, an outcome out. Finds the handler, runs it, says how the lease ends.

commandbus.worker.outcomes makes the outcome, and decides whether a failed attempt is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import HandlerNotFoundError, InvalidPayloadError, LeaseLostError
from commandbus.handler import HandlerContext, HandlerEntry, HandlerRegistry, SendPreparer
from commandbus.loops import is_being_cancelled
from commandbus.models import Command
from commandbus.retry import RetryPolicy
from commandbus.worker.outcomes import command_of, completed, failed, parked
from commandbus.worker.threads import HandlerThreads


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
    _threads: HandlerThreads | None = None

    async def run(self, lease: Lease) -> Outcome | None:
        """Execute one command; None if its outcome is committed already, with its transaction."""
        try:
            entry = self.registry.get(lease.domain, lease.command_type)
            command = command_of(lease)
        except HandlerNotFoundError as error:
            return parked(lease, "HANDLER_NOT_FOUND", str(error))
        except InvalidPayloadError as error:
            return parked(lease, "PAYLOAD_UNDECODABLE", str(error))
        if entry.is_transactional:
            return await self._run_in_transaction(lease, entry, command)
        return await self._outcome_of(lease, entry, self._context(lease, command))

    async def _outcome_of(
        self, lease: Lease, entry: HandlerEntry, context: HandlerContext
    ) -> Outcome:
        try:
            result = await self._call(entry, context)
            return completed(lease, result, context.sends, max_bytes=self.max_result_bytes)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # Something that the handler waited for was cancelled. A command that was given back
            # without a counted attempt would come again and again.
            return failed(lease, entry, error, self.default_policy)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (anything that a handler raises)
            return failed(lease, entry, error, self.default_policy)

    async def _call(self, entry: HandlerEntry, context: HandlerContext) -> object:
        if entry.is_async:
            return await entry.handler(context.command, context)
        if self._threads is None:
            self._threads = HandlerThreads(self.max_threads)
        return await self._threads.run(entry.handler, context.command, context)

    async def _run_in_transaction(
        self, lease: Lease, entry: HandlerEntry, command: Command
    ) -> Outcome | None:
        try:
            await self._commit_together(lease, entry, command)
        except _RollBackError as rolled_back:
            return rolled_back.outcome
        except Exception as error:  # noqa: BLE001  (no connection, no commit, a refused send)
            return failed(lease, entry, error, self.default_policy)
        return None

    async def _commit_together(self, lease: Lease, entry: HandlerEntry, command: Command) -> None:
        async with self.transactions.transaction() as transaction:
            context = self._context(lease, command, conn=transaction.conn)
            outcome = await self._outcome_of(lease, entry, context)
            if outcome.kind is not OutcomeKind.COMPLETE:
                raise _RollBackError(outcome)
            if await transaction.settle(lease.domain, [outcome]):
                # The same outcome, on its own, leaves the audit event of the refusal.
                raise _RollBackError(Outcome(lease, OutcomeKind.COMPLETE))

    def _context(self, lease: Lease, command: Command, conn: object = None) -> HandlerContext:
        return HandlerContext(command, lease, self._extend, self.prepare, conn)

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


class _RollBackError(Exception):
    """Leaves a transaction without a commit; carries how the lease ends instead."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome

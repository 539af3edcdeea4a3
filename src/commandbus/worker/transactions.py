"""Transactions of handlers: what a handler writes and its completion are one commit.

`async def` handlers work on a connection of a pool of ours, or on what a provider gives; `def`
handlers in a transaction of their own thread, where all of it happens: begin, handler, completion,
commit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.database.transactions import Marker, Transactions
from commandbus.errors import (
    CommandBusError,
    HandlerError,
    InvalidSettingError,
    PermanentCommandError,
)
from commandbus.handler import HandlerContext, HandlerEntry, SyncHandler
from commandbus.privacy.redaction import redact_text
from commandbus.transactions.provider import TransactionProvider
from commandbus.worker.outcomes import ConnectionLostError, completed

_log = logging.getLogger("commandbus.worker")


class RollBackError(Exception):
    """Leaves a transaction without a commit; carries how the lease ends instead."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def refused(lease: Lease) -> RollBackError:
    """The lease is lost. The same outcome, on its own, leaves the audit event of the refusal."""
    return RollBackError(Outcome(lease, OutcomeKind.COMPLETE))


# -- `async def` handlers


class ProvidedTransaction:
    """Implements commandbus.database.store.Transaction on what a provider gives."""

    def __init__(self, store: Store, conn: Any, driver: Any) -> None:
        self._store = store
        self.conn = conn
        self.driver = driver

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in this transaction; returns the commands whose lease is lost."""
        flush = getattr(self.conn, "flush", None)
        if flush is not None:
            # What a session holds back is written first: the completion locks the row of a batch,
            # which others wait for, and who locks it last cannot be in a deadlock over it.
            await flush()
        return await self._store.settle(domain, outcomes, conn=self.conn)


@asynccontextmanager
async def provided(
    provider: TransactionProvider, store: Store, transactions: Transactions
) -> AsyncIterator[ProvidedTransaction]:
    """A transaction of a provider; if none is to be had, the handler has not failed."""
    driver: Any = None
    decided: RollBackError | None = None
    try:
        async with AsyncExitStack() as stack:
            try:
                conn = await stack.enter_async_context(_async_manager(provider))
                driver = await transactions.async_driver(conn)
            except Exception as error:
                raise ConnectionLostError.before(error) from error
            try:
                yield ProvidedTransaction(store, conn, driver)
            except RollBackError as rolled_back:
                decided = rolled_back
                raise
    except (RollBackError, ConnectionLostError):
        raise
    except Exception as error:
        if decided is not None:
            raise decided from None  # not even the roll back could be sent: it needs none
        if driver is not None and transactions.is_lost(driver, error):
            raise ConnectionLostError.during() from error
        raise


def _async_manager(provider: TransactionProvider) -> Any:
    manager = provider()
    if not hasattr(manager, "__aenter__"):
        raise InvalidSettingError(
            "it gives a context manager that is not asynchronous, for a handler that is; make the "
            "handler a plain `def`, or give it an asynchronous one"
        )
    return manager


# -- `def` handlers


@dataclass(slots=True, eq=False, repr=False)
class ThreadContext(HandlerContext):
    """That of a `def` handler that works in a transaction of its thread."""

    #: Calls the handler in such a transaction, and commits; see commandbus.transactions.provider.
    transact: ThreadTransaction | None = None

    def join(self, conn: Any) -> None:
        """The transaction that the handler works in begins, or has ended."""
        self._conn = conn


class ThreadTransaction:
    """One run of a `def` handler in a transaction of its thread. Called in that thread."""

    def __init__(
        self,
        transactions: Transactions,
        lease: Lease,
        provider: TransactionProvider | None,
        max_result_bytes: int,
    ) -> None:
        self._transactions = transactions
        self._lease = lease
        self._provider: Callable[[], Any] = provider or transactions.in_thread
        self._max_result_bytes = max_result_bytes
        #: How the lease ends, if it was decided in the thread, without a commit.
        self.outcome: Outcome | None = None
        self.is_committed = False
        # Held while a statement is ended from outside, so that it is none of the next handler.
        self._lock = threading.Lock()
        self._interruptible: Any = None

    def __call__(self, handler: SyncHandler, ctx: ThreadContext) -> Any:
        """Begin, call the handler, complete its command, commit; gives what the handler gave."""
        driver: Any = None
        try:
            with ExitStack() as stack:
                conn, driver = self._begin(stack)
                try:
                    result = self._work(handler, ctx, conn, driver)
                except Exception as error:
                    self._transactions.leave_reader(driver, error)
                    raise
        except RollBackError as rolled_back:
            self.outcome = rolled_back.outcome
            return None
        except ConnectionLostError:
            raise
        except Exception as error:
            if driver is not None and self._transactions.is_lost(driver, error):
                raise ConnectionLostError.during() from error
            raise
        self.is_committed = True
        return result

    def _begin(self, stack: ExitStack) -> tuple[Any, Any]:
        try:
            conn = stack.enter_context(_manager(self._provider))
            return conn, self._transactions.driver(conn)
        except Exception as error:
            raise ConnectionLostError.before(error) from error

    def _work(self, handler: SyncHandler, ctx: ThreadContext, conn: Any, driver: Any) -> Any:
        self._interruptible = driver
        ctx.join(conn)
        try:
            result = handler(ctx.command, ctx)
            if isinstance(result, HandlerError):  # the same as if it had been raised
                raise result
            _refuse_awaitable(result)
            outcome = completed(self._lease, result, ctx.sends, max_bytes=self._max_result_bytes)
            if ctx.reply_meta is not None:
                outcome = replace(outcome, meta=ctx.reply_meta)
            if outcome.kind is not OutcomeKind.COMPLETE:
                raise RollBackError(outcome)
            if self._transactions.settle(self._lease.domain, [outcome], conn):
                raise refused(self._lease)
            return result
        finally:
            ctx.join(None)
            with self._lock:
                self._interruptible = None

    def interrupt(self) -> None:
        """End the statement that the handler waits for, if it does. From the event loop."""
        # In a thread: it asks the server, over a connection that has to be made.
        threading.Thread(target=self._interrupt, name="commandbus-interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        with self._lock:
            if self._interruptible is not None:
                self._transactions.interrupt(self._interruptible)


def _manager(provider: Callable[[], Any]) -> Any:
    manager = provider()
    if not hasattr(manager, "__enter__"):
        raise InvalidSettingError(
            "it gives an asynchronous context manager, for a handler that is not; make the "
            "handler an `async def`, or give it a context manager that is not asynchronous"
        )
    return manager


def _refuse_awaitable(result: object) -> None:
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise PermanentCommandError(
            "HANDLER_NOT_ASYNC",
            "a transactional handler that is no `async def` has returned a coroutine; a decorator "
            "of an `async def` handler must use functools.wraps",
        )


# -- before the first command


async def check_providers(entries: Iterable[HandlerEntry], store: Store) -> None:
    """Raise unless each provider of these handlers commits, and to the database of the bus."""
    seen: list[tuple[TransactionProvider, bool]] = []
    for entry in entries:
        key = (entry.provider, entry.commits_in_thread)
        if entry.provider is None or key in seen:
            continue
        seen.append((entry.provider, entry.commits_in_thread))
        try:
            async with store.own_transactions().marker() as marker:
                await _check(entry.provider, entry.commits_in_thread, marker)
        except CommandBusError as error:
            raise InvalidSettingError(
                f"the provider of transactions of {entry.domain}/{entry.command_type} cannot be "
                f"used: {redact_text(str(error))}"
            ) from error


async def _check(provider: TransactionProvider, in_thread: bool, marker: Marker) -> None:
    if in_thread:
        transaction = await asyncio.to_thread(_look_blocking, provider, marker)
    else:
        async with _async_manager(provider) as conn:
            transaction = await marker.look(conn)
    if not await marker.is_committed(transaction):
        raise InvalidSettingError(
            "it does not commit at its end, so that nothing would ever complete; the context "
            "manager that it gives must commit, or roll back if there was an error"
        )


def _look_blocking(provider: TransactionProvider, marker: Marker) -> Any:
    try:
        with _manager(provider) as conn:
            return marker.look_blocking(conn)
    finally:
        close_thread([provider])


def close_thread(providers: Iterable[object]) -> None:
    """A handler thread ends: let providers give back what they keep for it."""
    for provider in providers:
        close = getattr(provider, "close_thread", None)
        if close is not None:
            try:
                close()
            except Exception as error:  # noqa: BLE001  (the thread ends all the same)
                _log.warning("a handler thread was left untidy: %s", redact_text(str(error)))

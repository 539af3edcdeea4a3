"""`transactional=`: True, or where the transactions of a handler come from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from commandbus.errors import InvalidSettingError

#: Gives the transaction of a handler: a context manager, asynchronous for `async def` handlers. It
#: yields a connection or a session, and its end commits; an error rolls back. One with a method
#: `close_thread` is told when a handler thread ends, in that thread.
TransactionProvider = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


def transaction_of(
    transactional: bool | TransactionProvider, name: str
) -> tuple[bool, TransactionProvider | None]:
    """Whether a handler is transactional, and where its transactions come from, if told."""
    if isinstance(transactional, bool):
        return transactional, None
    if not callable(transactional):
        raise InvalidSettingError(
            f"transactional of {name} is {transactional!r}; use True, or a provider of "
            "transactions: SqlAlchemy(…), Asyncpg(…), or a function that gives a context manager"
        )
    if hasattr(transactional, "begin") and hasattr(transactional, "kw"):
        # What it gives is a context manager too, but one whose end commits nothing.
        raise InvalidSettingError(
            f"transactional of {name} is a factory of sessions, which do not commit when they "
            "end; use SqlAlchemy(factory)"
        )
    return True, transactional


def committing(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A `def` handler that is called in a transaction of its thread."""

    @functools.wraps(handler)
    def commit_with(command: Any, ctx: Any) -> Any:
        # The worker's context has it; without a worker there is no transaction either.
        transact = getattr(ctx, "transact", None)
        return handler(command, ctx) if transact is None else transact(handler, ctx)

    return commit_with

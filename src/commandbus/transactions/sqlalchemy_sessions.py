"""SqlAlchemy: sessions of SQLAlchemy, or of SQLModel, as the transactions of handlers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from commandbus.errors import InvalidSettingError


class _Begins(Protocol):
    def begin(self) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]: ...


class SqlAlchemy:
    """`ctx.conn` is a session of this factory: flush, completion and commit are one.

    A `sessionmaker` for `def` handlers, an `async_sessionmaker` for `async def` handlers; an
    engine gives its connections instead. It must lead to the database of the bus.
    """

    def __init__(self, factory: _Begins) -> None:
        if not hasattr(factory, "begin") or hasattr(factory, "in_transaction"):
            raise InvalidSettingError(
                f"SqlAlchemy was given a {type(factory).__name__}; give it a sessionmaker, an "
                "async_sessionmaker or an engine, so that each command has a session of its own"
            )
        self._factory = factory

    def __call__(self) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """A new session in a transaction, which its end commits."""
        return self._factory.begin()

    def __repr__(self) -> str:
        return f"SqlAlchemy({type(self._factory).__name__})"

"""Transactions that are none of our pools': of handler threads, and of the application.

The protocol alone; commandbus.database.own_transactions has the one for PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from commandbus.database.model import Outcome


class Marker(Protocol):
    """Tells whether a connection is one to the database of the bus."""

    async def look(self, conn: Any) -> Any:
        """Look from this connection; returns its transaction. InvalidSettingError: elsewhere."""

    def look_blocking(self, conn: Any) -> Any:
        """The same on a connection that is not asynchronous, in the calling thread."""

    async def is_committed(self, transaction: Any) -> bool:
        """Whether that transaction was committed."""


class Transactions(Protocol):
    """What handlers need that work in transactions of other connections than those of a pool."""

    def in_thread(self) -> AbstractContextManager[Any]:
        """The connection of the calling thread, in a transaction that the end of it commits."""

    def close_thread(self) -> None:
        """Close the connection of the calling thread."""

    def settle(self, domain: str, outcomes: Sequence[Outcome], conn: Any) -> set[UUID]:
        """Write outcomes in the calling thread, in the transaction of this connection.

        Returns the commands whose lease is lost.
        """

    def driver(self, conn: Any) -> Any:
        """The connection of the driver beneath a session; it begins with that."""

    async def async_driver(self, conn: Any) -> Any:
        """The same for an asynchronous one."""

    def is_lost(self, driver: Any, error: BaseException) -> bool:
        """Whether that connection was cut; `error` is what was raised then."""

    def leave_reader(self, driver: Any, error: BaseException) -> None:
        """Close that connection if its server only reads by now. Within its transaction only."""

    def interrupt(self, driver: Any) -> None:
        """End the statement that runs on it, from another thread; waits a few seconds at most."""

    def marker(self) -> AbstractAsyncContextManager[Marker]:
        """A marker that is there until the block is left."""

"""What a store gives out: a transaction for a handler, an extender of leases, a listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from commandbus.database.model import Lease, Outcome, Said


class Transaction(Protocol):
    """A transaction in which a handler works and its own outcome is written."""

    @property
    def conn(self) -> Any:
        """The connection that the handler may use."""

    @property
    def driver(self) -> Any:
        """The connection of the driver beneath it."""

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in this transaction; returns the commands whose lease is lost."""


class LeaseExtender(Protocol):
    """Extends leases from an ordinary thread, with a connection of its own."""

    def extend(
        self, domain: str, leases: Sequence[Lease], seconds: int
    ) -> tuple[set[UUID], set[UUID]]:
        """Extend; returns those whose lease is lost, and those whose cancel was asked for."""

    def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        """Keep how far these commands have come."""

    def close(self) -> None:
        """Give the connection back."""


class Listener(Protocol):
    """Turns notifications into wake-ups. One may be lost, so a subscriber must poll as well."""

    def subscribe(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the channel is notified, and after every reconnect."""

    def unsubscribe(self, channel: str, wake: Callable[[], None]) -> None:
        """Undo subscribe."""

    async def run(self) -> None:
        """Listen until cancelled; connect again whenever the connection is lost."""

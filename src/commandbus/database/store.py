"""The store of the command core. Two implementations: PostgreSQL, and memory for tests.

Every verb takes many commands and is one transaction. Those with `conn` may instead join the
transaction of the caller. `tests/conformance` runs one suite over both implementations.

What is not the command core (bulk operations, loads, governance, search, upkeep, ...) has no
protocol: its services send their own statements by `Store.gateway`, which only PostgreSQL has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from commandbus.models import (
    AuditEvent,
    BatchMetadata,
    CommandMetadata,
    CommandStatus,
    Edit,
    Lease,
    NewBatch,
    NewCommand,
    Outcome,
    QueuedReply,
    TroubleshootingItem,
)

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway


class Transaction(Protocol):
    """A transaction in which a handler works and its own outcome is written."""

    @property
    def conn(self) -> Any:
        """The connection that the handler may use."""

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in this transaction; returns the commands whose lease is lost."""


class LeaseExtender(Protocol):
    """Extends leases from an ordinary thread, with a connection of its own."""

    def extend(self, domain: str, leases: Sequence[Lease], seconds: int) -> set[UUID]:
        """Extend; returns the commands whose lease is lost."""

    def close(self) -> None:
        """Give the connection back."""


class Listener(Protocol):
    """Turns notifications into wake-ups. A hint only: whoever waits must poll as well."""

    def subscribe(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the channel is notified, and after every reconnect."""

    def unsubscribe(self, channel: str, wake: Callable[[], None]) -> None:
        """Undo subscribe."""

    async def run(self) -> None:
        """Listen until cancelled, reconnecting as often as it takes."""


class Store(Protocol):
    """The verbs of the command core."""

    @property
    def has_gateway(self) -> bool:
        """Whether there is a gateway: False in memory."""

    @property
    def gateway(self) -> Gateway:
        """The way to PostgreSQL for what is not the command core; raises where there is none."""

    # -- sending
    async def ensure_domain(self, domain: str) -> None:
        """Create the queues of a domain if they are missing."""

    async def send(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: UUID | None = None,
        conn: Any = None,
    ) -> None:
        """Store and queue all, or raise DuplicateCommandError and store none."""

    # -- receiving and the ways a lease ends
    async def receive(
        self,
        domain: str,
        *,
        vt_seconds: int,
        quantity: int,
        worker: str,
        limits: Mapping[str, int],
        mark_in_progress: bool = True,
        from_head: bool = False,
    ) -> list[Lease]:
        """Lease up to so many commands, those that have been due for longest first.

        From the head of the queue: first what is due among the oldest, whose leases have lapsed.
        """

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write outcomes in one transaction; returns the commands whose lease is lost."""

    async def confirm_start(self, lease: Lease) -> bool:
        """Record that a suspect is about to run alone; False if its lease is lost."""

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        """Extend leases; returns the commands whose lease is lost."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; leaving the block commits, an error rolls back."""

    # -- operators
    async def operator_retry(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        actor: str | None,
        reset_attempts: bool,
        edits: Mapping[UUID, Edit] | None = None,
    ) -> None:
        """Parked -> PENDING, all or none; with edited payloads for some, if there are edits."""

    async def operator_cancel(
        self, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
    ) -> None:
        """Parked -> CANCELED, all or none."""

    async def operator_complete(
        self, domain: str, command_ids: Sequence[UUID], *, result: bytes, actor: str | None
    ) -> None:
        """Parked -> COMPLETED, all or none."""

    async def cancel(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        reason: str,
        actor: str | None,
        conn: Any = None,
    ) -> None:
        """PENDING -> CANCELED, all or none."""

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        """Put a remark into the audit of a command."""

    # -- reading
    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""

    async def list_troubleshooting(
        self, domain: str, *, command_type: str | None, limit: int, offset: int
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first."""

    async def get_payload(self, domain: str, command_id: UUID) -> str | None:
        """The payload, if the queue or the archive still has it."""

    async def get_audit_trail(
        self, command_id: UUID, *, domain: str | None, limit: int
    ) -> list[AuditEvent]:
        """The events of a command, oldest first."""

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        """One batch, or None."""

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> str | None:
        """Create a batch with its commands, or raise DuplicateCommandError and create nothing.

        Returns the name of the caller's transaction, if the batch depends on one and notifies.
        """

    async def settled_batches(self, transactions: Mapping[UUID, str]) -> dict[UUID, bool]:
        """Of these batches, those whose transaction has ended: whether the batch is there."""

    async def list_batches(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        """Batches, newest first."""

    async def list_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        limit: int,
        offset: int,
    ) -> list[CommandMetadata]:
        """Commands of a batch, in their order."""

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        """Cancel some of what nobody works on; returns how many, 0 when there are none left."""

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        """Send again what failed, all in one transaction; returns how many."""

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        """Of these, the batches that have ended."""

    # -- replies
    async def read_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[QueuedReply]:
        """Lease replies of a queue."""

    async def delete_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        """Acknowledge replies."""

    async def take_inbox_reply(self, domain: str, command_id: UUID) -> str | None:
        """Take the reply that `call` waits for, if it is there."""

    # -- workers
    def dedicated(self, purpose: str, size: int) -> AbstractAsyncContextManager[Store]:
        """The same store on connections of its own, so that nobody can starve it."""

    async def open_extender(self) -> LeaseExtender:
        """A lease extender for a thread."""

    def listener(self) -> Listener:
        """A listener with a connection of its own."""

    async def heartbeat(
        self, worker: str, domain: str, *, is_idle: bool, concurrency: int, in_flight: int
    ) -> None:
        """Say that a worker is alive, and whether it waits for commands."""

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        """Remember, by command type, which keys of payloads must not be shown."""

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys that were declared for a command type."""

    async def worker_gone(self, worker: str) -> None:
        """Say that a worker has ended."""

    async def check(self) -> None:
        """Raise if the database is not one that this version can work with."""

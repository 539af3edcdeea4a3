"""The store of the command core. Two implementations: PostgreSQL, and memory for tests.

Every verb takes many commands and is one transaction. Those with `conn` may instead join the
transaction of the caller. `tests/conformance` runs one suite over both implementations.

What is not the command core (bulk operations, loads, governance, search, upkeep, ...) has no
protocol: its services send their own statements by `Store.gateway`, which only PostgreSQL has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict, Unpack
from uuid import UUID

from commandbus.database.parts import LeaseExtender, Listener, Transaction

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from commandbus.database.gateway import Gateway
    from commandbus.database.model import (
        Edit,
        Lease,
        MarkedPayload,
        NewBatch,
        Outcome,
        QueuedReply,
        Said,
        Sent,
    )  # fmt: skip
    from commandbus.database.transactions import Transactions
    from commandbus.flow import Pause
    from commandbus.models import (
        AuditEvent,
        BatchMetadata,
        CommandMetadata,
        CommandStatus,
        NewCommand,
        Progress,
        TroubleshootingItem,
    )

__all__ = [
    "LeaseExtender", "Listener", "ReceiveOptions", "RetryOptions", "SendPlace", "Store",
    "Transaction", "WorkerFigures",
]  # fmt: skip


class SendPlace(TypedDict, total=False):
    """Where to commands are sent."""

    batch_id: UUID | None
    #: Who sends, for the audit.
    actor: str | None
    conn: Any


class ReceiveOptions(TypedDict):
    """What a worker asks for when it receives."""

    #: How long the leases are.
    vt_seconds: int
    #: How many commands at most.
    quantity: int
    #: Who leases them.
    worker: str
    #: max_attempts of the command types whose handler has its own retry policy.
    limits: Mapping[str, int]
    #: Whether a leased command shows as IN_PROGRESS; it does unless this is False.
    mark_in_progress: NotRequired[bool]
    #: Look first at the oldest messages of the queue: commands whose lease has lapsed are there.
    from_head: NotRequired[bool]
    #: Command types to leave to other workers.
    except_types: NotRequired[Sequence[str]]
    #: The command types of which every lapsed lease is an attempt; None: all.
    count_every: NotRequired[Collection[str] | None]
    #: Handlers that are free now; commands under a limit are not leased ahead of them. None: any.
    places: NotRequired[int | None]
    #: Whether leases say when they were due.
    with_due: NotRequired[bool]


class WorkerFigures(TypedDict):
    """What a worker says of itself in a heartbeat."""

    #: Whether it waits for commands.
    is_idle: bool
    concurrency: int
    in_flight: int
    #: Places that handlers keep which did not end after their time-out.
    stuck: NotRequired[int]
    #: Its version, `stuck_types`, and what it has completed, failed, parked and retried since the
    #: heartbeat before.
    more: NotRequired[Mapping[str, Any]]


class RetryOptions(TypedDict):
    """How an operator sends parked commands again."""

    actor: str | None
    #: Whether attempts are counted from 0 again; otherwise there is one more attempt.
    reset_attempts: bool
    #: Edited payloads, by command id; the others are sent as they were.
    edits: NotRequired[Mapping[UUID, Edit] | None]


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
        actor: str | None = None,
        conn: Any = None,
    ) -> None:
        """Store and queue all, or raise DuplicateCommandError and store none.

        `actor`: who sends, for the audit.
        """

    async def send_new(
        self, domain: str, commands: Iterable[NewCommand], **options: Unpack[SendPlace]
    ) -> list[int]:
        """The same for those whose id is new; returns the places of the others, from 1.

        Of an id that is there twice the first is sent. Bodies are not compared.
        """

    async def send_unique(
        self,
        domain: str,
        commands: Sequence[NewCommand],
        *,
        skips_known: bool = False,
        **options: Unpack[SendPlace],
    ) -> list[Sent]:
        """Send commands of which some have a unique key; returns what became of each.

        All or none if an id is known (unless `skips_known`) or a key is held that must not be.
        """

    # -- receiving and the ways a lease ends
    async def receive(self, domain: str, **options: Unpack[ReceiveOptions]) -> list[Lease]:
        """Lease commands that are due, those that have been due for longest first."""

    async def settle(
        self, domain: str, outcomes: Sequence[Outcome], *, conn: Any = None
    ) -> set[UUID]:
        """Write outcomes in one transaction; returns the commands whose lease is lost."""

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
    ) -> tuple[set[UUID], list[Lease]]:
        """Write outcomes, and lease commands in the places that they give back, if possible.

        In one transaction, so that no place is free in between. No leases mean nothing: `receive`
        may find some.
        """

    async def confirm_start(self, lease: Lease) -> bool:
        """Record that a suspect is about to run alone; False if its lease is lost."""

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        """Extend leases; returns the commands whose lease is lost."""

    async def cancel_requests(self, domain: str, leases: Sequence[Lease]) -> set[UUID]:
        """Of these leases, the commands whose cancel was asked for."""

    async def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        """Keep how far these commands have come, as their handlers say."""

    def own_transactions(self) -> Transactions:
        """Transactions of threads, and of the application's own connections."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; leaving the block commits, an error rolls back."""

    # -- operators
    async def operator_retry(
        self, domain: str, ids: Sequence[UUID], **options: Unpack[RetryOptions]
    ) -> None:
        """Parked -> PENDING, all or none; with the same payload in a new message, or an edited.

        The edit of a child of a governed batch waits for a decision: then the child stays parked.
        """

    async def operator_cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None
    ) -> None:
        """Parked -> CANCELED, all or none, with the reply that it did not have yet."""

    async def operator_complete(
        self, domain: str, ids: Sequence[UUID], *, result: bytes, actor: str | None
    ) -> None:
        """Parked -> COMPLETED, all or none, with the reply that it did not have yet."""

    async def cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None, conn: Any = None
    ) -> None:
        """PENDING -> CANCELED, all or none; a command that a worker has leased is refused."""

    async def request_cancel(
        self, domain: str, ids: Sequence[UUID], *, reason: str, actor: str | None, conn: Any = None
    ) -> set[UUID]:
        """PENDING -> CANCELED, or marked for the worker that has it, all or none.

        Returns those that a worker has.
        """

    async def reschedule(
        self,
        domain: str,
        ids: Sequence[UUID],
        *,
        deliver_at: datetime | None,
        delay_seconds: float | None,
        actor: str | None,
    ) -> None:
        """Another time for what is PENDING and not leased, all or none."""

    async def pause(
        self,
        domain: str,
        command_type: str | None,
        *,
        reason: str,
        until: datetime | timedelta | None,
        actor: str | None,
    ) -> None:
        """Lease nothing of a domain, or of one type, until `resume` or its end."""

    async def resume(
        self,
        domain: str,
        command_type: str | None,
        *,
        actor: str | None,
        reason: str | None = None,
    ) -> bool:
        """End a pause; False if there was none."""

    async def pauses(self, domains: Sequence[str] | None = None) -> list[Pause]:
        """Which of these domains, or of all, are paused now."""

    async def set_priority(
        self, domain: str, ids: Sequence[UUID], priority: int, *, actor: str | None
    ) -> None:
        """Another level for what is PENDING and not leased, all or none."""

    async def set_level_seconds(self, domain: str, seconds: float, *, actor: str | None) -> None:
        """How much waiting one level is worth in a domain; 0: levels are ignored."""

    async def key_policy(self, domain: str) -> str:
        """Whether a parked command blocks its ordering key: `block`, or `skip`."""

    async def set_key_policy(
        self, domain: str, on_park: str, *, reason: str | None, actor: str | None
    ) -> None:
        """Change that; with `skip` the keys that are blocked go on."""

    async def add_note(
        self, domain: str, command_id: UUID, *, text: str, actor: str | None
    ) -> None:
        """Put a remark into the audit of a command."""

    # -- reading
    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""

    async def progress(self, domain: str, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """How far those of these commands have come that run, and whose handlers said so."""

    async def list_troubleshooting(
        self, domain: str, *, command_type: str | None, limit: int, offset: int
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first."""

    async def get_payload(self, domain: str, command_id: UUID) -> str | None:
        """The payload, if the queue or the archive still has it."""

    async def marked_payload(self, domain: str, command_id: UUID) -> MarkedPayload | None:
        """The same with what is needed to show it; None: there is no such command."""

    async def get_meta(self, domain: str, command_id: UUID) -> str | None:
        """What travels with a command beside its payload, if that is still there; as JSON."""

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

    async def list_batches(
        self, domain: str, *, status: str | None, limit: int, offset: int
    ) -> list[BatchMetadata]:
        """Batches, newest first."""

    async def list_batch_commands(
        self, domain: str, batch_id: UUID, *, status: CommandStatus | None, limit: int, offset: int
    ) -> list[CommandMetadata]:
        """Commands of a batch, in the order of creation; those that joined it later come last."""

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        """Cancel some of what no worker has leased; returns how many, 0 if none is left."""

    async def request_batch_cancel(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        """Mark some of what workers have for its cancel; returns how many, 0 if none is left."""

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        """Send again what is parked or FAILED, all in one transaction; returns how many."""

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        """Of these, the batches that have ended."""

    # -- replies
    async def read_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[QueuedReply]:
        """Lease replies of a queue."""

    async def delete_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        """Acknowledge replies."""

    async def archive_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        """Move messages that are no replies out of the way; PGMQ's archive keeps them."""

    async def take_inbox_reply(self, domain: str, command_id: UUID) -> str | None:
        """Take the reply that `call` waits for, if it is there."""

    # -- workers
    def dedicated(self, purpose: str, size: int) -> AbstractAsyncContextManager[Store]:
        """The same store on connections of its own, which no other part can use up."""

    async def open_extender(self) -> LeaseExtender:
        """A lease extender for a thread."""

    def listener(self) -> Listener:
        """A listener with a connection of its own."""

    async def heartbeat(self, worker: str, domain: str, **figures: Unpack[WorkerFigures]) -> None:
        """Say that a worker is alive, whether it waits, and how many places it has lost."""

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> None:
        """The same of many workers at once, each with the arguments of `heartbeat`."""

    async def due_in(self, domains: Sequence[str]) -> dict[str, float]:
        """Seconds until the next command of each domain is due, 0 if one is.

        Without those that have none, and those that are paused without an end.
        """

    async def what_is_left(self, domain: str, *, include_delayed: bool) -> str | None:
        """What a worker that empties a queue has to wait for: `due`, `delayed`, or nothing.

        `delayed`, only if asked for: what becomes due later, and no worker has leased. `paused`:
        nothing will be due before the domain is resumed.
        """

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        """Remember, by command type, which keys of payloads must not be shown."""

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys that were declared for a command type."""

    async def worker_gone(self, worker: str) -> None:
        """Say that a worker has ended."""

    async def check(self) -> None:
        """Raise if the database is not one that this version can work with."""

"""What coordination and recovery ask of a store. The in-memory store does not implement it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable
from uuid import UUID

from commandbus.models import NewBatch, NewCommand


@dataclass(frozen=True, slots=True)
class CreationMetric:
    """How long the creation of a batch took, in 002's words."""

    pattern: str
    batch_size: int
    db_insert_ms: float
    queue_send_ms: float
    status_update_ms: float
    total_ms: float
    retry_needed: bool


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a round of recovery did. `overdue` of them had waited more than half an hour."""

    queued: int = 0
    failed: int = 0
    given_up: int = 0
    overdue: int = 0

    def __add__(self, other: RecoveryReport) -> RecoveryReport:
        return RecoveryReport(
            self.queued + other.queued,
            self.failed + other.failed,
            self.given_up + other.given_up,
            self.overdue + other.overdue,
        )


@dataclass(frozen=True, slots=True)
class InterruptedLoad:
    """A load that nobody has continued for a while.

    Loading the same source again resumes it. A sealed one is all in the database: queueing the rest
    needs no source.
    """

    batch_id: UUID
    domain: str
    source: str
    rows_committed: int
    updated_at: datetime
    is_sealed: bool


class MessageQueue(Protocol):
    """A queue that does not share a transaction with the metadata. Messages are JSON texts."""

    @property
    def name(self) -> str:
        """What it is called in records and messages; no secrets."""

    async def send(self, domain: str, envelopes: Sequence[str]) -> None:
        """Queue all of them, in this order, or raise."""

    async def read(self, domain: str, *, vt_seconds: int, quantity: int) -> list[tuple[int, str]]:
        """Lease some, oldest first."""

    async def delete(self, domain: str, msg_ids: Sequence[int]) -> None:
        """They have arrived."""

    async def archive(self, domain: str, msg_ids: Sequence[int]) -> None:
        """They lead nowhere; kept to be looked at."""


@runtime_checkable
class DispatchStore(Protocol):
    """The verbs of coordination (002) and of the chores of maintenance."""

    async def hold_batch(
        self,
        batch: NewBatch,
        commands: Sequence[NewCommand],
        *,
        pattern: str,
        dispatch_rate: float | None,
        queue: str | None,
    ) -> None:
        """Store a batch whose commands are not queued yet, or raise DuplicateCommandError."""

    async def queue_stored(self, domain: str, command_ids: Sequence[UUID]) -> int:
        """Queue held commands, each at most once; returns how many this call queued."""

    async def stored_messages(
        self, domain: str, command_ids: Sequence[UUID]
    ) -> list[tuple[UUID, str]]:
        """The messages of those of them that still wait, in this order."""

    async def mark_dispatched(self, domain: str, command_ids: Sequence[UUID]) -> int:
        """They are in a queue elsewhere; returns how many were marked."""

    async def mark_dispatch_failed(
        self, domain: str, command_ids: Sequence[UUID], error: str
    ) -> int:
        """They could not be queued; returns how many were thereby given up."""

    async def adopt_messages(self, domain: str, envelopes: Sequence[str]) -> list[str]:
        """Queue here what came from elsewhere, once; each is adopted, known or refused."""

    async def dispatch_heartbeat(self, batch_id: UUID) -> None:
        """The process that queues this batch is alive."""

    async def finish_dispatch(self, batch_id: UUID, metric: CreationMetric) -> None:
        """The process is done with this batch."""

    async def recover_dispatch(
        self, domain: str, *, grace_seconds: float, limit: int
    ) -> RecoveryReport:
        """Queue what was stored and not queued, at most so many, or give it up."""

    async def claim_chore(self, name: str, every_seconds: float) -> bool:
        """Whether this process is to do the chore now."""

    async def interrupted_loads(self, idle_seconds: float) -> list[InterruptedLoad]:
        """Loads that are not done and that nobody continues."""

    async def dispatch_load(self, domain: str, batch_id: UUID, limit: int) -> int:
        """Queue the next held rows of a sealed load; returns how many rows are behind it now."""

    async def prune_workers(self) -> int:
        """Remove workers that vanished; returns how many."""

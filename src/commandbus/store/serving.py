"""What the HTTP service asks of a store: pages by key, replies with receipts, figures.

The in-memory store does not implement it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable
from uuid import UUID

from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus, TroubleshootingItem


@dataclass(frozen=True, slots=True)
class LeasedReply:
    """A reply that one reader has for a while; `receipt` proves that it is this reader."""

    msg_id: int
    receipt: int
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DomainFigures:
    """How much is where in one domain, at one moment."""

    domain: str
    ready: int
    #: Leased, or backing off.
    delayed: int
    oldest_seconds: float
    parked: int
    workers: int
    concurrency: int
    in_flight: int
    #: Since the worker that has been silent for longest was heard of.
    heartbeat_seconds: float
    batch_remaining: int


@dataclass(frozen=True, slots=True)
class GovernedFigures:
    """The counters of one governed batch, at one moment."""

    batch_id: UUID
    batch_type: str
    created_at: datetime
    completed_at: datetime | None
    succeeded: int
    failed: int
    canceled: int


@dataclass(frozen=True, slots=True)
class TroubleshootingSearch:
    """Which parked commands to list; None means any."""

    domain: str
    command_type: str | None = None
    group: str | None = None
    command_id: UUID | None = None


#: After which row a page begins: its sort key, in the order of the columns.
Key = tuple[datetime, UUID]


@runtime_checkable
class ServingStore(Protocol):
    """The verbs of the service."""

    async def page_troubleshooting(
        self, criteria: TroubleshootingSearch, *, after: Key | None, limit: int
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first."""

    async def page_batches(
        self, domain: str, *, status: str | None, before: Key | None, limit: int
    ) -> list[BatchMetadata]:
        """Batches, newest first."""

    async def page_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None,
        after: tuple[int, datetime, UUID] | None,
        limit: int,
    ) -> list[tuple[int, CommandMetadata]]:
        """Commands of a batch in their order, each with its number; those sent later come last."""

    async def lease_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[LeasedReply]:
        """Lease replies of a queue."""

    async def acknowledge_replies(self, queue: str, receipts: Mapping[int, int]) -> set[int]:
        """Delete the replies whose receipt still holds; returns their numbers."""

    async def knows_domain(self, domain: str) -> bool:
        """Whether the queues of a domain are there."""

    async def domain_figures(self) -> Sequence[DomainFigures]:
        """The figures of all domains, in one query."""

    async def governed_figures(self, since: datetime) -> Sequence[GovernedFigures]:
        """Governed batches that are open, or have ended since then."""

    def pool_figures(self) -> Mapping[str, int]:
        """How the pool of connections stands: size, available, waiting, max."""

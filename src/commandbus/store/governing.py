"""What governance asks of a store. The in-memory store does not implement it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    ChildTicket,
    Exemption,
    LimitState,
    TicketStatus,
    UserLimits,
)
from commandbus.models import NewCommand

#: The limits of the settings, by limit type.
Defaults = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Request:
    """A submission as far as limits and repeats are concerned."""

    user_id: str
    batch_type: str
    size: int
    request_id: UUID | None
    #: Of the body: a request_id that comes again must bring the same.
    digest: bytes
    defaults: Defaults


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a batch may be submitted now."""

    #: go, replay, mismatch, size or limit.
    word: str
    #: Of a replay.
    ticket_id: UUID | None
    #: Of size and limit: limit_type, scope, current_value, max_value, retry_after.
    refusal: Mapping[str, Any]
    limits: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True)
class NewTicket:
    """A governed batch that is about to be created."""

    ticket_id: UUID
    domain: str
    requires_approval: bool
    reason: str | None
    #: For the audit.
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TicketSearch:
    """Which tickets to list. None: whatever it is."""

    domains: frozenset[str] | None = None
    owner: str | None = None
    batch_types: frozenset[str] | None = None
    status: TicketStatus | None = None
    #: Only older than this ticket.
    before: tuple[datetime, UUID] | None = None


class SubmissionTransaction(Protocol):
    """One transaction: begin, then the application's own checks, then create."""

    @property
    def conn(self) -> Any:
        """The connection that the checks may read on."""

    async def begin(self, request: Request) -> Verdict:
        """Look for a repeat, take the locks, compare with the limits."""

    async def find(self, ticket_id: UUID) -> BatchTicket | None:
        """A ticket, in this transaction."""

    async def create(
        self, request: Request, ticket: NewTicket, commands: Sequence[NewCommand]
    ) -> tuple[BatchTicket, tuple[LimitState, ...]]:
        """Write parent, children and audit; returns the ticket, and the limits after it."""


@runtime_checkable
class GovernanceStore(Protocol):
    """The verbs of governed batches and limits."""

    async def ensure_domain(self, domain: str) -> None:
        """Create the queues of a domain if they are missing."""

    def submission(self) -> AbstractAsyncContextManager[SubmissionTransaction]:
        """Open the transaction of a submission; an error rolls all of it back."""

    async def get_tickets(
        self, ticket_ids: Sequence[UUID], *, conn: Any = None
    ) -> list[BatchTicket]:
        """Those of these tickets that are there."""

    async def list_tickets(self, search: TicketSearch, *, limit: int) -> list[BatchTicket]:
        """Tickets, newest first."""

    async def list_children(
        self, ticket_id: UUID, *, after: int, limit: int, status: ChildStatus | None
    ) -> list[ChildTicket]:
        """Children in the order of the request."""

    async def retry_ticket(
        self, ticket: BatchTicket, *, cap: int, actor: str, reason: str | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Send failed children again; returns the numbers of the retried and of the exhausted."""

    async def cancel_batch(
        self, domain: str, batch_id: UUID, *, reason: str, actor: str | None
    ) -> int:
        """Cancel some of what nobody works on; returns how many, 0 when there are none left."""

    async def decide_ticket(
        self,
        ticket: BatchTicket,
        decision: str,
        *,
        user_id: str,
        reason: str | None,
        self_approval: bool,
        conn: Any = None,
    ) -> None:
        """Approve or reject; the same a second time is nothing, the other way is refused."""

    async def decision_maker(
        self, domain: str, command_id: UUID, batch_type: str, *, conn: Any
    ) -> str | None:
        """Who submitted the batch that this command is a child of; None: nobody may have."""

    # -- limits
    async def count_request(self) -> tuple[int, int]:
        """One more API request: how many in this minute, and the seconds left of it."""

    async def limit_states(self, user_id: str | None, defaults: Defaults) -> tuple[LimitState, ...]:
        """The limits as they stand; None: the global ones."""

    async def pending_users(
        self, defaults: Defaults
    ) -> tuple[tuple[str, tuple[LimitState, ...]], ...]:
        """Users with anything pending, the fullest first."""

    async def set_exemption(
        self, user_id: str, *, actor: str, reason: str, expires_at: datetime | None
    ) -> Exemption:
        """Lift the user layer for a user."""

    async def clear_exemption(self, user_id: str, *, actor: str) -> bool:
        """Take it back; False: there was none."""

    async def list_exemptions(self) -> list[Exemption]:
        """Those that hold now."""

    async def set_user_limits(self, limits: UserLimits, *, actor: str) -> UserLimits:
        """Change a user's own limits; None leaves one as it is, all None removes them."""

    async def list_user_limits(self) -> list[UserLimits]:
        """Users with limits of their own."""

"""The words of governance: who asks, batch tickets and their children, limits, API tokens (003)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Scope(StrEnum):
    """What a caller may do. None of them contains another, except that ADMIN contains all."""

    READ = "read"
    READ_PAYLOAD = "read-payload"
    SEND = "send"
    OPERATE = "operate"
    APPROVE = "approve"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has been authenticated."""

    user_id: str
    scopes: frozenset[Scope]
    #: The domains it may touch; None: all of them.
    domains: frozenset[str] | None = None
    #: Of its API token, for the audit; None: it came with another proof.
    token_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether it has this scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def reaches(self, domain: str) -> bool:
        """Whether it may touch this domain."""
        return self.domains is None or domain in self.domains


class TicketStatus(StrEnum):
    """Where a governed batch stands, in 003's words (decision C17)."""

    PENDING_APPROVAL = "PENDING_APPROVAL"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    PARTIAL_SUCCESS = "PARTIAL_SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class ChildStatus(StrEnum):
    """Where one of its commands stands, in 003's words."""

    PENDING = "PENDING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class ChildTicket:
    """One command of a governed batch."""

    #: The id of its command.
    ticket_id: UUID
    parent_ticket_id: UUID
    #: Counts from 1, in the order of the request.
    sequence_no: int
    status: ChildStatus
    #: Redacted, and at most 512 characters.
    error_message: str | None
    #: How often it was dispatched; never reset.
    attempt_count: int
    last_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchTicket:
    """A governed batch: the row of `batch_approval_tickets`, and what the service adds to it."""

    ticket_id: UUID
    domain: str
    batch_type: str
    child_count: int
    success_count: int
    failed_count: int
    pending_count: int
    canceled_count: int
    status: TicketStatus
    reason: str | None
    created_by: str
    created_at: datetime
    #: The last change of its counters or its status.
    updated_at: datetime
    completed_at: datetime | None = None
    requires_approval: bool = False
    #: Who approved or rejected it, when, and with which words.
    decided_by: str | None = None
    decided_at: datetime | None = None
    decision_reason: str | None = None
    request_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class TicketPage:
    """Some tickets, newest first; `next_cursor` leads to the older ones."""

    items: tuple[BatchTicket, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ChildPage:
    """Some children in the order of the request; `next_after` leads to the rest."""

    items: tuple[ChildTicket, ...]
    next_after: int | None


class LimitType(StrEnum):
    """Each limit by its own name (decision C36)."""

    GLOBAL_PENDING_BATCHES = "global_pending_batches"
    GLOBAL_API_REQUESTS = "global_api_requests"
    USER_PENDING_BATCHES = "user_pending_batches"
    USER_COOLDOWN = "user_cooldown"
    USER_PENDING_CHILDREN = "user_pending_children"


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit as it stood at one moment: what the RateLimit headers are made of."""

    limit_type: LimitType
    #: "global" or "user".
    scope: str
    current_value: int
    #: For the cooldown: its seconds. None: lifted by an exemption.
    max_value: int | None
    #: Seconds until it eases by itself; None: it does when work gets done.
    reset_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class UserLimits:
    """A user's own limits. None: the default holds."""

    user_id: str
    max_pending_batches: int | None = None
    max_pending_children: int | None = None
    cooldown_seconds: int | None = None
    updated_by: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Exemption:
    """A user whom the user layer does not bind. The global layer still does (decision C38)."""

    user_id: str
    exempted_by: str
    reason: str
    #: None: until it is taken back.
    expires_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LimitsStatus:
    """What an administrator sees: the limits in force, how full they are, and the exceptions."""

    limits: tuple[LimitState, ...]
    defaults: dict[str, int]
    exemptions: tuple[Exemption, ...]
    overrides: tuple[UserLimits, ...]
    #: Of users with anything pending: the fullest first.
    users: tuple[tuple[str, tuple[LimitState, ...]], ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a request for a governed batch."""

    ticket: BatchTicket
    #: The request was known by its request_id: nothing was created, nothing was charged.
    is_replay: bool
    limits: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True)
class ChildRetry:
    """What a retry of failed children did. Both lists hold sequence numbers."""

    ticket: BatchTicket
    retried: tuple[int, ...]
    #: Failed children whose attempt_count has reached the cap.
    exhausted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemError:
    """What is wrong with one item of a request. `index` counts from 0, as in the JSON list."""

    index: int
    #: A path inside the item, for example "cpu"; empty: the item itself.
    field: str
    #: Never carries the value.
    message: str


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token, without its secret."""

    token_id: str
    user_id: str
    scopes: frozenset[Scope]
    domains: frozenset[str] | None
    label: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def caller(self) -> Caller:
        """Who comes with it."""
        return Caller(self.user_id, self.scopes, self.domains, self.token_id)


#: The JSON of one item of a request.
Item = dict[str, Any]

"""The data of governance: tickets and their children, what may be done with them, limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from commandbus.models import CommandStatus


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
    #: Of everything that was submitted, as hexadecimal digits; None: older than digests.
    content_digest: str | None = None
    #: Edits of its children that wait for a decision.
    edit_count: int = 0
    #: When it is canceled unless somebody decides before; None: it waits for nothing, or for ever.
    expires_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended: something is still pending, or waits for a decision."""
        return self.status in OPEN

    @property
    def is_undecided(self) -> bool:
        """Whether the batch as a whole waits for a decision."""
        return self.requires_approval and self.decided_at is None and self.pending_count > 0

    @property
    def actions(self) -> tuple[TicketAction, ...]:
        """What its state allows; `governance.allowed_actions` says what a caller may do of it."""
        possible = {
            TicketAction.RETRY: self.failed_count > 0,
            TicketAction.CANCEL: self.pending_count > 0,
            TicketAction.APPROVE: self.is_undecided,
            TicketAction.REJECT: self.is_undecided,
        }
        return tuple(action for action in possible if possible[action])


@dataclass(frozen=True, slots=True)
class Edit:
    """A payload that an operator proposes for a child, and that waits for a decision."""

    editor: str
    created_at: datetime
    #: When it is dropped unless somebody decides before; None: it waits for ever.
    expires_at: datetime | None
    #: An approval must name it: then it is an approval of exactly this payload.
    digest: str
    #: From the payload that the child has, redacted: paths, and values that may be shown.
    changes: dict[str, Any]
    #: With its secrets masked; None: it cannot be read.
    payload: Any
    #: Values of the payload that are not shown. The digest covers them.
    masked_count: int


@dataclass(frozen=True, slots=True)
class ReviewedChild:
    """A child as those who decide see it."""

    ticket_id: UUID
    sequence_no: int
    status: ChildStatus
    #: Of what was submitted.
    digest: str | None
    #: With its secrets masked; None: it is no longer kept.
    payload: Any
    #: Values of the payload that are not shown. The digest covers them.
    masked_count: int
    #: Its payload is not the one that was submitted: an edit of it was approved.
    is_edited: bool
    #: The edit that waits for a decision.
    edit: Edit | None


@dataclass(frozen=True, slots=True)
class Review:
    """What a decision is about. The digest of the ticket covers all children, on all pages."""

    ticket: BatchTicket
    #: All of the batch, or only those whose edits wait if the batch itself is decided.
    children: tuple[ReviewedChild, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something that waits for a decision: a batch, or the edit of one child."""

    ticket_id: UUID
    #: The id of the child's command; None: the batch waits.
    command_id: UUID | None
    sequence_no: int | None
    domain: str
    batch_type: str
    child_count: int
    reason: str | None
    created_by: str
    #: Who proposed the edit; None: the batch waits.
    editor: str | None
    created_at: datetime
    expires_at: datetime | None
    #: Of the batch, or of the edit.
    digest: str | None


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit as it stood at one moment: what the RateLimit headers are made of."""

    limit_type: LimitType
    #: "global" or "user".
    scope: str
    current_value: int
    #: For the cooldown: its seconds. None: lifted by an exemption.
    max_value: int | None
    #: Seconds until it drops by itself; None: it drops as commands end.
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
    """A user to whom the limits per user do not apply. The global ones still do."""

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
class SentCommand:
    """What became of a command that was sent for a caller."""

    command_id: UUID
    status: CommandStatus
    #: The caller sent it before; nothing new was created.
    is_repeat: bool
    #: `sent`, `repeat`, or, if its unique key is held, `skipped` or `replaced`: then the command is
    #: the one that holds the key.
    outcome: str = "sent"


@dataclass(frozen=True, slots=True)
class GovernedType:
    """A command type that a batch type governs, as the database knows it."""

    domain: str
    command_type: str
    batch_type: str
    #: Where it is submitted; None: where all batches are.
    path: str | None
    requires_approval: bool
    registered_at: datetime


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


class TicketStatus(StrEnum):
    """Where a governed batch stands, as its ticket shows it."""

    PENDING_APPROVAL = "PENDING_APPROVAL"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    PARTIAL_SUCCESS = "PARTIAL_SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class TicketAction(StrEnum):
    """What may be done with a ticket."""

    RETRY = "retry"
    CANCEL = "cancel"
    APPROVE = "approve"
    REJECT = "reject"


class ChildStatus(StrEnum):
    """Where a child stands, as its ticket shows it."""

    PENDING = "PENDING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class LimitType(StrEnum):
    """Each limit by its own name."""

    GLOBAL_PENDING_BATCHES = "global_pending_batches"
    GLOBAL_API_REQUESTS = "global_api_requests"
    USER_PENDING_BATCHES = "user_pending_batches"
    USER_COOLDOWN = "user_cooldown"
    USER_PENDING_CHILDREN = "user_pending_children"


#: A ticket with one of these has not ended: something is still pending.
OPEN = frozenset({TicketStatus.PENDING_APPROVAL, TicketStatus.IN_PROGRESS})

#: The JSON of one item of a request.
Item = dict[str, Any]

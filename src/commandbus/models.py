"""The data of commandbus: frozen values that applications and all folders share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack
from uuid import UUID

from commandbus.flow import Flow, SendOptions

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # known to type checkers, whatever is installed

    Data = TypeVar("Data", default=dict[str, Any])
else:
    from typing import TypeVar

    Data = TypeVar("Data")


class CommandStatus(StrEnum):
    """The state of a command; docs/lifecycle.md shows how it changes."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    IN_TROUBLESHOOTING_QUEUE = "IN_TROUBLESHOOTING_QUEUE"

    @property
    def is_terminal(self) -> bool:
        """Whether the command has ended, with its one reply published."""
        return self in {CommandStatus.COMPLETED, CommandStatus.CANCELED, CommandStatus.FAILED}


class BatchStatus(StrEnum):
    """The state of a batch."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"


class ReplyOutcome(StrEnum):
    """How the command of a reply has ended."""

    SUCCESS = "SUCCESS"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


#: What to do with commands that a worker has: refuse to cancel them, or ask the worker to end them.
Running = Literal["refuse", "request"]
#: What a cancel came to: the command has ended, or its worker is asked to end it.
CancelAnswer = Literal["canceled", "requested"]


class ParkReason(StrEnum):
    """Why a command is in troubleshooting."""

    PERMANENT = "PERMANENT"
    EXHAUSTED = "EXHAUSTED"


class AuditEventType(StrEnum):
    """What the audit records."""

    SENT = "SENT"
    REPLACED = "REPLACED"
    EXPIRED = "EXPIRED"
    RESCHEDULED = "RESCHEDULED"
    PRIORITY_CHANGED = "PRIORITY_CHANGED"
    LEVELS_CHANGED = "LEVELS_CHANGED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    RECEIVED = "RECEIVED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    GIVEN_UP = "GIVEN_UP"
    RELEASED = "RELEASED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    SNOOZED = "SNOOZED"
    DISCARDED = "DISCARDED"
    UNCONFIRMED = "UNCONFIRMED"
    MOVED_TO_TROUBLESHOOTING_QUEUE = "MOVED_TO_TROUBLESHOOTING_QUEUE"
    OPERATOR_RETRY = "OPERATOR_RETRY"
    OPERATOR_CANCEL = "OPERATOR_CANCEL"
    OPERATOR_COMPLETE = "OPERATOR_COMPLETE"
    NOTE = "NOTE"
    STALE_RESULT_REJECTED = "STALE_RESULT_REJECTED"
    BATCH_STARTED = "BATCH_STARTED"
    BATCH_COMPLETED = "BATCH_COMPLETED"
    BATCH_REOPENED = "BATCH_REOPENED"
    BATCH_SEALED = "BATCH_SEALED"
    BATCH_CANCELED = "BATCH_CANCELED"
    BATCH_SUBMITTED = "BATCH_SUBMITTED"
    BATCH_APPROVED = "BATCH_APPROVED"
    BATCH_REJECTED = "BATCH_REJECTED"
    BATCH_EXPIRED = "BATCH_EXPIRED"
    BATCH_RETRIED = "BATCH_RETRIED"
    EDIT_PROPOSED = "EDIT_PROPOSED"
    EDIT_APPROVED = "EDIT_APPROVED"
    EDIT_REJECTED = "EDIT_REJECTED"
    EDIT_DROPPED = "EDIT_DROPPED"
    EDIT_EXPIRED = "EDIT_EXPIRED"
    GOVERNANCE_BYPASSED = "GOVERNANCE_BYPASSED"
    GOVERNED_TYPE_REMOVED = "GOVERNED_TYPE_REMOVED"
    BULK_STARTED = "BULK_STARTED"
    BULK_STOPPED = "BULK_STOPPED"
    BULK_RESUMED = "BULK_RESUMED"
    BULK_FINISHED = "BULK_FINISHED"
    GROUP_NOTE = "GROUP_NOTE"
    GROUP_ASSIGNED = "GROUP_ASSIGNED"
    DOCTOR_REPAIR = "DOCTOR_REPAIR"
    AUDIT_PRUNED = "AUDIT_PRUNED"
    LIMIT_EXEMPTED = "LIMIT_EXEMPTED"
    LIMIT_EXEMPTION_ENDED = "LIMIT_EXEMPTION_ENDED"
    LIMITS_CHANGED = "LIMITS_CHANGED"
    EXECUTION_LIMIT_SET = "EXECUTION_LIMIT_SET"
    EXECUTION_LIMIT_CLEARED = "EXECUTION_LIMIT_CLEARED"
    KEY_SKIPPED = "KEY_SKIPPED"
    KEY_POLICY_SET = "KEY_POLICY_SET"
    SCHEDULE_PUT = "SCHEDULE_PUT"
    SCHEDULE_PAUSED = "SCHEDULE_PAUSED"
    SCHEDULE_RESUMED = "SCHEDULE_RESUMED"
    SCHEDULE_DELETED = "SCHEDULE_DELETED"
    SCHEDULE_TRIGGERED = "SCHEDULE_TRIGGERED"
    SCHEDULE_SKIPPED = "SCHEDULE_SKIPPED"
    SCHEDULE_MISSED = "SCHEDULE_MISSED"
    SCHEDULE_FAILED = "SCHEDULE_FAILED"
    TOKEN_CREATED = "TOKEN_CREATED"  # noqa: S105  (a word, no secret)
    TOKEN_ROTATED = "TOKEN_ROTATED"  # noqa: S105
    TOKEN_REVOKED = "TOKEN_REVOKED"  # noqa: S105
    CONSOLE_SIGNED_IN = "CONSOLE_SIGNED_IN"
    CONSOLE_SIGNED_OUT = "CONSOLE_SIGNED_OUT"
    CONSOLE_ACTION = "CONSOLE_ACTION"
    CONSOLE_REFUSED = "CONSOLE_REFUSED"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Through whose eyes a search looks. Without one, as in the application's own process, it shows
    everything; `access.visibility` makes that of a caller.
    """

    #: Of governed batches only those of this owner are shown; None: those of all owners.
    owner: str | None = None
    #: Whether events of tokens and limits are shown.
    sees_access: bool = True


#: Who sees everything.
EVERYTHING = Viewer()


@dataclass(frozen=True, slots=True)
class Command(Generic[Data]):
    """What a handler is given. `Command[DebitAccount]` has its data as a DebitAccount."""

    domain: str
    command_type: str
    command_id: UUID
    data: Data
    correlation_id: UUID
    reply_to: str | None
    created_at: datetime
    batch_id: UUID | None = None


@dataclass(frozen=True, slots=True, init=False)
class BatchCommand:
    """A command to be sent together with others; `options` are those of `CommandBus.send`."""

    command_type: str
    command_id: UUID
    data: dict[str, Any]
    reply_to: str | None
    correlation_id: UUID | None
    #: When it may start, in which order, and under which limit; None: nothing of it is said.
    options: SendOptions | None

    def __init__(
        self,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        # By hand: seven more fields would cost everybody who sends many commands.
        put = object.__setattr__
        put(self, "command_type", command_type)
        put(self, "command_id", command_id)
        put(self, "data", data)
        put(self, "reply_to", reply_to)
        put(self, "correlation_id", correlation_id)
        put(self, "options", options or None)


class SendReport(list[UUID]):
    """The ids of what `send_many` has sent, in the order of the call, and of what it has not.

    `skipped`, with `on_duplicate="skip"`: for each command that was left out the id of the one that
    is there instead, which is its own unless its unique key is held by another.
    """

    def __init__(self, sent: Iterable[UUID] = (), skipped: Iterable[UUID] = ()) -> None:
        super().__init__(sent)
        self.skipped = list(skipped)

    @property
    def sent(self) -> list[UUID]:
        """The ids of what was sent."""
        return list(self)

    def __repr__(self) -> str:
        """Both lists."""
        return f"SendReport(sent={self.sent!r}, skipped={self.skipped!r})"


# Not frozen, as Lease: many are made at once.
@dataclass(slots=True, unsafe_hash=True)
class NewCommand:
    """A command that was checked and encoded, ready to be stored. An empty reply_to: no reply."""

    command_type: str
    command_id: UUID
    data: bytes
    reply_to: str
    correlation_id: UUID
    max_attempts: int
    #: When, in which order and under which limit it may start; None: it says nothing of that.
    flow: Flow | None = None
    #: What travels with it beside its data, checked; None: nothing.
    meta: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CommandMetadata:
    """The row of a command, without its payload."""

    domain: str
    queue_name: str
    msg_id: int | None
    command_id: UUID
    command_type: str
    status: CommandStatus
    attempts: int
    max_attempts: int
    lease_expires_at: datetime | None
    last_error_type: str | None
    last_error_code: str | None
    last_error_msg: str | None
    created_at: datetime
    updated_at: datetime
    reply_queue: str
    correlation_id: UUID
    batch_id: UUID | None
    lease_epoch: int
    leased_by: str | None
    #: Not before this time; None: it was not delayed.
    deliver_at: datetime | None = None
    #: It ends as CANCELED if it is not begun by then.
    expires_at: datetime | None = None
    #: From -2 to 2; None: 0.
    priority: int | None = None
    ordering_key: str | None = None
    limit_key: str | None = None
    #: When it may start, if it is PENDING and that is in the future: delayed, or backing off.
    due_at: datetime | None = None
    #: What it waits for beside its time, in words.
    waiting_for: str | None = None
    #: Since when it is in the history, where it does not change any more; None: it is not there.
    history_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running command has come, as its handler last said."""

    #: From 0 to 1.
    fraction: float
    message: str | None
    #: When that was written, by the clock of the database.
    at: datetime


@dataclass(frozen=True, slots=True)
class TroubleshootingItem:
    """A command that waits for an operator, with the payload that a retry would send."""

    domain: str
    command_id: UUID
    command_type: str
    reason: ParkReason
    parked_at: datetime
    attempts: int
    max_attempts: int
    last_error_type: str | None
    last_error_code: str | None
    last_error_msg: str | None
    correlation_id: UUID
    reply_queue: str
    batch_id: UUID | None
    created_at: datetime
    data: dict[str, Any] | None
    #: Where in the code its last failure was raised; None if code did not raise it.
    stack: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the audit."""

    audit_id: int
    domain: str
    command_id: UUID
    event_type: str
    ts: datetime
    details: dict[str, Any] | None
    batch_id: UUID | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """The row of a batch: its status and counts."""

    batch_id: UUID
    domain: str
    name: str | None
    custom_data: dict[str, Any] | None
    status: str
    total_count: int
    completed_count: int
    failed_count: int
    canceled_count: int
    in_troubleshooting_count: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    #: Since when all of its commands are in the history; None: they are not.
    history_since: datetime | None = None


BatchCompletionCallback = Callable[[BatchMetadata], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class ReplyError:
    """Why a command did not succeed."""

    code: str | None
    message: str | None
    error_class: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """The one reply to a command."""

    command_id: UUID
    correlation_id: UUID
    domain: str
    type: str
    outcome: ReplyOutcome
    completed_at: datetime
    data: Any
    error: ReplyError | None
    #: What the handler let travel with it; None: nothing.
    meta: Mapping[str, str] | None = None

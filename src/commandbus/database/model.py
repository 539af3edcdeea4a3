"""What only the store and its callers exchange: new batches, leases, outcomes, edits, replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from commandbus.errors import GovernedTypeError
from commandbus.models import NewCommand


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that was checked, ready to be stored. JSON is encoded already."""

    batch_id: UUID
    domain: str
    name: str | None
    custom_data: bytes | None
    created_by: str | None
    on_complete: bytes | None
    notifies: bool
    #: Who sends its commands, for the audit; None: who creates it.
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class MarkedPayload:
    """The payload of a command, and which of its keys must not be shown."""

    command_type: str
    #: As JSON; None: it is gone.
    data: str | None
    #: Those that handlers have declared, here or in any other process.
    secret_keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Governing:
    """A batch type that governs a command type, and where it is submitted."""

    command_type: str
    batch_type: str
    path: str | None


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """Somebody for whom a verb acts in one domain; the database decides by it whether it may."""

    user_id: str
    may_bypass: bool
    #: Of the domain, those that this process has declared.
    declared: tuple[Governing, ...]

    def refuse_governed(self, command_types: Collection[str]) -> None:
        """What require_ungoverned does, where there is no database to ask: in memory, for tests."""
        found = [each for each in self.declared if each.command_type in command_types]
        if found and not self.may_bypass:
            names = sorted({each.batch_type for each in found})
            kinds = " and ".join(sorted({each.command_type for each in found}))
            raise GovernedTypeError(f"{kinds} must be submitted as {' or '.join(names)}", names)


# Not frozen, though nobody changes one: to set the fields of a frozen object takes three times as
# long, for each command that is received.
@dataclass(slots=True, unsafe_hash=True)
class Lease:
    """A received command that is this worker's alone for a while, as number `lease_epoch`.

    The payload is still text: each is decoded by itself, so that one that cannot be decoded does
    not stop the others.
    """

    domain: str
    command_id: UUID
    command_type: str
    msg_id: int
    lease_epoch: int
    attempt: int
    max_attempts: int
    is_suspect: bool
    correlation_id: UUID
    reply_queue: str
    batch_id: UUID | None
    created_at: datetime
    payload: str | None = field(repr=False)
    #: How often its handler said Snooze; None: never.
    snoozes: int | None = None
    #: Whether others may wait for its end: its domain has limits of execution, or it has a key.
    is_limited: bool = False
    #: What travels with it beside its payload, as JSON; None: nothing.
    meta: str | None = None
    #: When it was due, by the monotonic clock of this process; None: not asked for, or it was
    #: started before.
    due_at: float | None = None


class OutcomeKind(StrEnum):
    """The ways a lease ends; each is one SQL function."""

    COMPLETE = "complete"
    RETRY = "retry"
    PARK = "park"
    FAIL = "fail"
    RELEASE = "release"
    SNOOZE = "snooze"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is stored of a failed attempt; redacted already."""

    error_type: str
    code: str
    message: str
    details: dict[str, Any] | None = None
    #: Where in the code it was raised, as commandbus.worker.stacks makes it.
    stack: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """How far a command has come, as its handler says; redacted already."""

    lease: Lease
    fraction: float
    message: str | None


@dataclass(frozen=True, slots=True)
class OutgoingCommands:
    """Commands that a handler sends, to be committed with its outcome."""

    domain: str
    commands: tuple[NewCommand, ...]
    batch_id: UUID | None = None
    #: Who sends them, for the audit.
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a command that was offered with a unique key."""

    #: Its place in the call, from 1.
    number: int
    #: `sent`, `skipped` or `replaced`.
    verdict: str
    #: Its own id, or that of the command which holds its key.
    command_id: UUID


@dataclass(slots=True, unsafe_hash=True)  # not frozen, for the same reason as Lease
class Outcome:
    """How one lease ends: decided by the executor, written by the completer."""

    lease: Lease
    kind: OutcomeKind
    result: bytes = b"null"
    delay_seconds: float = 0.0
    #: Of a command that is parked a ParkReason, of one that is snoozed or discarded a text.
    reason: str | None = None
    failure: Failure | None = None
    sends: tuple[OutgoingCommands, ...] = ()
    #: What travels with the reply; None: nothing.
    meta: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A payload that replaces another at a retry: encoded, with its redacted difference."""

    data: bytes
    previous_msg_id: int | None
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueuedReply:
    """A reply as it lies in a queue, leased until it is acknowledged."""

    queue: str
    msg_id: int
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PgmqMessage:
    """A message as PGMQ returns it."""

    msg_id: int
    read_ct: int
    enqueued_at: datetime
    vt: datetime
    message: Any

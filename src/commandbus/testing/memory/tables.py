"""The tables of the store in memory, and what every verb does to them.

Rows are frozen and replaced, never changed: so a copy of the dictionaries is a copy of the state,
which is how a verb that fails halfway leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from commandbus.database.model import Lease
from commandbus.flow import Pause
from commandbus.models import (
    AuditEvent,
    AuditEventType,
    BatchMetadata,
    CommandMetadata,
    CommandStatus,
    ParkReason,
    Progress,
)
from commandbus.names import wakeup_channel
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import Queues

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from commandbus.testing.memory.unique import KeyRow

Key = tuple[str, UUID]
#: Domain and ordering key.
OrderingKey = tuple[str, str]
Made = TypeVar("Made", bound="DataclassInstance")
#: Stands in the audit where an event is about no single command.
NOBODY = UUID(int=0)
IdScope = Literal["domain", "global"]


@dataclass(frozen=True, slots=True)
class CommandRow(CommandMetadata):
    """A row of command_bus_command, and the payload that was sent with it."""

    msg_id: int
    data: bytes = b""
    #: Its place in the batch that was created with it; None if it joined one, or has none.
    sequence_no: int | None = None
    lapses: int = 0
    started_alone: bool = False
    snoozes: int | None = None
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    #: Its number among those of its ordering key.
    key_seq: int | None = None

    @property
    def key(self) -> Key:
        """Its key in the tables."""
        return self.domain, self.command_id

    @property
    def place(self) -> tuple[bool, int]:
        """Sorts by sequence_no, those without one last."""
        return self.sequence_no is None, self.sequence_no or 0

    @property
    def turn(self) -> tuple[bool, int]:
        """Sorts by key_seq, those without one last."""
        return self.key_seq is None, self.key_seq or 0

    @property
    def is_open(self) -> bool:
        """Neither ended nor parked."""
        return self.status in {CommandStatus.PENDING, CommandStatus.IN_PROGRESS}

    @property
    def is_waiting(self) -> bool:
        """PENDING, and no worker has leased it."""
        return self.status is CommandStatus.PENDING and self.leased_by is None

    def is_leased_as(self, lease: Lease) -> bool:
        """Whether this lease is the current one; any older lease is fenced."""
        return self.leased_by is not None and self.lease_epoch == lease.lease_epoch


@dataclass(frozen=True, slots=True)
class DomainFlow:
    """A row of command_bus_flow, and the pauses of command types."""

    #: Of the domain (None), and of command types.
    pauses: Mapping[str | None, Pause] = field(default_factory=dict)
    #: How much waiting one level of priority is worth.
    level_seconds: float = 60.0
    #: Whether a parked command blocks its ordering key, or is stepped over: `skip`.
    on_park: str = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow(BatchMetadata):
    """A row of command_bus_batch. All are sealed: there are no loads here."""

    on_complete: bytes | None
    notifies: bool
    close_count: int

    @property
    def is_done(self) -> bool:
        """Whether all of its commands have ended."""
        return self.completed_count + self.failed_count + self.canceled_count == self.total_count


def iso8601(moment: datetime) -> str:
    """UTC with microseconds and a Z, as in every envelope."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def made(kind: type[Made], row: object, **others: Any) -> Made:
    """A value of this kind: these fields, and all others from the attributes of `row`."""
    same = {f.name: getattr(row, f.name) for f in fields(kind) if f.name not in others}
    return kind(**same, **others)


class State:
    """Everything that the store in memory remembers."""

    TABLES = (
        "commands", "parked", "batches", "inbox", "unique", "audit", "flows", "heads", "progress",
    )  # fmt: skip

    def __init__(self, clock: FakeClock, id_scope: IdScope = "domain") -> None:
        self.clock = clock
        self.id_scope = id_scope
        self.queues = Queues(clock)
        self.commands: dict[Key, CommandRow] = {}
        self.parked: dict[Key, tuple[ParkReason, datetime]] = {}
        self.batches: dict[UUID, BatchRow] = {}
        self.inbox: dict[Key, bytes] = {}
        self.unique: dict[tuple[str, str], KeyRow] = {}
        self.audit: list[AuditEvent] = []
        #: What handlers said, and the lease that they had.
        self.progress: dict[Key, tuple[int, Progress]] = {}
        self.flows: dict[str, DomainFlow] = {}
        #: By ordering key, the command whose turn it is: it is due, runs, backs off or is parked.
        self.heads: dict[OrderingKey, UUID] = {}
        #: Channels to notify after the verb, as NOTIFY does at commit.
        self.notices: list[str] = []

    def copy(self) -> State:
        """A fork that shares nothing but the clock and frozen rows."""
        fork = State(self.clock, self.id_scope)
        fork.queues = self.queues.copy()
        for table in self.TABLES:
            setattr(fork, table, getattr(self, table).copy())
        return fork

    def restore(self, backup: State) -> None:
        """Go back to a copy; the queues stay the same object, which clients use."""
        self.queues.restore(backup.queues)
        for table in self.TABLES:
            setattr(self, table, getattr(backup, table))
        self.notices = []

    def change(self, row: CommandRow, **changes: Any) -> CommandRow:
        """Replace a row by one with these changes."""
        changed = self.commands[row.key] = replace(row, **changes)
        return changed

    def flow(self, domain: str) -> DomainFlow:
        """What holds for a domain, if nothing was said about it too."""
        return self.flows.get(domain) or DomainFlow()

    def change_batch(self, batch: BatchRow, **changes: Any) -> BatchRow:
        """Replace the row of a batch by one with these changes."""
        changed = self.batches[batch.batch_id] = replace(batch, **changes)
        return changed

    def record(
        self,
        row: CommandRow | BatchRow,
        event: AuditEventType,
        ts: datetime,
        details: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Add an event of a command, or of a batch, whose event has the id of the batch."""
        subject = row.command_id if isinstance(row, CommandRow) else row.batch_id
        known = (len(self.audit) + 1, row.domain, subject, event.value, ts)
        kept = None if details is None else dict(details)
        self.audit.append(AuditEvent(*known, kept, row.batch_id, actor))

    def record_domain(
        self, domain: str, event: AuditEventType, details: Mapping[str, Any], actor: str | None
    ) -> None:
        """Add an event of a domain: of no command, without details that are None."""
        known = {
            name: iso8601(value) if isinstance(value, datetime) else value
            for name, value in details.items()
            if value is not None
        }
        ts = self.clock.now()
        number = len(self.audit) + 1
        self.audit.append(
            AuditEvent(number, domain, NOBODY, event.value, ts, known or None, None, actor)
        )

    def wake_workers(self, domain: str) -> None:
        """Wake the workers of a domain after the verb."""
        self.notices.append(wakeup_channel(domain))

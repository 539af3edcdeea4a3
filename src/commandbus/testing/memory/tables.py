"""The tables of the store in memory, and the errors and events that every verb shares.

Rows are frozen and replaced, never changed: so a copy of the dictionaries is a copy of the state,
which is how a verb that fails halfway leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import orjson

from commandbus.models import (
    AuditEvent,
    AuditEventType,
    BatchMetadata,
    BatchStatus,
    CommandMetadata,
    CommandStatus,
    Lease,
    ParkReason,
)
from commandbus.names import wakeup_channel
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import Queues

Key = tuple[str, UUID]
IdScope = Literal["domain", "global"]


@dataclass(frozen=True, slots=True)
class CommandRow(CommandMetadata):
    """A row of command_bus_command, and the payload that was sent with it."""

    msg_id: int
    data: bytes
    #: Its place in the batch that was created with it; None if it joined one, or has none.
    sequence_no: int | None = None
    lapses: int = 0
    started_alone: bool = False

    @property
    def key(self) -> Key:
        """What the tables know it by."""
        return self.domain, self.command_id

    @property
    def place(self) -> tuple[bool, int]:
        """Sorts by sequence_no, those without one last."""
        return self.sequence_no is None, self.sequence_no or 0

    @property
    def is_open(self) -> bool:
        """Neither ended nor parked."""
        return self.status in {CommandStatus.PENDING, CommandStatus.IN_PROGRESS}

    @property
    def is_waiting(self) -> bool:
        """PENDING, and no worker has it."""
        return self.status is CommandStatus.PENDING and self.leased_by is None

    def is_leased_as(self, lease: Lease) -> bool:
        """Whether this lease is the one that counts: the fence."""
        return self.leased_by is not None and self.lease_epoch == lease.lease_epoch

    def metadata(self) -> CommandMetadata:
        """The row as callers see it."""
        return CommandMetadata(**{f.name: getattr(self, f.name) for f in fields(CommandMetadata)})


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of command_bus_batch. All are sealed: there are no loads here."""

    batch_id: UUID
    domain: str
    name: str | None
    encoded_data: bytes | None
    on_complete: bytes | None
    notifies: bool
    created_at: datetime
    total_count: int
    status: BatchStatus = BatchStatus.PENDING
    completed_count: int = 0
    failed_count: int = 0
    canceled_count: int = 0
    in_troubleshooting_count: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None
    close_count: int = 0

    @property
    def custom_data(self) -> Any:
        """Decoded anew for each caller."""
        return None if self.encoded_data is None else orjson.loads(self.encoded_data)

    @property
    def is_done(self) -> bool:
        """Whether all of its commands have ended."""
        return self.completed_count + self.failed_count + self.canceled_count == self.total_count

    def metadata(self) -> BatchMetadata:
        """The row as callers see it."""
        values = {f.name: getattr(self, f.name) for f in fields(BatchMetadata)}
        return BatchMetadata(**{**values, "status": self.status.value})


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of command_bus_troubleshooting."""

    reason: ParkReason
    parked_at: datetime


class State:
    """Everything that the store in memory remembers."""

    TABLES = ("commands", "parked", "batches", "inbox", "audit", "secret_keys")

    def __init__(self, clock: FakeClock, id_scope: IdScope = "domain") -> None:
        self.clock = clock
        self.id_scope = id_scope
        self.queues = Queues(clock)
        self.commands: dict[Key, CommandRow] = {}
        self.parked: dict[Key, ParkedRow] = {}
        self.batches: dict[UUID, BatchRow] = {}
        self.inbox: dict[Key, bytes] = {}
        self.audit: list[AuditEvent] = []
        #: Keys that must not be shown, by domain and command type.
        self.secret_keys: dict[tuple[str, str], frozenset[str]] = {}
        #: Channels to notify once the verb is through, as NOTIFY does at commit.
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
        """Add an event of a command, or of a batch, which stands under its own id."""
        number = len(self.audit) + 1
        subject = row.command_id if isinstance(row, CommandRow) else row.batch_id
        kept = None if details is None else dict(details)
        self.audit.append(
            AuditEvent(number, row.domain, subject, event.value, ts, kept, row.batch_id, actor)
        )

    def wake_workers(self, domain: str) -> None:
        """A hint to the workers of a domain, once the verb is through."""
        self.notices.append(wakeup_channel(domain))

"""The tables of the in-memory store, and the errors and events that every verb shares.

Rows are frozen and replaced, never changed: so a copy of the dictionaries is a copy of the state,
which is how a verb that fails halfway leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from commandbus.names import commands_queue, wakeup_channel
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import Queues
from commandbus.troubleshooting.model import FailureGroup

Key = tuple[str, UUID]
IdScope = Literal["domain", "global"]


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A row of command_bus_command, and the payload that was sent with it."""

    domain: str
    command_id: UUID
    command_type: str
    msg_id: int
    max_attempts: int
    created_at: datetime
    updated_at: datetime
    reply_queue: str
    correlation_id: UUID
    batch_id: UUID | None
    data: bytes
    #: Its place in the batch that was created with it; None if it joined one, or has none.
    sequence_no: int | None = None
    status: CommandStatus = CommandStatus.PENDING
    attempts: int = 0
    lease_expires_at: datetime | None = None
    last_error_type: str | None = None
    last_error_code: str | None = None
    last_error_msg: str | None = None
    lease_epoch: int = 0
    leased_by: str | None = None
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

    def is_held(self, lease: Lease) -> bool:
        """Whether this lease is the one that counts: the fence."""
        return self.leased_by is not None and self.lease_epoch == lease.lease_epoch

    def metadata(self) -> CommandMetadata:
        """The row as callers see it."""
        return CommandMetadata(
            domain=self.domain,
            queue_name=commands_queue(self.domain),
            msg_id=self.msg_id,
            command_id=self.command_id,
            command_type=self.command_type,
            status=self.status,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            lease_expires_at=self.lease_expires_at,
            last_error_type=self.last_error_type,
            last_error_code=self.last_error_code,
            last_error_msg=self.last_error_msg,
            created_at=self.created_at,
            updated_at=self.updated_at,
            reply_queue=self.reply_queue,
            correlation_id=self.correlation_id,
            batch_id=self.batch_id,
            lease_epoch=self.lease_epoch,
            leased_by=self.leased_by,
        )


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of command_bus_batch. All are sealed: there is no loading here."""

    batch_id: UUID
    domain: str
    name: str | None
    custom_data: bytes | None
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
    def is_done(self) -> bool:
        """Whether all of its commands have ended."""
        return self.completed_count + self.failed_count + self.canceled_count == self.total_count

    def metadata(self) -> BatchMetadata:
        """The row as callers see it."""
        return BatchMetadata(
            batch_id=self.batch_id,
            domain=self.domain,
            name=self.name,
            custom_data=None if self.custom_data is None else orjson.loads(self.custom_data),
            status=self.status.value,
            total_count=self.total_count,
            completed_count=self.completed_count,
            failed_count=self.failed_count,
            canceled_count=self.canceled_count,
            in_troubleshooting_count=self.in_troubleshooting_count,
            created_at=self.created_at,
            started_at=self.started_at,
            completed_at=self.completed_at,
        )


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of command_bus_troubleshooting."""

    reason: ParkReason
    parked_at: datetime
    fingerprint: str


class State:
    """Everything that the in-memory store remembers."""

    def __init__(self, clock: FakeClock, id_scope: IdScope = "domain") -> None:
        self.clock = clock
        self.id_scope = id_scope
        self.queues = Queues(clock)
        self.commands: dict[Key, CommandRow] = {}
        self.parked: dict[Key, ParkedRow] = {}
        self.groups: dict[tuple[str, str], FailureGroup] = {}
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
        fork.commands = dict(self.commands)
        fork.parked = dict(self.parked)
        fork.groups = dict(self.groups)
        fork.batches = dict(self.batches)
        fork.inbox = dict(self.inbox)
        fork.audit = list(self.audit)
        fork.secret_keys = dict(self.secret_keys)
        return fork

    def restore(self, backup: State) -> None:
        """Go back to a copy; the queues stay the same object, which clients hold."""
        self.queues.restore(backup.queues)
        self.commands = backup.commands
        self.parked = backup.parked
        self.groups = backup.groups
        self.batches = backup.batches
        self.inbox = backup.inbox
        self.audit = backup.audit
        self.secret_keys = backup.secret_keys
        self.notices = []

    def change(self, row: CommandRow, **changes: Any) -> CommandRow:
        """Replace a row by one with these changes."""
        changed = replace(row, **changes)
        self.commands[row.key] = changed
        return changed

    def change_batch(self, batch: BatchRow, **changes: Any) -> BatchRow:
        """Replace the row of a batch by one with these changes."""
        changed = replace(batch, **changes)
        self.batches[batch.batch_id] = changed
        return changed

    def record(
        self,
        row: CommandRow,
        event: AuditEventType,
        ts: datetime,
        details: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Add an event of a command to the audit."""
        self._add_event(row.domain, row.command_id, event, ts, details, row.batch_id, actor)

    def record_batch(
        self,
        batch: BatchRow,
        event: AuditEventType,
        ts: datetime,
        details: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Add an event of a batch, which stands under its own id."""
        self._add_event(batch.domain, batch.batch_id, event, ts, details, batch.batch_id, actor)

    def _add_event(
        self,
        domain: str,
        command_id: UUID,
        event: AuditEventType,
        ts: datetime,
        details: Mapping[str, Any] | None,
        batch_id: UUID | None,
        actor: str | None,
    ) -> None:
        kept = None if details is None else dict(details)
        self.audit.append(
            AuditEvent(
                len(self.audit) + 1, domain, command_id, event.value, ts, kept, batch_id, actor
            )
        )

    def wake_workers(self, domain: str) -> None:
        """A hint to the workers of a domain, once the verb is through."""
        self.notices.append(wakeup_channel(domain))

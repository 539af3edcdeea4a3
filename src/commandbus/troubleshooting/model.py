"""Failure groups, and bulk operations on many parked commands: their data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Parked commands with one cause. `message` is without the parts that differ between them."""

    domain: str
    fingerprint: str
    command_type: str
    error_class: str | None
    error_code: str | None
    message: str
    #: Of the failure that came last.
    sample_message: str | None
    sample_command_id: UUID
    #: How many are parked now; exact.
    parked_count: int
    #: How often a command was parked with it so far.
    total_seen: int
    first_seen: datetime
    last_seen: datetime
    #: Frames of the user's code in the failure that came last: the outermost and the innermost.
    first_frame: str | None = None
    last_frame: str | None = None


class BulkVerb(StrEnum):
    """What a bulk operation does to a parked command."""

    RETRY = "retry"
    CANCEL = "cancel"
    COMPLETE = "complete"


class BulkStatus(StrEnum):
    """Where a bulk operation stands."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"


class BulkOutcome(StrEnum):
    """What became of one item. Skipped: the command has changed since it was chosen."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """Which parked commands are meant. All given conditions must hold; none: all commands."""

    domain: str
    command_type: str | None = None
    error_code: str | None = None
    #: The fingerprint of a failure group; its first characters are enough.
    group: str | None = None
    batch_id: UUID | None = None
    #: From this time on, and before this time.
    parked_after: datetime | None = None
    parked_before: datetime | None = None
    command_ids: tuple[UUID, ...] | None = None

    def conditions(self) -> dict[str, Any]:
        """The filter as it is stored; equal filters give equal documents."""
        found: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "domain" or value is None:
                continue
            if isinstance(value, datetime):
                value = value.astimezone(UTC).isoformat()
            elif isinstance(value, tuple):
                value = [str(command_id) for command_id in sorted(set(value))]
            found[spec.name] = str(value) if isinstance(value, UUID) else value
        return found


@dataclass(frozen=True, slots=True)
class BulkMatch:
    """How many commands of one failure group match a filter."""

    fingerprint: str
    command_type: str
    error_class: str | None
    error_code: str | None
    message: str
    matched: int


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """What a filter matches now."""

    domain: str
    total: int
    groups: tuple[BulkMatch, ...]


@dataclass(frozen=True, slots=True)
class EditExample:
    """What an edit would do to one command: what changes, secrets masked, or why it fails."""

    command_id: UUID
    #: "changed", "added", "removed": lists of paths with values; empty if nothing changes.
    changes: dict[str, Any]
    failure: str | None


@dataclass(frozen=True, slots=True)
class EditPreview:
    """What an edit would do to the commands that a filter matches now."""

    domain: str
    #: How many match, and how many of them were looked at: the first ones.
    total: int
    looked_at: int
    #: Of those: how many would change, would be sent again as they are, would stay parked.
    changed: int
    unchanged: int
    failed: int
    #: Why, and how often; the most frequent ones.
    failures: dict[str, int]
    examples: tuple[EditExample, ...]


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """A bulk operation and how far it is."""

    operation_id: UUID
    domain: str
    verb: BulkVerb
    conditions: dict[str, Any]
    arguments: dict[str, Any]
    #: Commands per second; None: as fast as possible.
    rate: float | None
    actor: str | None
    status: BulkStatus
    total: int
    done: int
    skipped: int
    failed: int
    #: Who acted last, and when.
    executor: str | None
    heartbeat_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def acted(self) -> int:
        """How many items have their outcome."""
        return self.done + self.skipped + self.failed

    @property
    def left(self) -> int:
        """How many items have no outcome yet."""
        return self.total - self.acted

    @property
    def edited_paths(self) -> tuple[str, ...]:
        """What the edit of a retry writes to; empty without an edit. Its values are not shown."""
        return tuple(self.arguments.get("edit", {}).get("paths", ()))

    @property
    def is_running(self) -> bool:
        """Whether executors act on it; False once it is stopped or finished."""
        return self.status is BulkStatus.RUNNING

    @property
    def is_finished(self) -> bool:
        """Whether every item has its outcome."""
        return self.status is BulkStatus.FINISHED


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One command of a bulk operation; its outcome is None until it was acted on."""

    item_no: int
    command_id: UUID
    outcome: BulkOutcome | None
    detail: str | None
    acted_at: datetime | None


@dataclass(frozen=True, slots=True)
class BulkStep:
    """What one chunk did, and how long to wait before the next."""

    status: BulkStatus
    acted: int
    wait_seconds: float

"""Failure groups, and bulk operations on many parked commands: their data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from commandbus.names import in_utc


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
    #: The newest remark about the group; the audit has all of them, under `audit_id`.
    note: str | None = None
    note_by: str | None = None
    note_at: datetime | None = None
    #: Who looks after it.
    assignee: str | None = None
    #: When its last parked command left it; None: never since this is kept.
    emptied_at: datetime | None = None
    #: When it was last seen again after that, how long it had been empty, and how often it was.
    back_at: datetime | None = None
    back_after: timedelta | None = None
    back_count: int = 0
    #: What `bus.get_audit_trail` takes for what people did to the group itself.
    audit_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class GroupList:
    """Failure groups, largest first. `is_cut`: there are more; a search text finds them."""

    groups: tuple[FailureGroup, ...]
    is_cut: bool


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
    #: What failed in this operation, as long as nobody has acted on it since.
    failed_of: UUID | None = None

    def conditions(self) -> dict[str, Any]:
        """The filter as it is stored; equal filters give equal documents."""
        found: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "domain" or value is None:
                continue
            if isinstance(value, datetime):
                value = in_utc(value).isoformat()
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
class BulkSample:
    """One of the commands that a filter matches, without its payload."""

    command_id: UUID
    command_type: str
    fingerprint: str
    parked_at: datetime
    attempts: int
    error_code: str | None
    error_message: str | None
    correlation_id: UUID
    batch_id: UUID | None


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """What a filter matches now."""

    domain: str
    total: int
    groups: tuple[BulkMatch, ...]
    #: Those that are parked longest, if they were asked for.
    samples: tuple[BulkSample, ...] = ()


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
    #: Why, in the words of who started it.
    reason: str | None = None
    #: It has only this many of what matched, the oldest; None: all.
    limit: int | None = None
    #: No item before this time; None: at once.
    starts_at: datetime | None = None
    #: When it last went on, and how many items had their outcome by then.
    resumed_at: datetime | None = None
    resumed_from: int = 0
    #: Who stopped it last, and when.
    stopped_by: str | None = None
    stopped_at: datetime | None = None

    @property
    def acted(self) -> int:
        """How many items have their outcome."""
        return self.done + self.skipped + self.failed

    @property
    def left(self) -> int:
        """How many items have no outcome yet."""
        return self.total - self.acted

    @property
    def per_second(self) -> float | None:
        """Items per second, since it started or last went on; None until that can be told."""
        since = max(filter(None, (self.started_at, self.resumed_at)), default=None)
        if since is None or self.heartbeat_at is None:
            return None
        seconds = (self.heartbeat_at - since).total_seconds()
        acted = self.acted - self.resumed_from
        if seconds <= 0 or acted <= 0:
            return None
        # The first items are acted on at the very beginning: of few items that is a large part.
        return acted / seconds if self.rate is None else min(acted / seconds, self.rate)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at the rate that it reaches; None if that is not known."""
        pace = self.per_second or self.rate
        return None if not self.is_running or pace is None else self.left / pace

    @property
    def last_sign_at(self) -> datetime:
        """When an executor last acted on it, or could first have done so."""
        found = (self.heartbeat_at, self.resumed_at, self.starts_at, self.created_at)
        return max(moment for moment in found if moment is not None)

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

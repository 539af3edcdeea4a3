"""Schedules: their data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Missed(StrEnum):
    """What becomes of ticks that nobody fired within a minute."""

    #: The latest of them is made up.
    ONCE = "once"
    #: None is.
    SKIP = "skip"
    #: Each is, the oldest first, at most `missed_cap` of them.
    ALL = "all"


class Overlap(StrEnum):
    """Whether a tick sends a command while the one before is still open."""

    SKIP = "skip"
    ALLOW = "allow"


class ScheduleStatus(StrEnum):
    """Whether a schedule fires."""

    ACTIVE = "active"
    PAUSED = "paused"
    #: It has no tick left.
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """When a schedule is due: one of cron, every_seconds and at."""

    cron: str | None
    timezone: str | None
    every_seconds: float | None
    at: datetime | None
    #: What an interval is counted from.
    counted_from: datetime

    def is_same(self, other: ScheduleTime) -> bool:
        """Whether both are due at the same times, wherever they were begun."""
        mine = (self.cron, self.timezone, self.every_seconds, self.at)
        return mine == (other.cron, other.timezone, other.every_seconds, other.at)

    def __str__(self) -> str:
        """As people read it."""
        if self.cron is not None:
            return f"{self.cron} ({self.timezone})"
        if self.every_seconds is not None:
            return f"every {self.every_seconds:g} s"
        return f"once at {self.at}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: what it sends, when, and how it stands."""

    schedule_id: UUID
    domain: str
    name: str
    command_type: str
    #: One of cron (with its timezone), every_seconds and at.
    cron: str | None
    timezone: str | None
    every_seconds: float | None
    at: datetime | None
    #: What an interval is counted from.
    counted_from: datetime
    missed: Missed
    missed_cap: int
    overlap: Overlap
    jitter_seconds: float
    expires_in_seconds: float | None
    priority: int | None
    ordering_key: str | None
    #: '': its commands have no reply.
    reply_to: str
    max_attempts: int
    #: None: it is finished.
    next_tick_at: datetime | None
    #: The last tick that was settled: sent, skipped or missed.
    last_tick_at: datetime | None
    #: The command of the last tick that was sent.
    last_command_id: UUID | None
    #: Why its command could not be sent; None: it could.
    last_error: str | None
    #: Grows with each change, not with ticks.
    version: int
    created_by: str | None
    created_at: datetime
    updated_by: str | None
    updated_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    #: For whom the HTTP service put it; None: an application did.
    put_for: str | None
    #: What travels with its commands beside their data; None: nothing.
    meta: dict[str, str] | None
    #: The payload with its secrets masked; None: it was not asked for.
    data: Any = field(default=None, repr=False)

    @property
    def time(self) -> ScheduleTime:
        """When it is due."""
        return ScheduleTime(
            self.cron, self.timezone, self.every_seconds, self.at, self.counted_from
        )

    @property
    def status(self) -> ScheduleStatus:
        """Whether it fires."""
        if self.next_tick_at is None:
            return ScheduleStatus.FINISHED
        return ScheduleStatus.ACTIVE if self.paused_at is None else ScheduleStatus.PAUSED


class UnknownZone(LookupError):  # noqa: N818  (it never leaves this package)
    """The zone data of this machine has no such zone."""

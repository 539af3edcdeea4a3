"""What a run of the demo tells while it goes on, and what it gives in the end."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from commandbus.demo.tables import Counts, Progress


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The database is there and migrated."""

    server_version: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkersReady:
    """The worker processes have begun to work."""

    pids: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Committed:
    """One payment and its command were committed together, and the command was completed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Another payment was rolled back with its command; `traces`: rows of it that are left."""

    traces: int


@dataclass(frozen=True, slots=True)
class Sent:
    """All commands were sent in one transaction."""

    commands: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker was killed while it had leases, and another was started."""

    pid: int
    leases: int
    replacement: int


@dataclass(frozen=True, slots=True)
class OperatorRetried:
    """The cause was fixed, and one of the parked commands sent again: it was completed."""

    left: int


Step = ServerReady | WorkersReady | Committed | RolledBack | Sent | Killed | OperatorRetried
Told = Step | Progress


@dataclass(frozen=True, slots=True)
class Result:
    """What the tables said in the end."""

    counts: Counts
    killed_workers: int
    leases_of_killed: int
    rolled_back_traces: int
    example: UUID
    operator_retried: UUID | None

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing twice, and nothing of what was rolled back."""
        return not (self.counts.lost or self.counts.double_effects or self.rolled_back_traces)

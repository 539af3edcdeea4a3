"""What a run has shown of limits, ordering keys, pauses, expiry and schedules."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlaceSample:
    """The places of one gate at one moment."""

    at: float
    gate: str
    limit: int
    #: Pid of a worker, and how many places the commands that it has leased take.
    holders: dict[int, int]

    @property
    def taken(self) -> int:
        """All of them."""
        return sum(self.holders.values())


@dataclass(frozen=True, slots=True)
class Rate:
    """How often commands of one type may be leased, or those of each limit key of it."""

    #: "": of all types together.
    command_type: str
    per_second: float
    burst: float
    by_key: bool = False


@dataclass(frozen=True, slots=True)
class PauseSeen:
    """One pause: between these two times, by the database's clock, it was committed and held."""

    committed: float
    resuming: float
    #: None: the whole domain.
    command_type: str | None
    #: (command, epoch) of each lease that was there two seconds after the commit, and that moment.
    held: list[tuple[str, int]]
    held_at: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """One schedule: what was planned, and what came of it."""

    name: str
    planned: int
    sent: int
    #: In the audit: because the last command was open, or because they came too late.
    skipped: int
    dropped: int


@dataclass(slots=True)
class FlowFacts:
    """Filled by nemeses and watchers while the run goes on, and from the database at its end."""

    places: list[PlaceSample] = field(default_factory=list)
    #: Commands with a lease but no place, or the reverse, in each snapshot.
    place_mismatches: list[int] = field(default_factory=list)
    #: Places that are left after the drain.
    places_left: int = 0
    rates: list[Rate] = field(default_factory=list)
    #: For each key the longest time without a head that is due, leased or backing off.
    stuck_keys: dict[str, float] = field(default_factory=dict)
    key_samples: int = 0
    pauses: list[PauseSeen] = field(default_factory=list)
    #: Command to its times, in seconds; None: it has none.
    due_at: dict[str, float] = field(default_factory=dict)
    expires_at: dict[str, float] = field(default_factory=dict)
    ticks: list[Ticked] = field(default_factory=list)
    #: What the doctor finds after the drain.
    findings: list[str] = field(default_factory=list)
    #: A lease and two seconds: so long a key or a limit may need after a death.
    patience_seconds: float = 0.0

"""What a run has left behind: the logs of its processes, and the database after the drain.

Times are seconds of the database's clock. The checker and the figures are pure functions of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from faults.facts_flow import FlowFacts

ENDED = frozenset({"COMPLETED", "CANCELED", "FAILED"})
PARKED = "IN_TROUBLESHOOTING_QUEUE"
OPEN = frozenset({"PENDING", "IN_PROGRESS"})

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Send:
    """One try to send a command, as its producer saw it."""

    command_id: str
    #: `unknown`: it raised, and may be committed. `duplicate`: the id was there before.
    outcome: Literal["ok", "unknown", "duplicate", "refused"]
    at: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease that a worker got an answer about."""

    command_id: str
    epoch: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Start:
    """A handler that was called."""

    command_id: str
    epoch: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Finish:
    """A result that a worker brought, and what it was told."""

    command_id: str
    epoch: int
    pid: int
    at: float
    #: `accepted`: the call returned and did not name it as stale.
    verdict: Literal["accepted", "stale"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a command's row, as the tap in the database saw it."""

    seq: int
    at: float
    command_id: str
    old_status: str | None
    new_status: str | None
    old_epoch: int
    new_epoch: int
    old_holder: str | None
    new_holder: str | None
    #: Until when the lease that was there before ran.
    held_until: float | None
    #: Its ordering key, and its number then.
    ordering_key: str | None = None
    key_seq: int | None = None

    @property
    def is_claim(self) -> bool:
        """Somebody took a lease."""
        return self.new_holder is not None and self.new_epoch != self.old_epoch

    @property
    def is_completion(self) -> bool:
        """Its handler has ended well."""
        return self.new_status == "COMPLETED" and self.old_status == "IN_PROGRESS"

    @property
    def is_takeover(self) -> bool:
        """A lease has ended that was not given back: another took it, or its command waits."""
        return self.new_epoch != self.old_epoch and self.old_holder is not None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the audit."""

    audit_id: int
    at: float
    command_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Row:
    """A command after the drain."""

    command_id: str
    command_type: str
    status: str
    attempts: int
    max_attempts: int
    epoch: int
    holder: str | None
    msg_id: int | None
    dispatch_status: str
    #: Whether a reply was asked for.
    wants_reply: bool
    #: What limits by key count it by.
    limit_key: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a handler did: a row in the side table. A transactional one is part of the finish."""

    command_id: str
    epoch: int
    is_transactional: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch after the drain, its counters beside a recount."""

    batch_id: str
    counters: tuple[int, int, int, int, int]
    recount: tuple[int, int, int, int, int]
    is_closed: bool
    completions: int
    reopenings: int


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was killed or paused."""

    pid: int
    at: float
    kind: Literal["kill", "pause", "poison"]


@dataclass(frozen=True, slots=True)
class Outage:
    """From the fault until the database (or the way to it) was there again."""

    began: float
    ready: float


@dataclass(frozen=True, slots=True)
class Phases:
    """When the run was calm before the storm, stormy, and calm again."""

    before: tuple[float, float] = (0.0, 0.0)
    during: tuple[float, float] = (0.0, 0.0)
    after: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is known of one run."""

    sends: list[Send] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    #: command_id of each reply that lies in a queue.
    replies: list[str] = field(default_factory=list)
    #: (msg_id, command_id or None) of each message in the queue of commands.
    messages: list[tuple[int, str | None]] = field(default_factory=list)
    #: Mismatches of batch counters in each snapshot taken during the run.
    batch_samples: list[int] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    phases: Phases = Phases()
    flow: FlowFacts = field(default_factory=FlowFacts)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in their order."""
    found: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)

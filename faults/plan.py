"""What a run is: its load, its workers, its faults, and what it must show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from faults.arena import Nemesis, Watcher

Scale = Literal["short", "long", "ha"]


@dataclass(frozen=True, slots=True)
class Load:
    """What producers send: enough to keep all slots busy, and no more."""

    #: Tasks in one producer process; 0: no producer.
    tasks: int = 4
    #: Average length of a handler. Slots / work_ms is the capacity, so a lost slot shows.
    work_ms: float = 70.0
    #: Messages in the queue beside those that fill all slots; negative: some slots stay free.
    backlog: int = 30
    #: Kinds of commands and their weights; other names are command types.
    mix: dict[str, float] = field(
        default_factory=lambda: {"fine": 83.0, "transient": 10.0, "permanent": 2.0, "Write": 5.0}
    )
    #: Weights of single sends, groups of ten, batches, and groups in a transaction of the sender
    #: that stays open for a while, and is sometimes rolled back.
    groups: tuple[float, ...] = (8.0, 2.0, 0.2)
    #: Ordering keys that commands are spread over; 0: they have none.
    keys: int = 0
    #: Keys that limits by key count commands by, spread like them; 0: they have none.
    limit_keys: int = 0
    #: A command expires after seconds in this span; it is delayed by half of them at most.
    expires_seconds: tuple[float, float] | None = None
    #: Groups are sent with on_duplicate="skip".
    skips_known: bool = False
    #: Commands in all; None: as long as the run lasts.
    count: int | None = None
    #: For handlers that block or compute.
    block_seconds: float = 0.0
    pool_size: int = 10


@dataclass(frozen=True, slots=True)
class Workers:
    """The fleet."""

    number: int = 4
    concurrency: int = 4
    #: Short, so that a rescue can be watched.
    vt_seconds: int = 3
    #: More of a worker's configuration; see `working.work`.
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bars:
    """What a run must show beside the invariants. None: reported, not judged."""

    #: Seconds from a death until the command is leased again, beside the lease itself.
    rescue_seconds: float | None = None
    #: Seconds from the database being back until the first lease.
    resume_seconds: float | None = None
    #: The same until the first command has ended well.
    completion_seconds: float | None = None
    #: Rate after the storm as a share of the rate before.
    rate_after: float | None = None
    rate_during: float | None = None
    #: Runs of handlers that only a fault explains; 0 where no lease may lapse.
    duplicates: int | None = None
    #: The least count of each fault, by the name of a counter: a run without faults shows nothing.
    at_least: dict[str, int] = field(default_factory=dict)
    #: At most so much, by the name of a counter.
    at_most: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One fault run, by its id in docs/guarantees.md."""

    id: str
    title: str
    nemeses: tuple[Nemesis, ...]
    #: Who looks on, or decides, from the first worker to the end of the drain.
    watchers: tuple[Watcher, ...] = ()
    load: Load = Load()
    workers: Workers = Workers()
    bars: Bars = Bars()
    #: Seconds of calm before and after the storm in which the rate is measured.
    calm_seconds: float = 8.0
    #: Which server it needs: our own, a pair, a cluster, or one on a small disk; or a pooler before
    #: it.
    server: Literal["single", "sync_pair", "async_pair", "cluster", "small_disk", "pooler"] = (
        "single"
    )
    #: All parties reach the server through the proxy.
    has_proxy: bool = False
    #: Which invariants hold; empty: all.
    invariants: tuple[str, ...] = ()
    #: How long the drain may take at most.
    drain_seconds: float = 60.0
    #: Rough seconds in all, for the progress display.
    expected_seconds: float = 30.0
    #: SQL that is run after the installation: limits are set, or a test takes a guard away.
    sabotage: str = ""

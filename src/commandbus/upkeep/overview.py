"""Overview: how all domains stand and how fast they move, for a page that people look at.

What a look costs does not depend on how much is queued: a figure is exact up to COUNTED, and above
that an estimate, which is then named in `about`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

from commandbus.database.store import Store
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import check_domain, check_names
from commandbus.settings import check_number

#: Up to here figures are exact.
COUNTED = 10_000
#: Domains that a look shows at most, by their names.
DOMAINS_SHOWN = 500
#: Workers that a list has at most, the most silent first.
WORKERS_SHOWN = 500
#: A worker that gave no sign of life for this many seconds is silent.
SILENT_SECONDS = 60.0
#: Rates are not known when the last sample is older than this many seconds.
SAMPLE_SECONDS = 60.0

_OVERVIEW: LiteralString = (
    "select o.domain, o.ready, o.delayed, o.waiting, o.about, o.due_seconds, o.parked, o.workers,"
    " o.silent, o.concurrency, o.in_flight, o.stuck, o.is_paused, o.paused_until"
    " from {schema}.domain_overview(cast(%s as text[]), %s) o"
)
_RATES: LiteralString = (
    "select r.domain, r.as_of, r.since, r.over_seconds, r.queued, r.removed, r.completed, r.failed,"
    " r.parked, r.retried, r.hour_from, r.minutes, r.queued_in, r.removed_in, r.lost_in,"
    " clock_timestamp()"
    " from {schema}.domain_rates(cast(%s as text[])) r"
)
_TRENDS: LiteralString = (
    "select t.domain, t.fingerprint, t.hour, t.seen, date_trunc('hour', clock_timestamp())"
    " from {schema}.group_trends(cast(%s as text), cast(%s as text[]), %s, cast(%s as text)) t"
)
_WORKERS: LiteralString = (
    "select w.worker_id, w.domain, w.concurrency, w.in_flight, w.stuck, w.stuck_types, w.is_idle,"
    " w.version, w.started_at, w.heartbeat_at,"
    " cast(extract(epoch from clock_timestamp() - w.heartbeat_at) as float8),"
    " w.completed, w.failed, w.parked, w.retried"
    " from {schema}.command_bus_worker w"
    " where cast(%s as text[]) is null or w.domain = any(cast(%s as text[]))"
    " order by w.heartbeat_at, w.worker_id limit %s"
)


@dataclass(frozen=True, slots=True)
class DomainOverview:
    """How one domain stands."""

    domain: str
    #: Due, and no worker has it.
    ready: int
    #: Leased, backing off, or due later.
    delayed: int
    #: For a key, a limit, or the end of a pause of its type.
    waiting: int
    #: Those of the three above that are estimates: there are too many to count.
    about: list[str]
    #: For how long the first of the ready ones has been due.
    due_seconds: float
    parked: int
    #: Those with a sign of life in the last minute; the next two are of them.
    workers: int
    #: Those without.
    silent: int
    concurrency: int
    #: What they have leased, as their last heartbeats told.
    in_flight: int
    #: Places kept by handlers that did not end after their time-out.
    stuck: int
    is_paused: bool
    paused_until: datetime | None

    @property
    def later(self) -> int:
        """Of the delayed ones about those that no worker has: backing off, or due later."""
        return max(self.delayed - self.in_flight, 0)


@dataclass(frozen=True, slots=True)
class DomainRates:
    """What comes and goes in one domain; rates are per second over the last minute.

    `in_rate` counts messages that were queued: exact, but for sends that were rolled back.
    `out_rate` counts those that left the queue, by any way. The others are what workers told
    with their heartbeats; what consumers and operators end is not among them. All are None
    when nobody takes samples: a worker or the service does, every ten seconds.
    """

    domain: str
    #: The last sample; None: there was none yet.
    as_of: datetime | None
    in_rate: float | None
    out_rate: float | None
    completed_rate: float | None
    failed_rate: float | None
    parked_rate: float | None
    retried_rate: float | None
    #: The first of sixty whole minutes, up to now.
    hour_from: datetime
    #: What was queued, and what left the queue, in each of these minutes; None: not sampled yet.
    in_hour: list[int | None]
    out_hour: list[int | None]
    #: How many failed or were parked in each of them, as workers told: some seconds late.
    lost_hour: list[int | None]

    def seconds_to_drain(self, ready: int) -> float | None:
        """Seconds until this number is done at the present rates; None: never, or not known."""
        if ready == 0:
            return 0.0
        if self.in_rate is None or self.out_rate is None or self.out_rate <= self.in_rate:
            return None
        return ready / (self.out_rate - self.in_rate)


@dataclass(frozen=True, slots=True)
class GroupTrend:
    """How often one failure group was seen, by the hour."""

    domain: str
    fingerprint: str
    #: The last one is the current hour.
    hours: list[int]


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """One worker, as its last heartbeat told."""

    worker_id: str
    domain: str
    concurrency: int
    #: What it has leased; what exceeds its concurrency waits in its buffer.
    in_flight: int
    #: Places kept by handlers that did not end after their time-out, and their command types.
    stuck: int
    stuck_types: list[str]
    is_idle: bool
    #: None: it is of a version that does not tell.
    version: str | None
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_seconds: float
    #: What it has ended since it was put on the list.
    completed: int
    failed: int
    parked: int
    retried: int

    @property
    def process(self) -> str:
        """Host and number of its process; workers of one process have it in common."""
        return self.worker_id.rpartition(":")[0] or self.worker_id

    @property
    def is_silent(self) -> bool:
        """It gave no sign of life for a minute."""
        return self.heartbeat_seconds > SILENT_SECONDS


class Overviews:
    """How domains stand and move, and who works."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def overview(self, domains: Collection[str] | None = None) -> list[DomainOverview]:
        """How all domains stand, or those that are named: one query, bounded whatever is queued."""
        params = (_names(domains), COUNTED)
        return await self._store.gateway.rows(_OVERVIEW, params, into=DomainOverview)

    async def rates(self, domains: Collection[str] | None = None) -> dict[str, DomainRates]:
        """What comes and goes, with the last hour minute by minute: one query for all domains."""
        rows = await self._store.gateway.rows(_RATES, (_names(domains),), into=_rates_of)
        return {each.domain: each for each in rows}

    async def group_trends(
        self,
        domain: str | None = None,
        fingerprints: Collection[str] | None = None,
        *,
        hours: int = 24,
        viewer: Viewer = EVERYTHING,
    ) -> list[GroupTrend]:
        """How often failure groups were seen in the last hours; those that were not are missing.

        Groups with governed batches are shown only to who sees all batches.
        """
        check_names(domain)
        check_number(hours, "hours", 1, 168, is_whole=True)
        wanted = None if fingerprints is None else sorted(fingerprints)
        rows = await self._store.gateway.rows(_TRENDS, (domain, wanted, hours, viewer.owner))
        found: dict[tuple[str, str], GroupTrend] = {}
        for name, fingerprint, hour, seen, this in rows:
            trend = found.setdefault(
                (name, fingerprint), GroupTrend(name, fingerprint, [0] * hours)
            )
            ago = round((this - hour) / timedelta(hours=1))
            if 0 <= ago < hours:
                trend.hours[hours - 1 - ago] = seen
        return list(found.values())

    async def workers(
        self, domains: Collection[str] | None = None, *, limit: int = WORKERS_SHOWN
    ) -> list[WorkerOverview]:
        """Workers with a sign of life in the last hour or so, the most silent first."""
        check_number(limit, "limit", 1, 10_000, is_whole=True)
        wanted = _names(domains)
        return await self._store.gateway.rows(
            _WORKERS, (wanted, wanted, limit), into=WorkerOverview
        )


def _names(domains: Collection[str] | None) -> list[str] | None:
    return None if domains is None else sorted(check_domain(each) for each in domains)


def _rates_of(*row: Any) -> DomainRates:
    domain, as_of, since, seconds, *counts, hour_from, minutes, queued, removed, lost, now = row
    is_known = as_of is not None and now - as_of < timedelta(seconds=SAMPLE_SECONDS) and seconds > 0
    rates = [float(count) / seconds if is_known else None for count in counts]
    first = (since - hour_from) / timedelta(minutes=1)
    hours: list[list[int | None]] = [
        [0 if minute >= first else None for minute in range(60)] for _ in range(3)
    ]
    for hour, known in zip(hours, (queued, removed, lost), strict=True):
        for place, minute in enumerate(minutes):
            hour[minute] = known[place]
    values: Any = (*rates, hour_from.astimezone(UTC), *hours)
    return DomainRates(domain, as_of, *values)

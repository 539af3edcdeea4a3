"""Activity: what goes on at the moment, for somebody who looks every second. A look costs the same
however much is queued, waits or has failed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.names import check_domain

#: Messages of a domain that are counted; from there on depths are estimates.
MOST_COUNTED = 10_000
#: Seconds over which rates are measured. The server tells its statistics with a delay of a second.
WINDOW_SECONDS = 10.0

_DOMAINS: LiteralString = (
    "select a.domain, a.ready, a.delayed, a.is_estimate, a.oldest_seconds, a.queued_total,"
    " a.left_total, a.workers, a.concurrency, a.in_flight, a.parked, a.is_paused"
    " from {schema}.domain_activity(cast(%s as text), %s) a"
)
_WORKERS: LiteralString = (
    "select a.worker_id, a.domain, a.concurrency, a.in_flight, a.stuck, a.is_idle,"
    " a.heartbeat_seconds, a.up_seconds from {schema}.worker_activity(cast(%s as text)) a"
)
_LIMITS: LiteralString = (
    "select a.domain, a.command_type, a.by_key, a.max_running, a.rate, a.per_seconds, a.burst,"
    " a.is_paused, a.running, a.waiting, a.oldest_seconds"
    " from {schema}.limit_activity(cast(%s as text), %s) a"
)


@dataclass(frozen=True, slots=True)
class DomainActivity:
    """What goes on in one domain."""

    domain: str
    ready: int
    #: Leased, backing off, or due later.
    delayed: int
    #: Whether the two are estimates, because there are too many to count.
    is_estimate: bool
    #: Age of the oldest command that is ready.
    oldest_seconds: float
    #: Messages ever put into the queue and taken out of it, as the server's statistics say.
    queued_total: int
    left_total: int
    #: Those with a sign of life in the last minute; their places, and what they run.
    workers: int
    concurrency: int
    in_flight: int
    parked: int
    is_paused: bool
    #: None until there was a look before.
    in_per_second: float | None = None
    out_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """One worker, as its last heartbeat told."""

    worker_id: str
    domain: str
    concurrency: int
    in_flight: int
    #: Places kept by handlers that did not end after their time-out.
    stuck: int
    is_idle: bool
    heartbeat_seconds: float
    up_seconds: float


@dataclass(frozen=True, slots=True)
class LimitActivity:
    """One execution limit, and what it is up to."""

    domain: str
    #: None: all types of the domain together.
    type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    per: float | None
    burst: float | None
    is_paused: bool
    running: int
    #: 10,000 at most.
    waiting: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Activity:
    """One look at a database."""

    domains: list[DomainActivity]
    workers: list[WorkerActivity]
    limits: list[LimitActivity]


class Watch:
    """Looks again and again, and tells rates from one look to the next."""

    def __init__(
        self, store: Store, domain: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._domain = None if domain is None else check_domain(domain)
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    async def look(self) -> Activity:
        """Look once more."""
        rows = self._store.gateway.patient.rows
        params = (self._domain, MOST_COUNTED)
        domains = await rows(_DOMAINS, params, into=DomainActivity)
        found = [self.with_rates(each) for each in domains]
        workers = await rows(_WORKERS, (self._domain,), into=WorkerActivity)
        return Activity(found, workers, await rows(_LIMITS, params, into=LimitActivity))

    def with_rates(self, domain: DomainActivity) -> DomainActivity:
        """The same with what has come and gone in a second since the looks before."""
        now = self._clock()
        seen = self._seen.setdefault(domain.domain, deque())
        if seen and (domain.queued_total < seen[-1][1] or domain.left_total < seen[-1][2]):
            seen.clear()  # the server has forgotten its statistics
        # One look from before the window is kept: a long interval has rates too.
        while len(seen) > 1 and now - seen[1][0] >= WINDOW_SECONDS:
            seen.popleft()
        seen.append((now, domain.queued_total, domain.left_total))
        then, queued, left = seen[0]
        if now <= then:
            return domain
        return replace(
            domain,
            in_per_second=(domain.queued_total - queued) / (now - then),
            out_per_second=(domain.left_total - left) / (now - then),
        )

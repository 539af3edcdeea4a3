"""Figures: how much is where, at one moment, for metrics and overviews. One query each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from commandbus.models import CommandStatus
from commandbus.names import check_domain
from commandbus.upkeep.activity import Watch
from commandbus.upkeep.overview import Overviews

_KNOWS_DOMAIN: LiteralString = "select {schema}.knows_domain(%s)"
_DOMAIN_NAMES: LiteralString = "select d from {schema}.domain_names(%s) d"
_WORKER_COUNTS: LiteralString = (
    "select domain, command_type, outcome, count, seconds from {schema}.worker_counts()"
)
_LIMIT_FIGURES: LiteralString = (
    "select l.domain, coalesce(l.command_type, 'domain') || case when l.by_key then ' by key'"
    " else '' end, l.running, l.waiting from {schema}.list_limits() l"
)
_DOMAIN_FIGURES: LiteralString = (
    "select f.domain, f.ready, f.delayed, f.oldest_seconds, f.parked, f.workers, f.concurrency,"
    " f.in_flight, f.heartbeat_seconds, f.batch_remaining, f.replies, f.replies_refused,"
    " d.lag_seconds, d.pending_retry, d.unconfirmed, d.unconfirmed_seconds,"
    " (select count(*) from {schema}.paused_domains(array[f.domain])),"
    " k.blocked_keys, k.blocked_seconds"
    " from {schema}.domain_figures() f"
    " cross join lateral {schema}.dispatch_figures(f.domain) d"
    " cross join lateral {schema}.key_figures(f.domain) k"
)
_GOVERNED_FIGURES: LiteralString = (
    "select b.batch_id, b.batch_type, b.created_at, b.completed_at, b.completed_count,"
    " b.failed_count + b.in_troubleshooting_count, b.canceled_count"
    " from {schema}.command_bus_batch b where b.batch_type is not null"
    " and (b.completed_at is null or b.completed_at > %s)"
)
_COUNT_BY_STATUS: LiteralString = (
    "select c.domain, c.status, count(*) from {schema}.command_bus_command c"
    " where cast(%s as text) is null or c.domain = %s group by 1, 2"
)


@dataclass(frozen=True, slots=True)
class DomainFigures:
    """How much is where in one domain, at one moment."""

    domain: str
    ready: int
    #: Leased, or backing off.
    delayed: int
    oldest_seconds: float
    parked: int
    workers: int
    concurrency: int
    in_flight: int
    #: Age of the oldest heartbeat of its workers.
    heartbeat_seconds: float
    batch_remaining: int
    #: In its queues of replies; from 10,000 in one queue on an estimate.
    replies: int = 0
    #: Messages there that were no replies, and were archived; 10,000 at most for each queue.
    replies_refused: int = 0
    #: Since the oldest command was stored that is not in its queue yet.
    dispatch_lag_seconds: float = 0.0
    #: Of the 10,000 that wait longest to be queued: those that wait because queueing failed.
    pending_retry: int = 0
    #: Commands that a queue in another database has accepted and not brought back; 10,000 at most.
    unconfirmed: int = 0
    #: Since it accepted the oldest of them.
    unconfirmed_seconds: float = 0.0
    #: 1 while nothing of it is started, else 0.
    paused: int = 0
    #: Ordering keys that a parked command blocks; 10,000 at most.
    blocked_keys: int = 0
    #: Since the first of them was blocked.
    blocked_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GovernedFigures:
    """The counters of one governed batch, at one moment."""

    batch_id: UUID
    batch_type: str
    created_at: datetime
    completed_at: datetime | None
    succeeded: int
    failed: int
    canceled: int


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """How full one execution limit is."""

    domain: str
    #: `domain`, a command type, or `TYPE by key`.
    limit: str
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """What all workers that tell it have counted of one command type."""

    domain: str
    command_type: str
    #: As metrics name it; `handled`: calls of handlers, with their seconds.
    outcome: str
    count: int
    seconds: float


class Figures(Overviews):
    """`bus.upkeep.figures`; needs PostgreSQL."""

    async def worker_counts(self) -> list[WorkerCount]:
        """What workers have counted since the first of them told it; workers of today and before.

        Those tell it that run with `--counts`, or with `bus.monitor(counts=True)`.
        """
        return await self._store.gateway.rows(_WORKER_COUNTS, (), into=WorkerCount)

    async def knows_domain(self, domain: str) -> bool:
        """Whether the queues of a domain are in the database."""
        return bool(await self._store.gateway.value(_KNOWS_DOMAIN, (check_domain(domain),)))

    async def domain_names(self, limit: int = 500) -> list[str]:
        """The domains whose queues are in the database, by name."""
        return [name for (name,) in await self._store.gateway.rows(_DOMAIN_NAMES, (limit,))]

    async def domains(self) -> list[DomainFigures]:
        """How much waits, runs and is parked in each domain."""
        return await self._store.gateway.patient.rows(_DOMAIN_FIGURES, into=DomainFigures)

    async def limits(self) -> list[LimitFigures]:
        """How many run and wait under each execution limit."""
        return await self._store.gateway.patient.rows(_LIMIT_FIGURES, into=LimitFigures)

    def watch(self, domain: str | None = None) -> Watch:
        """What goes on in all domains or in one, for somebody who looks every second."""
        return Watch(self._store, domain)

    async def shards(self) -> dict[str, bool]:
        """Whether each shard answers, by its name; nothing, where there is one database."""
        return {}

    async def governed(self, since: datetime) -> list[GovernedFigures]:
        """The counters of governed batches that are open, or have ended since then."""
        return await self._store.gateway.patient.rows(
            _GOVERNED_FIGURES, (since,), into=GovernedFigures
        )

    async def statuses(self, domain: str | None = None) -> dict[tuple[str, CommandStatus], int]:
        """How many commands have each status, by domain; reads every row."""
        rows = await self._store.gateway.patient.rows(_COUNT_BY_STATUS, (domain, domain))
        return {(name, CommandStatus(status)): count for name, status, count in rows}

    def pool(self) -> Mapping[str, int]:
        """Connections of the pool: max, size, available, and requests that wait."""
        pool = self._store.gateway.pool
        stats = pool.get_stats()
        return {
            "max": pool.max_size,
            "size": stats.get("pool_size", 0),
            "available": stats.get("pool_available", 0),
            "waiting": stats.get("requests_waiting", 0),
        }

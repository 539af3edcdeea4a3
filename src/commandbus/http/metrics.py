"""Metrics in Prometheus' form, in a registry of their own: two apps in one process do not mix.

Labels have values from closed sets only: no id, no user, nothing that a client wrote. What the
database knows (depths, governed batches) is asked for in one refresh, which is kept for seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from commandbus.governance.model import ChildStatus, LimitType
from commandbus.upkeep.figures import DomainFigures, GovernedFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: What became of a request for a governed batch.
SUBMIT_RESULTS = frozenset(
    {"accepted", "replayed", "invalid", "too_large", "denied", "limited", "failed"}
)
#: Domains that have series of their own; the others are summed under OTHER.
MAX_DOMAINS = 200
OTHER = "other"
#: Seconds that governed batches take, from the request to the last child.
DURATIONS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
#: How long a batch that has ended is remembered, so that it is not counted again.
MEMORY = timedelta(hours=1)
_LAYERS = ("global", "user", "address")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


@dataclass(frozen=True, slots=True)
class Figures:
    """What the database and the pool say at one moment."""

    domains: Sequence[DomainFigures]
    governed: Sequence[GovernedFigures]
    pool: Mapping[str, int]
    at: datetime


class NoMetrics:
    """For an installation without prometheus-client: nothing is measured."""

    is_on = False

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""

    def limited(self, limit_type: str) -> None:
        """A request was refused by a limit."""

    def submitted(self, batch_type: str, result: str) -> None:
        """A governed batch was asked for; `result` is one of SUBMIT_RESULTS."""

    def declare(self, batch_types: Collection[str]) -> None:
        """The batch types that have series of their own."""

    def take(self, figures: Figures) -> None:
        """Take in what the database says."""

    def text(self) -> bytes:
        """All metrics as text."""
        return b""


class Metrics(NoMetrics):
    """The metrics of one app."""

    is_on = True

    def __init__(self) -> None:
        import prometheus_client as client  # noqa: PLC0415  (an extra of its own)

        self._client = client
        self._registry = client.CollectorRegistry(auto_describe=True)
        self._batch_types: frozenset[str] = frozenset()
        self._tracker = GovernedTracker()

        def counter(name: str, text: str, *labels: str) -> Any:
            return client.Counter(name, text, labels, registry=self._registry)

        def gauge(name: str, text: str, *labels: str) -> Any:
            return client.Gauge(name, text, labels, registry=self._registry)

        # These names and labels are part of the specification of governed batches.
        self._submits = counter(
            "batch_submit_total", "Requests for governed batches.", "batch_type", "result"
        )
        self._children = counter(
            "batch_child_execution_total", "Children of governed batches that ended.",
            "batch_type", "status",
        )  # fmt: skip
        self._durations = client.Histogram(
            "batch_parent_duration_seconds", "From the request to the last child.",
            buckets=DURATIONS, registry=self._registry,
        )  # fmt: skip
        self._rejections = counter(
            "rate_limit_rejections_total", "Requests refused by a limit.", "limit_type"
        )
        self._layers = counter(
            "commandbus_rate_limit_rejected_total", "The same, by layer.", "layer"
        )
        self._requests = counter(
            "commandbus_http_requests_total", "Requests answered.", "method", "route", "status"
        )
        self._seconds = client.Histogram(
            "commandbus_http_request_seconds", "Time to answer.", ("route",),
            registry=self._registry,
        )  # fmt: skip
        self._depth = gauge("commandbus_queue_depth", "Messages in the queue.", "domain", "state")
        self._gauges = {
            name: gauge(f"commandbus_{name}", text, "domain")
            for name, text in (
                ("oldest_age_seconds", "Age of the oldest command that is due."),
                ("tsq_depth", "Commands in troubleshooting."),
                ("in_flight", "Commands that workers report as leased."),
                ("workers", "Workers that are known."),
                ("worker_heartbeat_seconds", "Age of the oldest heartbeat of a worker."),
                ("batch_remaining", "Commands of open batches that have not ended."),
            )
        }
        self._pool = {
            name: gauge(f"commandbus_db_pool_{name}", f"Connections of the pool: {name}.")
            for name in ("max", "size", "available", "waiting")
        }

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        known = method if method in _METHODS else OTHER
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def limited(self, limit_type: str) -> None:
        name = str(limit_type)
        is_known = name in set(LimitType) or name == "auth_failures"
        self._rejections.labels(name if is_known else OTHER).inc()
        layer = "address" if name == "auth_failures" else name.partition("_")[0]
        self._layers.labels(layer if layer in _LAYERS else OTHER).inc()

    def submitted(self, batch_type: str, result: str) -> None:
        if result not in SUBMIT_RESULTS:
            raise ValueError(f"no result {result!r}")
        self._submits.labels(self._type(batch_type), result).inc()

    def declare(self, batch_types: Collection[str]) -> None:
        self._batch_types = frozenset(batch_types)

    def take(self, figures: Figures) -> None:
        for gauge in (self._depth, *self._gauges.values()):
            gauge.clear()  # a domain that is gone has no figures
        for each in _at_most(figures.domains, MAX_DOMAINS):
            self._depth.labels(each.domain, "ready").set(each.ready)
            self._depth.labels(each.domain, "delayed").set(each.delayed)
            for name, value in (
                ("oldest_age_seconds", each.oldest_seconds),
                ("tsq_depth", each.parked),
                ("in_flight", each.in_flight),
                ("workers", each.workers),
                ("worker_heartbeat_seconds", each.heartbeat_seconds),
                ("batch_remaining", each.batch_remaining),
            ):
                self._gauges[name].labels(each.domain).set(value)
        for name, value in figures.pool.items():
            self._pool[name].set(value)
        children, durations = self._tracker.take(figures.governed, figures.at)
        for (batch_type, status), count in children.items():
            self._children.labels(self._type(batch_type), status.value).inc(count)
        for seconds in durations:
            self._durations.observe(seconds)

    def text(self) -> bytes:
        made: bytes = self._client.generate_latest(self._registry)
        return made

    def _type(self, batch_type: str) -> str:
        return batch_type if batch_type in self._batch_types else OTHER


class GovernedTracker:
    """Makes counters that only grow out of counters of batches, which are pruned, and go back when
    children are retried. Each batch is compared with what was last seen of it.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._looked_at = now or datetime.now(UTC)
        self._seen: dict[UUID, GovernedFigures] = {}

    def take(
        self, batches: Iterable[GovernedFigures], now: datetime
    ) -> tuple[dict[tuple[str, ChildStatus], int], list[float]]:
        """What has been added since the last look: children by type and status, durations."""
        added: dict[tuple[str, ChildStatus], int] = {}
        durations: list[float] = []
        for batch in batches:
            before = self._seen.get(batch.batch_id)
            is_new = batch.created_at >= self._looked_at
            if before is not None or is_new:
                for status, name in _COUNTED:
                    old = 0 if before is None else getattr(before, name)
                    more = getattr(batch, name) - old
                    if more > 0:
                        key = (batch.batch_type, status)
                        added[key] = added.get(key, 0) + more
                if batch.completed_at is not None and (
                    before is None or before.completed_at != batch.completed_at
                ):
                    durations.append((batch.completed_at - batch.created_at).total_seconds())
            # else: older than this process, or forgotten; from now on it is watched.
            self._seen[batch.batch_id] = batch
        self._looked_at = now
        self._forget(now)
        return added, durations

    def _forget(self, now: datetime) -> None:
        old = [
            key
            for key, batch in self._seen.items()
            if batch.completed_at is not None and batch.completed_at < now - MEMORY
        ]
        for key in old:
            del self._seen[key]


_COUNTED = (
    (ChildStatus.SUCCESS, "succeeded"),
    (ChildStatus.FAILED, "failed"),
    (ChildStatus.CANCELED, "canceled"),
)


class Refresher:
    """Asks the database at most once in `cache_seconds`, however many scrapes there are."""

    def __init__(
        self,
        metrics: NoMetrics,
        read: Callable[[datetime], Awaitable[Figures]],
        *,
        cache_seconds: float,
    ) -> None:
        self._metrics = metrics
        self._read = read
        self._cache_seconds = cache_seconds
        self._read_at = -cache_seconds - 1.0
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Bring the gauges up to date."""
        async with self._lock:
            if time.monotonic() - self._read_at < self._cache_seconds:
                return
            # Well beyond the last look: a batch may have ended in a transaction that was open then.
            self._metrics.take(await self._read(datetime.now(UTC) - MEMORY))
            self._read_at = time.monotonic()


def new_metrics() -> NoMetrics:
    """Metrics, if prometheus-client is installed."""
    try:
        return Metrics()
    except ModuleNotFoundError:
        return NoMetrics()


def _at_most(domains: Sequence[DomainFigures], limit: int) -> Iterable[DomainFigures]:
    if len(domains) <= limit:
        return domains
    kept, rest = list(domains[:limit]), domains[limit:]
    names = ("ready", "delayed", "parked", "workers", "concurrency", "in_flight")
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in rest) for name in names}
    kept.append(
        DomainFigures(
            domain=OTHER,
            oldest_seconds=max(each.oldest_seconds for each in rest),
            heartbeat_seconds=max(each.heartbeat_seconds for each in rest),
            batch_remaining=sum(each.batch_remaining for each in rest),
            **sums,
        )
    )
    return kept

"""Metrics in Prometheus' form, in a registry of their own: two apps in one process do not mix.

Labels have values from closed sets only: no id, no user, nothing that a client wrote. What the
database knows (depths, governed batches) is asked for in one refresh, which is kept for seconds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from commandbus.governance.model import ChildStatus, LimitType
from commandbus.governance.types import BatchTypes
from commandbus.http.problems import OWN_LIMITS
from commandbus.monitoring.catalogue import (
    DEPTH,
    DOMAIN_GAUGES,
    LIMIT_GAUGES,
    MAX_DOMAINS,
    OTHER,
    POOL,
    SHARD_UP,
    WORKERS,
    Family,
)
from commandbus.monitoring.samples import Snapshot
from commandbus.upkeep.figures import (
    DomainFigures,
    Figures,
    GovernedFigures,
    LimitFigures,
    WorkerCount,
)
from commandbus.upkeep.gauges import at_most, counted

#: What can become of a request for a governed batch.
SUBMIT_RESULTS = frozenset(
    {"accepted", "replayed", "invalid", "too_large", "denied", "limited", "failed"}
)
#: Seconds that governed batches take, from the request to the last child.
DURATIONS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
#: How long a batch that has ended is remembered, so that it is not counted again.
MEMORY = timedelta(hours=1)
_LAYERS = ("global", "user", "token", "address")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


class NoMetrics:
    """For an installation without prometheus-client: nothing is measured."""

    is_on = False

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A response was sent."""

    def limited(self, limit_type: str) -> None:
        """A request was refused by a limit."""

    def submitted(self, batch_type: str, result: str) -> None:
        """A governed batch was asked for; `result` is one of SUBMIT_RESULTS."""

    async def refresh(self, figures: Figures, cache_seconds: float) -> None:
        """Ask the database, at most once in `cache_seconds`, however many scrapes there are."""

    def text(self) -> bytes:
        """All metrics as text."""
        return b""


class Metrics(NoMetrics):
    """The metrics of one app. Each of `batch_types` has series of its own."""

    is_on = True

    def __init__(self, batch_types: BatchTypes) -> None:
        import prometheus_client as client  # noqa: PLC0415  (an extra of its own)
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

        self._client = client
        self._registry = client.CollectorRegistry(auto_describe=True)
        self._batch_types = batch_types
        self._tracker = GovernedTracker()
        self._read_at = -math.inf
        self._lock = asyncio.Lock()

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

        def shown(family: Family) -> Any:
            return gauge(family.name, family.help, *family.labels)

        self._depth = shown(DEPTH)
        self._shards = shown(SHARD_UP)
        self._gauges = {field: shown(family) for field, family in DOMAIN_GAUGES.items()}
        self._limits = {field: shown(family) for field, family in LIMIT_GAUGES.items()}
        self._pool = {name: shown(family) for name, family in POOL.items()}
        #: The sums of all workers: they are counted elsewhere, and only shown here.
        self.counts = Snapshot()
        self._registry.register(_Counted(self, CounterMetricFamily))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        known = method if method in _METHODS else OTHER
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def limited(self, limit_type: str) -> None:
        name = str(limit_type)
        is_known = name in set(LimitType) or name in OWN_LIMITS
        self._rejections.labels(name if is_known else OTHER).inc()
        layer = "address" if name == "auth_failures" else name.partition("_")[0]
        self._layers.labels(layer if layer in _LAYERS else OTHER).inc()

    def submitted(self, batch_type: str, result: str) -> None:
        if result not in SUBMIT_RESULTS:
            raise ValueError(f"no result {result!r}")
        self._submits.labels(self._type(batch_type), result).inc()

    async def refresh(self, figures: Figures, cache_seconds: float) -> None:
        async with self._lock:
            if time.monotonic() - self._read_at < cache_seconds:
                return
            # Long before the last look: a batch may have ended in a transaction that was open then.
            since = datetime.now(UTC) - MEMORY
            domains, governed = await figures.domains(), await figures.governed(since)
            limits, counts = await figures.limits(), await figures.worker_counts()
            for name, answers in (await figures.shards()).items():
                self._shards.labels(name).set(answers)
            self.take(domains, governed, figures.pool(), datetime.now(UTC), limits)
            self.count(counts)
            self._read_at = time.monotonic()

    def take(
        self,
        domains: Sequence[DomainFigures],
        governed: Iterable[GovernedFigures],
        pool: Mapping[str, int],
        at: datetime,
        limits: Sequence[LimitFigures] = (),
    ) -> None:
        """Set the gauges, and add to the counters, from what the database says."""
        for gauge in (self._depth, *self._gauges.values(), *self._limits.values()):
            gauge.clear()  # a domain that is gone has no figures
        for each in at_most(domains, MAX_DOMAINS):
            self._depth.labels(each.domain, "ready").set(each.ready)
            self._depth.labels(each.domain, "delayed").set(each.delayed)
            for field, gauge in self._gauges.items():
                gauge.labels(each.domain).set(getattr(each, field))
        for limit in limits[:MAX_DOMAINS]:
            for field, gauge in self._limits.items():
                gauge.labels(limit.domain, limit.limit).set(getattr(limit, field))
        for name, value in pool.items():
            self._pool[name].labels("caller").set(value)
        children, durations = self._tracker.take(governed, at)
        for (batch_type, status), count in children.items():
            self._children.labels(self._type(batch_type), status.value).inc(count)
        for seconds in durations:
            self._durations.observe(seconds)

    def count(self, counts: Sequence[WorkerCount]) -> None:
        """Show what workers have told the database that they counted."""
        self.counts = Snapshot()
        for sample in counted(counts):
            self.counts.add(*sample)

    def text(self) -> bytes:
        made: bytes = self._client.generate_latest(self._registry)
        return made

    def _type(self, batch_type: str) -> str:
        return OTHER if self._batch_types.get(batch_type) is None else batch_type


class _Counted:
    """Counters whose values come from the database, as prometheus-client wants them."""

    def __init__(self, metrics: Metrics, family: Any) -> None:
        self._metrics = metrics
        self._family = family

    def collect(self) -> Iterator[Any]:
        """All series of the moment."""
        made = {
            each.name: self._family(each.name, each.help, labels=each.labels) for each in WORKERS
        }
        for family, labels, value in self._metrics.counts:
            made[family.name].add_metric(labels, value)
        yield from made.values()

    def describe(self) -> Iterator[Any]:
        """The same without values."""
        return self.collect()


class GovernedTracker:
    """Makes counters that only grow. Those of batches do not: batches are pruned, and a retry of
    children lowers them. So each batch is compared with what was last seen of it.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._looked_at = now or datetime.now(UTC)
        self._seen: dict[UUID, GovernedFigures] = {}

    def take(
        self, batches: Iterable[GovernedFigures], now: datetime
    ) -> tuple[Counter[tuple[str, ChildStatus]], list[float]]:
        """What has been added since the last look: children by type and status, durations."""
        added: Counter[tuple[str, ChildStatus]] = Counter()
        durations: list[float] = []
        for batch in batches:
            before = self._seen.get(batch.batch_id)
            is_new = batch.created_at >= self._looked_at
            if before is not None or is_new:
                for status, name in _COUNTED:
                    old = 0 if before is None else getattr(before, name)
                    added[batch.batch_type, status] += max(0, getattr(batch, name) - old)
                if batch.completed_at is not None and (
                    before is None or before.completed_at != batch.completed_at
                ):
                    durations.append((batch.completed_at - batch.created_at).total_seconds())
            # else: older than this process, or forgotten; from now on it is watched.
            self._seen[batch.batch_id] = batch
        self._looked_at = now
        self._seen = {
            key: batch
            for key, batch in self._seen.items()
            if batch.completed_at is None or batch.completed_at >= now - MEMORY
        }
        return +added, durations  # without the zeros


_COUNTED = (
    (ChildStatus.SUCCESS, "succeeded"),
    (ChildStatus.FAILED, "failed"),
    (ChildStatus.CANCELED, "canceled"),
)


def new_metrics(batch_types: BatchTypes) -> NoMetrics:
    """Metrics, if prometheus-client is installed."""
    try:
        return Metrics(batch_types)
    except ModuleNotFoundError:
        return NoMetrics()

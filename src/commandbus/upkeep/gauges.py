"""Gauges: the figures of the database as samples, for a process without the HTTP service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from commandbus.monitoring.catalogue import (
    DATABASE_UP,
    DEPTH,
    DOMAIN_GAUGES,
    LIMIT_GAUGES,
    MAX_DOMAINS,
    OTHER,
    POOL,
    SHARD_UP,
    WORKERS_COMMANDS,
    WORKERS_HANDLED,
    WORKERS_SECONDS,
    Family,
)
from commandbus.monitoring.metrics import HANDLED
from commandbus.monitoring.samples import Labels, Snapshot
from commandbus.upkeep.figures import DomainFigures, LimitFigures, WorkerCount

#: Types of their own among what all workers have counted.
MAX_SUMMED_TYPES = 1_000


def gauges(
    domains: Sequence[DomainFigures],
    limits: Sequence[LimitFigures],
    pool: Mapping[str, int],
    counts: Sequence[WorkerCount] = (),
    shards: Mapping[str, bool] | None = None,
) -> Snapshot:
    """What the database has told; with several, what those that answer have."""
    made = Snapshot()
    made.add(DATABASE_UP, (), 1)
    for name, answers in (shards or {}).items():
        made.add(SHARD_UP, (name,), int(answers))
    for each in at_most(domains, MAX_DOMAINS):
        made.add(DEPTH, (each.domain, "ready"), each.ready)
        made.add(DEPTH, (each.domain, "delayed"), each.delayed)
        for name, family in DOMAIN_GAUGES.items():
            made.add(family, (each.domain,), float(getattr(each, name)))
    for limit in limits[:MAX_DOMAINS]:
        for name, family in LIMIT_GAUGES.items():
            made.add(family, (limit.domain, limit.limit), getattr(limit, name))
    for name, value in pool.items():
        made.add(POOL[name], ("caller",), value)
    for sample in counted(counts):
        made.add(*sample)
    return made


def counted(counts: Sequence[WorkerCount]) -> Iterator[tuple[Family, Labels, float]]:
    """What workers have counted, as counters; of more types than a process has, the sum."""
    types = {each.command_type: None for each in counts}
    known = set(list(types)[:MAX_SUMMED_TYPES])
    for each in counts:
        labels = (each.domain, each.command_type if each.command_type in known else OTHER)
        if each.outcome == HANDLED:
            yield WORKERS_HANDLED, labels, each.count
            yield WORKERS_SECONDS, labels, each.seconds
        else:
            yield WORKERS_COMMANDS, (*labels, each.outcome), each.count


def no_database() -> Snapshot:
    """What is known while it does not answer."""
    made = Snapshot()
    made.add(DATABASE_UP, (), 0)
    return made


def at_most(domains: Sequence[DomainFigures], limit: int) -> Sequence[DomainFigures]:
    """The first domains, and one for all others: the sums of counts, the highest of ages."""
    kept, rest = domains[:limit], domains[limit:]
    if not rest:
        return kept
    values: dict[str, Any] = {
        spec.name: (max if spec.name.endswith("_seconds") else sum)(
            getattr(each, spec.name) for each in rest
        )
        for spec in fields(DomainFigures)
        if spec.name != "domain"
    }
    return [*kept, DomainFigures(OTHER, **values)]

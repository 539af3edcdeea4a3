"""What operators read of all shards: groups, the doctor, the overview, metrics."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from commandbus.monitoring.exposition import exposition
from commandbus.paging import check_page
from commandbus.shards.model import DEADLINE_SECONDS, Answer, Everywhere, OnShard
from commandbus.upkeep.gauges import gauges, no_database

if TYPE_CHECKING:
    from commandbus.bus import CommandBus
    from commandbus.shards.map import ShardMap
    from commandbus.troubleshooting.model import FailureGroup
    from commandbus.upkeep import Diagnosis, DomainOverview

#: How long the doctor of each shard may take, in seconds.
DOCTOR_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """The largest failure groups of all shards; and why shards are not in it."""

    items: list[OnShard[FailureGroup]]
    missing: dict[str, str]


class MergedReads(ABC):
    """Reads of `ShardedBus` for operators. Each costs one read of each shard, all at once."""

    map: ShardMap

    @abstractmethod
    async def everywhere(
        self,
        read: Callable[[CommandBus], Awaitable[Answer]],
        *,
        deadline: float = DEADLINE_SECONDS,
        names: Collection[str] | None = None,
    ) -> Everywhere[Answer]:
        """Ask all shards at once, or those of these names."""

    async def groups(
        self, domain: str | None = None, *, limit: int = 100, **criteria: Any
    ) -> MergedGroups:
        """`troubleshooting.groups` of all shards, largest first, at most `limit` in all."""
        check_page(limit)
        seen = await self.everywhere(
            lambda bus: bus.troubleshooting.groups(domain, limit=limit, **criteria)
        )
        found = (OnShard(name, group) for name, groups in seen.found.items() for group in groups)
        largest = heapq.nlargest(limit, found, key=lambda each: each.item.parked_count)
        return MergedGroups(largest, seen.missing)

    async def overview(
        self, domains: Collection[str] | None = None
    ) -> Everywhere[list[DomainOverview]]:
        """`upkeep.figures.overview` of each shard. A domain that has moved is on both."""
        return await self.everywhere(lambda bus: bus.upkeep.figures.overview(domains))

    async def diagnose(
        self, *, window: timedelta | None = None, full: bool = False,
        deadline: float = DOCTOR_SECONDS,
    ) -> Everywhere[Diagnosis]:  # fmt: skip
        """`upkeep.doctor` of each shard; it repairs nothing."""
        return await self.everywhere(
            lambda bus: bus.upkeep.doctor(window=window, full=full), deadline=deadline
        )

    async def metrics(self) -> bytes:
        """What the databases know as metrics, each with the label `shard`, for Prometheus.

        A shard that does not answer has `commandbus_database_up` 0 and nothing else.
        """
        seen = await self.everywhere(_metrics_of)
        texts = {
            name: seen.found.get(name) or exposition(no_database()) for name in self.map.shards
        }
        return _labelled(texts)


async def _metrics_of(bus: CommandBus) -> bytes:
    figures = bus.upkeep.figures
    domains, limits = await figures.domains(), await figures.limits()
    counts = await figures.worker_counts()
    return exposition(gauges(domains, limits, figures.pool(), counts))


def _labelled(texts: dict[str, bytes]) -> bytes:
    """One text of several, with the shard in each series. Those of one metric stay together."""
    #: By metric: its two lines of help, then its series.
    families: dict[str, list[str]] = {}
    for shard, text in texts.items():
        current: list[str] = []
        is_known = False
        for line in text.decode().splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_known = name in families
                current = families.setdefault(name, [])
            if not line.startswith("#"):
                current.append(_with_shard(line, shard))
            elif not is_known:
                current.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines).encode()


def _with_shard(line: str, shard: str) -> str:
    # The names of shards need no escape; a label may hold a space or a brace, a name may not.
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{shard="{shard}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{shard="{shard}"}} {value}'

"""`bus.upkeep` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.models import EVERYTHING
from commandbus.upkeep.overview import WORKERS_SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path
    from commandbus.models import CommandStatus, Viewer
    from commandbus.upkeep.activity import Watch
    from commandbus.upkeep.figures import (
        DomainFigures, Figures, GovernedFigures, LimitFigures, WorkerCount,
    )
    from commandbus.upkeep.findings import Diagnosis
    from commandbus.upkeep.heads import Head
    from commandbus.upkeep.overview import DomainOverview, DomainRates, GroupTrend, WorkerOverview
    from commandbus.upkeep.retention import PruneResult, RetentionRule
    from commandbus.upkeep.sealing import SealResult
    from commandbus.upkeep.service import Upkeep
    from commandbus.upkeep.states import Chore, SealState, SettingsOverview
    from commandbus.upkeep.verification import AuditVerification


class BlockingFigures(BlockingFacet["Figures"]):
    """`bus.upkeep.figures`; needs PostgreSQL."""

    def overview(self, domains: Collection[str] | None = None) -> list[DomainOverview]:
        """How all domains stand, or those that are named: one query, bounded whatever is
        queued."""
        return self._bridge.run(self._facet.overview(domains))

    def rates(self, domains: Collection[str] | None = None) -> dict[str, DomainRates]:
        """What comes and goes, with the last hour minute by minute: one query for all domains."""
        return self._bridge.run(self._facet.rates(domains))

    def group_trends(
        self, domain: str | None = None, fingerprints: Collection[str] | None = None, *,
        hours: int = 24, viewer: Viewer = EVERYTHING,
    ) -> list[GroupTrend]:
        """How often failure groups were seen in the last hours; those that were not are
        missing."""
        return self._bridge.run(self._facet.group_trends(
            domain, fingerprints, hours=hours, viewer=viewer,
        ))

    def workers(
        self, domains: Collection[str] | None = None, *, limit: int = WORKERS_SHOWN,
    ) -> list[WorkerOverview]:
        """Workers with a sign of life in the last hour or so, the most silent first."""
        return self._bridge.run(self._facet.workers(domains, limit=limit))

    def worker_counts(self) -> list[WorkerCount]:
        """What workers have counted since the first of them told it; workers of today and
        before."""
        return self._bridge.run(self._facet.worker_counts())

    def knows_domain(self, domain: str) -> bool:
        """Whether the queues of a domain are in the database."""
        return self._bridge.run(self._facet.knows_domain(domain))

    def domain_names(self, limit: int = 500) -> list[str]:
        """The domains whose queues are in the database, by name."""
        return self._bridge.run(self._facet.domain_names(limit))

    def domains(self) -> list[DomainFigures]:
        """How much waits, runs and is parked in each domain."""
        return self._bridge.run(self._facet.domains())

    def limits(self) -> list[LimitFigures]:
        """How many run and wait under each execution limit."""
        return self._bridge.run(self._facet.limits())

    def watch(self, domain: str | None = None) -> Watch:
        """What goes on in all domains or in one, for somebody who looks every second."""
        return self._facet.watch(domain)

    def shards(self) -> dict[str, bool]:
        """Whether each shard answers, by its name; nothing, where there is one database."""
        return self._bridge.run(self._facet.shards())

    def governed(self, since: datetime) -> list[GovernedFigures]:
        """The counters of governed batches that are open, or have ended since then."""
        return self._bridge.run(self._facet.governed(since))

    def statuses(self, domain: str | None = None) -> dict[tuple[str, CommandStatus], int]:
        """How many commands have each status, by domain; reads every row."""
        return self._bridge.run(self._facet.statuses(domain))

    def pool(self) -> Mapping[str, int]:
        """Connections of the pool: max, size, available, and requests that wait."""
        return self._facet.pool()


class BlockingUpkeep(BlockingFacet["Upkeep"]):
    """Keeps a database healthy and small. Needs PostgreSQL."""

    @cached_property
    def figures(self) -> BlockingFigures:
        """As `CommandBus.upkeep.figures`."""
        find = lambda: self._bridge.find("upkeep.figures")  # noqa: E731
        return BlockingFigures(self._bridge, find)

    def seal_state(self) -> SealState:
        """How far the audit is sealed, and what its last verification found; reads little."""
        return self._bridge.run(self._facet.seal_state())

    def chores(self, domains: Collection[str] | None = None) -> list[Chore]:
        """When each chore was begun last, and what it did; of single domains that of these."""
        return self._bridge.run(self._facet.chores(domains))

    def settings_overview(self) -> SettingsOverview:
        """The settings of the database and of this process, for people; secrets are masked."""
        return self._bridge.run(self._facet.settings_overview())

    def seal_audit(
        self, *, new_key: bool = False, seconds: float | None = None,
        progress: Callable[[SealResult], None] | None = None,
    ) -> SealResult:
        """Seal all events that no open transaction can still add to, in steps."""
        return self._bridge.run(self._facet.seal_audit(
            new_key=new_key, seconds=seconds, progress=progress,
        ))

    def get_seal_heads(self, *, limit: int = 1) -> list[Head]:
        """The last seals, the newest first, to be kept outside the database."""
        return self._bridge.run(self._facet.get_seal_heads(limit=limit))

    def verify_audit(
        self, *, window: timedelta | None = None, heads: Path | Sequence[Head] | None = None,
        keep: timedelta | None = None, approved: Collection[int] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> AuditVerification:
        """Compare the audit with its seals; changes nothing."""
        return self._bridge.run(self._facet.verify_audit(
            window=window, heads=heads, keep=keep, approved=approved, progress=progress,
        ))

    def get_retention(self) -> list[RetentionRule]:
        """The rules that were set; without a rule nothing is removed."""
        return self._bridge.run(self._facet.get_retention())

    def set_retention(
        self, kind: str, keep: timedelta | None, *, domain: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Keep a kind of rows for this time; None: without limit."""
        return self._bridge.run(self._facet.set_retention(
            kind, keep, domain=domain, operator=operator,
        ))

    def clear_retention(self, kind: str, *, domain: str | None = None) -> bool:
        """Remove a rule; returns whether there was one."""
        return self._bridge.run(self._facet.clear_retention(kind, domain=domain))

    def prune(
        self, *, domain: str | None = None, older_than: timedelta | None = None,
        kinds: Sequence[str] | None = None, dry_run: bool = False, operator: str | None = None,
        progress: Callable[[PruneResult], None] | None = None, seconds: float | None = None,
    ) -> list[PruneResult]:
        """Remove what is finished and old: by the rules, or everything older than `older_than`."""
        return self._bridge.run(self._facet.prune(
            domain=domain, older_than=older_than, kinds=kinds, dry_run=dry_run, operator=operator,
            progress=progress, seconds=seconds,
        ))

    def tend_audit(
        self, *, operator: str | None = None, seconds: float | None = None,
    ) -> list[PruneResult]:
        """Make parts of the audit ahead, and drop those of which all is old, by the rules."""
        return self._bridge.run(self._facet.tend_audit(operator=operator, seconds=seconds))

    def tend_archives(
        self, *, domain: str | None = None, kinds: Sequence[str] | None = None,
        seconds: float | None = None,
    ) -> list[PruneResult]:
        """Divide archives that have grown into parts, and drop those of which all is old."""
        return self._bridge.run(self._facet.tend_archives(
            domain=domain, kinds=kinds, seconds=seconds,
        ))

    def doctor(
        self, *, domain: str | None = None, window: timedelta | None = None, full: bool = False,
        fix: bool = False, operator: str | None = None,
    ) -> Diagnosis:
        """Examine the database in one read-only snapshot; with `fix`, repair and examine it
        again."""
        return self._bridge.run(self._facet.doctor(
            domain=domain, window=window, full=full, fix=fix, operator=operator,
        ))

"""Upkeep: `bus.upkeep`. The doctor, retention, and figures of what is where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from commandbus.database.store import Store
from commandbus.store.upkeep import RetentionRule
from commandbus.upkeep.doctor import Diagnosis, Doctor
from commandbus.upkeep.figures import Figures
from commandbus.upkeep.retention import PruneResult, Retention


class Upkeep:
    """Keeps a database healthy and small. Needs PostgreSQL."""

    def __init__(self, store: Store) -> None:
        self._doctor = Doctor(store)
        self._retention = Retention(store)
        #: How much is where.
        self.figures = Figures(store)

    async def doctor(
        self,
        *,
        domain: str | None = None,
        window: timedelta | None = None,
        full: bool = False,
        fix: bool = False,
        operator: str | None = None,
    ) -> Diagnosis:
        """Examine the database in one read-only snapshot; with `fix`, repair what can be repaired.

        Above a million commands only what was touched in the last day is looked at, unless `full`.
        """
        return await self._doctor.examine(
            domain=domain, window=window, full=full, fix=fix, operator=operator
        )

    async def prune(
        self,
        *,
        domain: str | None = None,
        older_than: timedelta | None = None,
        kinds: Sequence[str] | None = None,
        dry_run: bool = False,
        operator: str | None = None,
        progress: Callable[[PruneResult], None] | None = None,
    ) -> list[PruneResult]:
        """Remove what is finished and old: by the rules, or whatever is older than this.

        In chunks, each its own transaction; what is open or parked is never touched.
        """
        return await self._retention.prune(
            domain=domain, older_than=older_than, kinds=kinds, dry_run=dry_run,
            operator=operator, progress=progress,
        )  # fmt: skip

    async def get_retention(self) -> list[RetentionRule]:
        """The rules that were set; without a rule nothing is removed."""
        return await self._retention.rules()

    async def set_retention(
        self,
        kind: str,
        keep: timedelta | None,
        *,
        domain: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Keep `audit`, `archives`, `replies` or `commands` so long; None: for ever."""
        await self._retention.set(kind, keep, domain=domain, operator=operator)

    async def clear_retention(self, kind: str, *, domain: str | None = None) -> bool:
        """Take a rule back; returns whether there was one."""
        return await self._retention.clear(kind, domain=domain)

"""Tending: parts of the audit and of archives are made ahead, and dropped when they are old.

More often than the other chores, and beside them: an audit that is written to quickly fills a part
within a minute, and a short rule wants it gone soon after.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import LiteralString

import orjson

from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.loops import Loop
from commandbus.settings import Settings
from commandbus.upkeep.retention import ALL_DOMAINS, PruneResult, Retention

#: How often each chore is done, in seconds, if the other chores are not done more often.
TEND_EVERY_SECONDS = 20.0
#: Seconds that one turn of a chore may take.
TURN_SECONDS = 20.0

_CLAIM: LiteralString = "select {schema}.claim_chore(%s, make_interval(secs => cast(%s as float8)))"
_NOTE: LiteralString = "select {schema}.note_chore(%s, cast(%s as jsonb), %s)"


class Tending(Loop):
    """Looks after parts when this process is given the chore."""

    name = "tending"

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__()
        self._gateway = store.gateway.patient
        self._retention = Retention(store)
        self._every = min(settings.maintenance_interval_seconds, TEND_EVERY_SECONDS)

    async def step(self) -> float | None:
        """Ask for each chore, and do what is given."""
        for name, tend in (
            ("tend the audit", self._tend_audit),
            ("tend the archives", self._tend_archives),
        ):
            if await self._gateway.value(_CLAIM, (name, self._every)):
                told, has_failed = {ALL_DOMAINS: "failed; the log of its process says more"}, True
                try:
                    told, has_failed = self._told(await tend()), False
                finally:
                    with suppress(CommandBusError):
                        params = (name, orjson.dumps(told).decode(), has_failed)
                        await self._gateway.value(_NOTE, params)
        # Asked for more often than due, so that a chore whose process ended is soon taken over.
        return self._every / 2

    async def _tend_audit(self) -> list[PruneResult]:
        return await self._retention.tend_audit(operator="maintenance", seconds=TURN_SECONDS)

    async def _tend_archives(self) -> list[PruneResult]:
        return await self._retention.tend_archives(seconds=TURN_SECONDS)

    def _told(self, gone: list[PruneResult]) -> dict[str, str]:
        counts: dict[str, Counter[str]] = {}
        for each in gone:
            counts.setdefault(each.domain, Counter()).update(each.pruned)
        told = {
            domain: ", ".join(
                f"{number:,} {what} dropped" for what, number in sorted(found.items())
            )
            for domain, found in counts.items()
        }
        for domain, text in told.items():
            self._log.info("retention of %s: %s with their parts", domain, text)
        return told

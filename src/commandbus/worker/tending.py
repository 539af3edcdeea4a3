"""Tending: the parts of the audit are made ahead and dropped when they are old.

More often than the other chores, and beside them: an audit that is written to quickly fills a part
within a minute, and a short rule wants it gone soon after.
"""

from __future__ import annotations

from contextlib import suppress
from typing import LiteralString

import orjson

from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.loops import Loop
from commandbus.settings import Settings
from commandbus.upkeep.retention import ALL_DOMAINS, Retention

CHORE = "tend the audit"
#: How often it is done, in seconds, if the other chores are not done more often.
TEND_EVERY_SECONDS = 20.0
#: Seconds that one turn may take.
TURN_SECONDS = 20.0

_CLAIM: LiteralString = "select {schema}.claim_chore(%s, make_interval(secs => cast(%s as float8)))"
_NOTE: LiteralString = "select {schema}.note_chore(%s, cast(%s as jsonb), %s)"


class Tending(Loop):
    """Looks after the parts of the audit when this process is given the chore."""

    name = "tending"

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__()
        self._gateway = store.gateway.patient
        self._retention = Retention(store)
        self._every = min(settings.maintenance_interval_seconds, TEND_EVERY_SECONDS)

    async def step(self) -> float | None:
        """Ask for the chore, and do it if it is given."""
        if await self._gateway.value(_CLAIM, (CHORE, self._every)):
            told, has_failed = "failed; the log of its process says more", True
            try:
                told, has_failed = await self._tend(), False
            finally:
                with suppress(CommandBusError):
                    document = orjson.dumps({ALL_DOMAINS: told} if told else {}).decode()
                    await self._gateway.value(_NOTE, (CHORE, document, has_failed))
        # Asked for more often than due, so that a chore whose process ended is soon taken over.
        return self._every / 2

    async def _tend(self) -> str:
        gone = await self._retention.tend_audit(operator="maintenance", seconds=TURN_SECONDS)
        events = sum(sum(each.pruned.values()) for each in gone)
        if events:
            self._log.info("retention dropped parts of the audit with %d events", events)
        return f"{events:,} events dropped" if events else ""

"""Timekeeper: what happens by the clock and not by a schedule, in any process that lives.

Pauses whose time is over end, commands that have expired and that no worker will start end, and
domains that use no levels any more are read without them.
"""

from __future__ import annotations

import time
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.loops import Loop

#: How often a process looks for the end of pauses, in seconds; one that it knows of does not wait.
LOOK_SECONDS = 2.0
#: How often a process asks for the other chores, in seconds.
ASK_SECONDS = 10.0
#: They are given to one process, and not again before; less than ASK_SECONDS, or one that asks a
#: moment early would miss a turn.
EVERY_SECONDS = 8.0
#: Commands that one transaction ends.
EXPIRED_AT_ONCE = 1_000

_CLAIM: LiteralString = (
    "select {schema}.claim_keeping('end what has expired', make_interval(secs => %s))"
)
_END_PAUSES: LiteralString = "select {schema}.keep_pauses()"
_END_EXPIRED: LiteralString = "select {schema}.end_expired(%s)"
_TEND_LEVELS: LiteralString = "select {schema}.tend_levels()"


class Timekeeper(Loop):
    """Does the chores when this process is given them. In all domains: one may have no worker."""

    name = "timekeeper"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._gateway = store.gateway
        self._ask_at = time.monotonic()

    async def step(self) -> float | None:
        """End the pauses that are over; ask for the other chores now and then."""
        next_end: float | None = await self._gateway.value(_END_PAUSES)
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_SECONDS
            if await self._gateway.value(_CLAIM, (EVERY_SECONDS,)):
                await self._gateway.value(_TEND_LEVELS)
                while await self._end_expired():
                    pass
        return LOOK_SECONDS if next_end is None else min(LOOK_SECONDS, next_end)

    async def _end_expired(self) -> int:
        return int(await self._gateway.value(_END_EXPIRED, (EXPIRED_AT_ONCE,)))

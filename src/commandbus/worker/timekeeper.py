"""Timekeeper: ends what has expired and no worker will start, and pauses whose time is over."""

from __future__ import annotations

from typing import LiteralString

from commandbus.database.store import Store
from commandbus.loops import Loop

#: How often a process asks for the chore, in seconds.
ASK_SECONDS = 10.0
#: It is given to one process, and not again before; less than ASK_SECONDS, or one that asks a
#: moment early would miss a turn.
EVERY_SECONDS = 8.0
#: Commands that one transaction ends.
EXPIRED_AT_ONCE = 1_000

_CLAIM: LiteralString = (
    "select {schema}.claim_chore('end what has expired', make_interval(secs => %s))"
)
_END_EXPIRED: LiteralString = "select {schema}.end_expired(%s)"
_END_PAUSES: LiteralString = "select {schema}.end_pauses()"


class Timekeeper(Loop):
    """Does the chore when this process is given it. In all domains: one may have no worker."""

    name = "timekeeper"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._gateway = store.gateway

    async def step(self) -> float | None:
        """Ask for the chore, and do it if it is given."""
        if await self._gateway.value(_CLAIM, (EVERY_SECONDS,)):
            await self._gateway.value(_END_PAUSES)
            # Less than it may look at: nothing is left.
            while await self._end_expired() == EXPIRED_AT_ONCE:
                pass
        return ASK_SECONDS

    async def _end_expired(self) -> int:
        return int(await self._gateway.value(_END_EXPIRED, (EXPIRED_AT_ONCE,)))

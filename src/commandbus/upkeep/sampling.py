"""Sampling: one process takes the samples that rates are made of, for all domains."""

from __future__ import annotations

from typing import LiteralString

from commandbus.database.store import Store
from commandbus.loops import Loop

#: How often a process asks, in seconds. The database gives it to one, and not more often.
ASK_SECONDS = 10.0

_SAMPLE: LiteralString = "select {schema}.sample_domains()"


class Sampler(Loop):
    """Takes a sample when this process is given the turn."""

    name = "sampler"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._gateway = store.gateway

    async def step(self) -> float | None:
        """Ask once."""
        await self._gateway.value(_SAMPLE)
        return ASK_SECONDS

"""`bus.limits` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet

if TYPE_CHECKING:
    from collections.abc import Collection
    from commandbus.gates.model import ExecutionLimit, LimitedKey
    from commandbus.gates.service import ExecutionLimits


class BlockingExecutionLimits(BlockingFacet["ExecutionLimits"]):
    """How many commands run at once, and how often they start, over all workers of the
    database."""

    def set(
        self, domain: str, type: str | None = None, *, per_key: bool = False,
        max_running: int | None = None, rate: float | None = None, per: float = 1.0,
        burst: float | None = None, operator: str | None = None, reason: str | None = None,
    ) -> None:
        """Set the limit of a domain, of a command type, or of each limit key of a type."""
        return self._bridge.run(self._facet.set(
            domain, type, per_key=per_key, max_running=max_running, rate=rate, per=per,
            burst=burst, operator=operator, reason=reason,
        ))

    def clear(
        self, domain: str, type: str | None = None, *, per_key: bool = False,
        operator: str | None = None, reason: str | None = None,
    ) -> bool:
        """Remove a limit, and make due what waits for it; False if there was none."""
        return self._bridge.run(self._facet.clear(
            domain, type, per_key=per_key, operator=operator, reason=reason,
        ))

    def keys(self, domain: str, type: str, *, limit: int = 100) -> list[LimitedKey]:
        """The keys of a type that run or wait under a limit by key, most waiting first."""
        return self._bridge.run(self._facet.keys(domain, type, limit=limit))

    def list(
        self, domain: str | None = None, *, domains: Collection[str] | None = None,
    ) -> list[ExecutionLimit]:
        """The limits of a domain, of these or of all, with what runs and waits now; paused types
        too."""
        return self._bridge.run(self._facet.list(domain, domains=domains))

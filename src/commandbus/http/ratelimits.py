"""Limits in headers (RateLimit and RateLimit-Policy, structured fields); who counts requests."""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.bus import CommandBus
from commandbus.governance.model import LimitState, LimitType
from commandbus.governance.service import Governance

#: Seconds of the windows that have one. The others are gauges: they ease when work gets done.
WINDOWS = {LimitType.GLOBAL_API_REQUESTS: 60}


def limit_headers(limits: Iterable[LimitState]) -> dict[str, str]:
    """The two header fields, one named policy for each limit; a lifted limit is left out."""
    policies: list[str] = []
    states: list[str] = []
    for limit in limits:
        if limit.max_value is None or limit.limit_type is LimitType.USER_COOLDOWN:
            if limit.limit_type is LimitType.USER_COOLDOWN and limit.max_value:
                policies.append(f'"{limit.limit_type.value}";q=1;w={limit.max_value}')
                is_over = not limit.reset_seconds
                states.append(
                    f'"{limit.limit_type.value}";r={int(is_over)};t={limit.reset_seconds or 0}'
                )
            continue
        window = WINDOWS.get(limit.limit_type)
        policies.append(
            f'"{limit.limit_type.value}";q={limit.max_value}' + (f";w={window}" if window else "")
        )
        left = max(0, limit.max_value - limit.current_value)
        reset = "" if limit.reset_seconds is None else f";t={max(0, limit.reset_seconds)}"
        states.append(f'"{limit.limit_type.value}";r={left}{reset}')
    if not policies:
        return {}
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}


class RequestCounter:
    """Counts each request of the API in the database, if the bus is governed."""

    def __init__(self, bus: CommandBus) -> None:
        self._governance = governance_of(bus)

    async def count(self, user_id: str) -> tuple[LimitState, ...]:
        """Count one; raises RateLimitExceededError when there were too many in this minute."""
        if self._governance is None:
            return ()
        return (await self._governance.count_request(user_id),)


def governance_of(bus: CommandBus) -> Governance | None:
    """The governance of a bus; None if its store has none (tests in memory)."""
    return bus.governance if bus.governance.is_available else None

"""The header fields RateLimit and RateLimit-Policy, with one member for each limit."""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.governance.model import LimitState, LimitType


def limit_headers(limits: Iterable[LimitState]) -> dict[str, str]:
    """The two header fields. Limits that are lifted or switched off are left out."""
    policies: list[str] = []
    states: list[str] = []
    for limit in limits:
        quota, window, reset = limit.max_value, None, limit.reset_seconds
        if quota is None:
            continue
        left = max(0, quota - limit.current_value)
        if limit.limit_type is LimitType.GLOBAL_API_REQUESTS:
            window = 60
        elif limit.limit_type is LimitType.USER_COOLDOWN:
            if not quota:
                continue  # there is no cooldown
            # One batch in as many seconds as `max_value` says.
            quota, window, reset = 1, quota, reset or 0
            left = 0 if reset else 1
        name = limit.limit_type.value
        policies.append(f'"{name}";q={quota}' + (f";w={window}" if window else ""))
        states.append(f'"{name}";r={left}' + ("" if reset is None else f";t={max(0, reset)}"))
    if not policies:
        return {}
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}

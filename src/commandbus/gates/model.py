"""ExecutionLimit: a limit, and what it is up to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


def rule_text(
    max_running: int | None,
    rate: float | None,
    per: float | None,
    burst: float | None,
    *,
    is_paused: bool,
) -> str:
    """What a limit says, in a line for people."""
    parts = []
    if max_running is not None:
        parts.append(f"{max_running:,} at once")
    if rate is not None:
        parts.append(f"{rate:g} in {per:g} s, burst {burst:g}")
    if is_paused:
        parts.append("paused")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ExecutionLimit:
    """What holds for a domain, a command type, or each key of a type, and what it is up to now."""

    domain: str
    #: None: all types of the domain together.
    type: str | None
    #: Whether each limit key of the type is counted by itself; the figures are of all of them.
    per_key: bool
    #: How many are leased at once; None: any number.
    max_running: int | None
    #: How many leases in `per` seconds, and `burst` at once after a pause; None: any number.
    rate: float | None
    per: float | None
    burst: float | None
    #: Since when the type is paused; None: it is not.
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    pause_reason: str | None
    updated_at: datetime
    updated_by: str | None
    #: Commands that have a place: 0 if only the rate is limited.
    running: int
    #: Leases that would be given at once; None: there is no rate, or it is by key.
    tokens: float | None
    #: Commands that wait for this limit, and since when the oldest does.
    waiting: int
    oldest: datetime | None

    @property
    def name(self) -> str:
        """What it is called in lines for people."""
        what = f"domain {self.domain}" if self.type is None else self.type
        return f"{what} by key" if self.per_key else what

    @property
    def rule(self) -> str:
        """What it says, in a line for people."""
        return rule_text(
            self.max_running, self.rate, self.per, self.burst, is_paused=self.paused_at is not None
        )


@dataclass(frozen=True, slots=True)
class LimitedKey:
    """One key of a limit by key."""

    limit_key: str
    running: int
    waiting: int
    oldest: datetime | None

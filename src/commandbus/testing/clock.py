"""FakeClock: time that passes only when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from commandbus.errors import InvalidSettingError

_TICK = timedelta(microseconds=1)


class FakeClock:
    """Stands still but for one microsecond at each look, so that later events have later times."""

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.tzinfo is None:
            raise InvalidSettingError("start has no time zone; use datetime(…, tzinfo=UTC)")
        self._now = datetime.now(UTC) if start is None else start.astimezone(UTC)
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> datetime:
        """The time, in UTC."""
        self._now += _TICK
        return self._now

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass: leases lapse, retries become due."""
        if seconds < 0:
            raise InvalidSettingError(f"seconds is {seconds!r}; a clock does not run backwards")
        self._now += timedelta(seconds=seconds)
        for listener in tuple(self._listeners):
            listener()

    def advance_to(self, moment: datetime) -> None:
        """Let time pass until this moment; does nothing if that moment is past."""
        self.advance(max((moment - self._now).total_seconds(), 0.0))

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever time has passed."""
        self._listeners.append(listener)

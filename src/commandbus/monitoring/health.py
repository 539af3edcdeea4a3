"""Health: whether the process lives, works and has begun. Asked from another thread, so that an
event loop that is blocked is reported, and does not hang the answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

#: Seconds between two turns of the event loop that are watched.
TICK_SECONDS = 0.5
#: A loop that does not turn for this long does not live.
LIVE_SECONDS = 10.0
#: A process whose workers committed no heartbeat for this long is not ready.
READY_SECONDS = 30.0
#: How far back the worst delay of the loop is shown, in seconds.
LAG_SECONDS = 30.0


class Watched(Protocol):
    """Workers that share their connections, seen from here."""

    def dead_parts(self) -> list[str]:
        """The threads that should live and do not."""

    def stuck_domains(self) -> list[str]:
        """Domains in which handlers that hang have taken all places."""

    def has_begun(self) -> bool:
        """Whether each of these workers has asked for commands."""


@dataclass(eq=False)
class Health:
    """The health of one process. Each question is answered by the reasons against it."""

    live_seconds: float = LIVE_SECONDS
    ready_seconds: float = READY_SECONDS
    clock: Callable[[], float] = time.monotonic
    is_stopping: bool = False
    #: Why the database is not one that this version works with.
    schema_error: str | None = None
    watched: Watched | None = None
    _ticked_at: float = field(init=False)
    _beat_at: float | None = None
    _has_started: bool = False
    _lags: deque[tuple[float, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._ticked_at = self.clock()

    # -- told by the event loop

    def begin(self) -> None:
        """From now on the loop is watched; what took long before was no delay of it."""
        self._ticked_at = self.clock()

    def tick(self) -> None:
        """The loop has turned; asked for every TICK_SECONDS."""
        now = self.clock()
        lag = max(now - self._ticked_at - TICK_SECONDS, 0.0)
        self._ticked_at = now
        self._lags.append((now, lag))
        while self._lags[0][0] < now - LAG_SECONDS:
            self._lags.popleft()

    def beat(self) -> None:
        """A heartbeat was committed."""
        self._beat_at = self.clock()

    # -- asked by anybody

    @property
    def loop_lag(self) -> float:
        """The longest delay of the last seconds, the present one included."""
        present = max(self.clock() - self._ticked_at - TICK_SECONDS, 0.0)
        return max([present, *(lag for _, lag in tuple(self._lags))])

    def not_live(self) -> list[str]:
        """Why this process should be started again. Says nothing of the database."""
        reasons = []
        silence = self.clock() - self._ticked_at
        if silence > self.live_seconds:
            reasons.append(f"the event loop has been blocked for {silence:.0f} s")
        if self.watched is not None:
            reasons += [f"{part} has ended" for part in self.watched.dead_parts()]
        return reasons

    def not_ready(self) -> list[str]:
        """Why commands are not worked off here at the moment."""
        reasons = self.not_live()
        if self.is_stopping:
            reasons.append("it is stopping")
        if self._beat_at is None:
            reasons.append("no heartbeat has been committed yet")
        elif (age := self.clock() - self._beat_at) > self.ready_seconds:
            reasons.append(f"the last heartbeat was committed {age:.0f} s ago")
        if self.schema_error is not None:
            reasons.append(self.schema_error)
        if self.watched is not None:
            reasons += [
                f"handlers that hang have taken all places of {domain}"
                for domain in self.watched.stuck_domains()
            ]
        return reasons

    def not_started(self) -> list[str]:
        """Why the start is not over. Once it is, it stays so."""
        if not self._has_started:
            self._has_started = self.watched is not None and self.watched.has_begun()
        return [] if self._has_started else ["no worker has asked for commands yet"]

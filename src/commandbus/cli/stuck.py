"""`--exit-when-stuck`: a worker ends whose places are all taken by handlers that hang.

A thread cannot be ended, so only a new process gets its place back. What starts processes again
(systemd, Kubernetes, `--processes`) does so when this one ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from commandbus.errors import CommandBusError

#: Seconds between two looks, at most.
LOOK_SECONDS = 1.0

_log = logging.getLogger("commandbus.cli")


class StuckError(CommandBusError):
    """Handlers that hang have taken all places for too long."""


class GivingUp:
    """Looks whether domains are stuck, and stops the process once they have been for `seconds`."""

    def __init__(
        self,
        stuck: Callable[[], Sequence[str]],
        seconds: float,
        stop: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stuck = stuck
        self._seconds = seconds
        self._stop = stop
        self._clock = clock
        self._since: dict[str, float] = {}
        self._why: str | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look meanwhile; without seconds nothing is done."""
        looking = asyncio.create_task(self._look()) if self._seconds else None
        try:
            yield
        finally:
            if looking is not None:
                looking.cancel()

    async def _look(self) -> None:
        while True:
            if self.is_over():
                break
            await asyncio.sleep(min(LOOK_SECONDS, self._seconds / 4))
        _log.error("%s; the process stops, to be started again", self._why)
        # As anybody would stop it: other handlers may finish, and leases go back.
        self._stop()

    def is_over(self) -> bool:
        """Whether a domain has been stuck for so long; one that was freed begins anew."""
        now = self._clock()
        self._since = {domain: self._since.get(domain, now) for domain in self._stuck()}
        over = [name for name, since in self._since.items() if now - since >= self._seconds]
        if over:
            self._why = (
                f"handlers that hang have taken all places of {', '.join(over)} for "
                f"{self._seconds:g} s"
            )
        return bool(over)

    def check(self) -> None:
        """Raise StuckError if that is why the process has stopped."""
        if self._why is not None:
            raise StuckError(self._why)

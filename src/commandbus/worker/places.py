"""ThreadPlaces: which commands get a thread, if handlers that did not end keep some of them.

A thread cannot be stopped. One that goes on after its time-out keeps its place until it ends, and
what needs a thread and finds none is left to other workers.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque

from commandbus.database.model import Lease
from commandbus.worker.execution import Execution

_log = logging.getLogger("commandbus.worker")


class ThreadPlaces:
    """As many places as slots. While no thread is stuck, a free slot has a free thread."""

    def __init__(self, execution: Execution, size: int) -> None:
        self._execution = execution
        self._size = size
        #: Commands that run and need a thread.
        self.used = 0
        #: Commands that are leased and wait for one.
        self.waiting: deque[Lease] = deque()
        self._waiting_since = 0.0
        #: Whether to lease no commands that need a thread.
        self.are_left_out = False
        #: Whether no place is left at all.
        self.are_lost = False
        #: Whether no thread is stuck, and nothing waits for one; `look` finds out.
        self.are_free = True

    @property
    def waiting_since(self) -> float:
        """Since when no waiting command got a thread, by the monotonic clock."""
        return self._waiting_since if self.waiting else math.inf

    @property
    def _free(self) -> int:
        return self._size - self._execution.stuck_threads - self.used

    def limit(self, slots: int, ahead: int) -> int:
        """How many of these free slots to fill now."""
        self.are_left_out = False
        if not self._execution.stuck_threads:
            return slots
        room = self._free - len(self.waiting)
        # With fast handlers, some may wait: a thread is free before the next receive is over.
        self.are_left_out = self.are_lost or (room <= 0 and len(self.waiting) * 2 >= ahead)
        return slots if self.are_left_out else min(slots, room)

    def must_wait(self, lease: Lease) -> bool:
        """Whether this command needs a thread, and there is none."""
        if not self._execution.stuck_threads or self._free > 0:
            return False
        return self._execution.needs_thread(lease)

    def wait(self, lease: Lease) -> None:
        """Keep a command until a thread is free. It is not running meanwhile."""
        if not self.waiting:
            self._waiting_since = time.monotonic()
        self.waiting.append(lease)
        self.are_free = False

    def next(self) -> Lease | None:
        """The next command that waited, if there is a thread for it."""
        if not self.waiting or self._free <= 0:
            return None
        self._waiting_since = time.monotonic()
        return self.waiting.popleft()

    def look(self) -> None:
        """Say when the last place is lost, and when there are some again.

        To be called when a run that needed a thread has ended, or a stuck thread.
        """
        are_lost = self._execution.stuck_threads >= self._size
        if are_lost and not self.are_lost:
            _log.error(
                "all %d threads are kept by handlers that did not end: commands that need a thread "
                "are left to other workers; restart this one", self._size,
            )  # fmt: skip
        elif self.are_lost and not are_lost:
            _log.warning("threads are free again: commands that need one are leased again")
        self.are_lost = are_lost
        self.are_free = not (self.waiting or are_lost or self._execution.stuck_threads)

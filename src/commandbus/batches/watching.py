"""The loop behind callbacks of batches and waiting for tickets: it runs once there is something to
watch. A batch that ends notifies; polls, often at first and then less often, find the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from commandbus.database.store import Listener, Store
from commandbus.loops import Backoff, Loop
from commandbus.names import batches_channel


class BatchLoop(Loop):
    """Polls with growing pauses; `watch` starts it, and makes it quick again."""

    #: First and longest wait between two polls, in seconds.
    poll_seconds = (0.02, 1.0)

    def __init__(self, store: Store, listener: Callable[[], Listener]) -> None:
        super().__init__()
        self._store = store
        self._listener = listener
        self._domains: set[str] = set()
        self._polls = Backoff(*self.poll_seconds)
        self._task: asyncio.Task[None] | None = None

    def watch(self, domain: str) -> None:
        """Poll at once, and whenever a batch of this domain ends."""
        if domain not in self._domains:
            self._domains.add(domain)
            self._listener().subscribe(batches_channel(domain), self.wake)
        self._polls.reset()
        self.wake()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self.run())

    async def close(self) -> None:
        """Stop polling; those who still wait run into their timeout."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

"""Wake-ups: what LISTEN and NOTIFY do, within one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

Wake = Callable[[], None]


class Switchboard:
    """Knows who listens now, and who watches the store as a whole."""

    def __init__(self) -> None:
        self.listeners: list[MemoryListener] = []
        self._watchers: list[Wake] = []

    def notify(self, channels: Iterable[str]) -> None:
        """Wake the listeners of these channels, and tell the watchers that something happened."""
        for channel in channels:
            for listener in tuple(self.listeners):
                listener.notify(channel)
        for watcher in tuple(self._watchers):
            watcher()

    def wake_all(self) -> None:
        """Time has passed: anything may be due."""
        for listener in tuple(self.listeners):
            listener.notify_all()
        self.notify(())

    @contextmanager
    def watched_by(self, watcher: Wake) -> Iterator[None]:
        """Call `watcher` after every change, for the length of a block."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)


class MemoryListener:
    """Implements commandbus.database.store.Listener."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._wakes: dict[str, list[Wake]] = {}

    def subscribe(self, channel: str, wake: Wake) -> None:
        """Call `wake` whenever the channel is notified."""
        self._wakes.setdefault(channel, []).append(wake)

    def unsubscribe(self, channel: str, wake: Wake) -> None:
        """Undo subscribe."""
        self._wakes[channel].remove(wake)

    def notify(self, channel: str) -> None:
        """Wake the subscribers of one channel."""
        for wake in tuple(self._wakes.get(channel, ())):
            wake()

    def notify_all(self) -> None:
        """Wake the subscribers of all channels."""
        for channel in tuple(self._wakes):
            self.notify(channel)

    async def run(self) -> None:
        """Listen until cancelled. Whoever subscribed before is woken once, to have a look."""
        self._switchboard.listeners.append(self)
        try:
            self.notify_all()
            await asyncio.Event().wait()
        finally:
            self._switchboard.listeners.remove(self)

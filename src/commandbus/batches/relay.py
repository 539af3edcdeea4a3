"""Relay: brings messages from a queue in another database to the queue beside the metadata.

Adoption comes first, removal second: a relay that dies in between finds the message again, and the
command, which has a message by now, is left alone. Any number of relays may run.
"""

from __future__ import annotations

from commandbus.loops import Backoff, Loop
from commandbus.store.dispatching import DispatchStore, MessageQueue

#: Messages that are moved in one commit, and how long they are leased for it.
RELAY_QUANTITY = 100
RELAY_VT_SECONDS = 30
#: First and longest wait between two looks into an empty queue, in seconds.
POLL_SECONDS = (0.05, 1.0)


class Relay(Loop):
    """Moves the messages of one domain until stopped, or until there are none."""

    name = "relay"

    def __init__(self, store: DispatchStore, queue: MessageQueue, domain: str) -> None:
        super().__init__()
        self._store = store
        self._queue = queue
        self._domain = domain
        self._polls = Backoff(*POLL_SECONDS)

    async def step(self) -> float | None:
        """Move one group."""
        _, found = await self._move()
        if found:
            self._polls.reset()
            return None
        return self._polls.next()

    async def drain(self) -> int:
        """Move what is there; returns how many commands were queued by it."""
        total = 0
        while True:
            adopted, found = await self._move()
            total += adopted
            if not found:
                return total

    async def _move(self) -> tuple[int, int]:
        messages = await self._queue.read(
            self._domain, vt_seconds=RELAY_VT_SECONDS, quantity=RELAY_QUANTITY
        )
        if not messages:
            return 0, 0
        verdicts = await self._store.adopt_messages(self._domain, [body for _, body in messages])
        arrived = [m for (m, _), verdict in zip(messages, verdicts, strict=True)
                   if verdict != "refused"]  # fmt: skip
        refused = [m for m, _ in messages if m not in set(arrived)]
        if arrived:
            await self._queue.delete(self._domain, arrived)
        if refused:
            self._log.warning(
                "%d messages of queue %s lead to no command of %s and were archived there",
                len(refused), self._queue.name, self._domain,
            )  # fmt: skip
            await self._queue.archive(self._domain, refused)
        return verdicts.count("adopted"), len(messages)

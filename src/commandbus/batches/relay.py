"""Relay: brings messages from a broker, or another database, to the queue beside the commands.

Adoption comes first, removal second: a relay that ends in between finds the message again, and the
command, which has a message by now, is left alone. Any number of relays may run. What belongs to no
command is set aside: one message that nobody can read must not keep the others.
"""

from __future__ import annotations

import json
from typing import LiteralString
from uuid import UUID

from commandbus.database.store import Store
from commandbus.loops import Backoff, Loop
from commandbus.names import dispatch_queue
from commandbus.transport import Transport

#: Messages that are moved in one commit, and how long they are leased for it.
RELAY_QUANTITY = 100
RELAY_VT_SECONDS = 30
#: First and longest wait between two looks into an empty queue, in seconds.
POLL_SECONDS = (0.05, 1.0)

_ADOPT_MESSAGES: LiteralString = (
    "select verdict from {schema}.adopt_messages(%s, cast(%s as jsonb)) order by n"
)


class Relay(Loop):
    """Moves the messages of one domain until stopped, or until there are none."""

    name = "relay"

    def __init__(self, store: Store, queue: Transport, domain: str) -> None:
        super().__init__()
        self._gateway = store.gateway
        self._queue = queue
        self._domain = domain
        self._polls = Backoff(*POLL_SECONDS)
        #: Messages that belonged to no command, and were archived where they were.
        self.set_aside = 0

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
        domain = self._domain
        queue = dispatch_queue(domain)
        messages = await self._queue.receive(
            queue, quantity=RELAY_QUANTITY, lease_seconds=RELAY_VT_SECONDS
        )
        if not messages:
            return 0, 0
        # Only their ids: what is queued is what was stored, and the rest may be anything.
        document = json.dumps([{"command_id": _command_id(each.text)} for each in messages])
        rows = await self._gateway.rows(_ADOPT_MESSAGES, (domain, document), domain=domain)
        found = [(each, row[0]) for each, row in zip(messages, rows, strict=True)]
        refused = [each for each, became in found if became == "refused"]
        arrived = [each for each, became in found if became != "refused"]
        if arrived:
            await self._queue.acknowledge(queue, arrived)
        if refused:
            await self._queue.set_aside(queue, refused)
            self.set_aside += len(refused)
            self._log.warning(
                "%d messages of queue %s belong to no command of %s and were set aside there (%d "
                "since this relay began); first: message %s",
                len(refused), self._queue.name, domain, self.set_aside, refused[0].token,
            )  # fmt: skip
        return sum(became == "adopted" for _, became in found), len(messages)


def _command_id(text: str) -> str | None:
    """Whose message this is; None: of no command, or it is not a message at all."""
    try:
        # Numbers stay as they are written: some are too large for a computer.
        message = json.loads(text, parse_int=str, parse_float=str)
        return str(UUID(message["command_id"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None

"""Sending: single sends of many tasks share their commits, without one of them waiting for company.

A send goes at once while fewer than LANES of its domain are on their way. What is sent meanwhile
gathers, and goes as one group when a lane is free: one round trip and one commit for all of them.
Each caller gets the answer for its own command.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from commandbus.database.store import Store
from commandbus.errors import CommandBusError, DatabaseUnavailableError
from commandbus.models import NewCommand

#: Commits of one domain in flight at once.
LANES = 2
#: Commands and bytes of payload in one group.
MAX_GROUP, MAX_GROUP_BYTES = 200, 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    command: NewCommand
    sent: asyncio.Future[None]


class Sending:
    """Sends commands one by one for each caller, in groups for the database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._on_their_way: defaultdict[str, int] = defaultdict(int)
        self._waiting: defaultdict[str, deque[_Waiting]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, domain: str, command: NewCommand) -> None:
        """Send one command, or raise what is wrong with it."""
        if self._on_their_way[domain] < LANES:
            self._on_their_way[domain] += 1
            try:
                await self._store.send(domain, [command])
            finally:
                self._lane_freed(domain)
            return
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._waiting[domain].append(waiting)
        await waiting.sent

    def _lane_freed(self, domain: str) -> None:
        self._on_their_way[domain] -= 1
        group = self._next_group(domain)
        if group:
            self._on_their_way[domain] += 1
            task = asyncio.get_running_loop().create_task(self._send_group(domain, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_group(self, domain: str) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        line = self._waiting[domain]
        while line and len(group) < MAX_GROUP and size < MAX_GROUP_BYTES:
            waiting = line.popleft()
            if not waiting.sent.done():  # else its caller has given up, and nothing is sent
                group.append(waiting)
                size += len(waiting.command.data)
        return group

    async def _send_group(self, domain: str, group: Sequence[_Waiting]) -> None:
        try:
            await self._try_together(domain, group)
        finally:
            for waiting in group:
                waiting.sent.cancel()  # does nothing to those that have their answer
            self._lane_freed(domain)

    async def _try_together(self, domain: str, group: Sequence[_Waiting]) -> None:
        try:
            await self._store.send(domain, [waiting.command for waiting in group])
        except CommandBusError as error:
            if len(group) == 1 or isinstance(error, DatabaseUnavailableError):
                # Without a database nobody knows whether it was committed, and each is told so.
                _answer(group, error)
                return
            # Nothing of the group is there. One of them is to blame, the others must not suffer.
            for waiting in group:
                await self._try_together(domain, [waiting])
        except Exception as error:  # noqa: BLE001  (whatever it is, somebody waits to be told)
            _answer(group, error)
        else:
            _answer(group, None)


def _answer(group: Sequence[_Waiting], error: Exception | None) -> None:
    for waiting in group:
        if waiting.sent.done():
            continue
        if error is None:
            waiting.sent.set_result(None)
        else:
            waiting.sent.set_exception(error)

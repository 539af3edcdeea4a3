"""Sending: commands that were prepared before a transaction begins.

Single sends of many tasks share their commits, and none of them waits longer for that. A send goes
at once while fewer than LANES commits of its domain are on their way. What is sent meanwhile
gathers, and goes as one group when a lane is free: one round trip and one commit for all of them.
Each caller is told about its own command.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidInputError,
)
from commandbus.flow import Flow
from commandbus.middleware.base import Drafts
from commandbus.models import BatchCommand, NewCommand, SendReport
from commandbus.typed.commands import TypedCommand

if TYPE_CHECKING:
    from commandbus.database.store import SendPlace, Store

#: Commits of one domain in flight at once.
LANES = 2
#: Commands and bytes of payload in one group.
MAX_GROUP, MAX_GROUP_BYTES = 200, 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiting:
    command: NewCommand
    sent: asyncio.Future[None]


class Sending:
    """Sends commands one by one for each caller, in groups for the database."""

    def __init__(self, store: Store, preparer: Preparer, *, max_send_many: int) -> None:
        self._store = store
        self.preparer = preparer
        self._max_send_many = max_send_many
        self._on_their_way: defaultdict[str, int] = defaultdict(int)
        self._waiting: defaultdict[str, deque[_Waiting]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[None]] = set()

    async def send_many(
        self,
        domain: str,
        commands: Iterable[BatchCommand | TypedCommand],
        drafts: Drafts | None = None,
        *,
        max_attempts: int | None,
        on_duplicate: str,
        **place: Unpack[SendPlace],
    ) -> SendReport:
        """Send all in one transaction, or none. A generator is read while it is sent."""
        is_list = isinstance(commands, Collection)
        if place.get("batch_id") is not None or is_list:
            commands = list(commands)
            if not commands:
                return SendReport()
            self._check_count(len(commands))
        skips = on_duplicate == "skip"
        ids: list[UUID] = []

        def prepared() -> Iterator[NewCommand]:
            # Encoded as they are sent: all payloads at once would be many times the list's size.
            for number, each in enumerate(commands, 1):
                self._check_count(number)
                command = self.preparer.batch_command(
                    domain, each, max_attempts, may_be_unique=True
                )
                if command.flow is not None and command.flow.unique_key is not None:
                    command = _keyed(command, on_duplicate, is_list=is_list)
                ids.append(command.command_id)
                yield command if drafts is None else drafted(domain, command, drafts)

        with repeats_named(ids):
            if is_list and any(_has_key(each) for each in commands):
                sent = await self._store.send_unique(
                    domain, list(prepared()), skips_known=skips, **place
                )
                await self._tell_marks()
                return SendReport(
                    [each.command_id for each in sent if each.verdict == "sent"],
                    [each.command_id for each in sent if each.verdict != "sent"],
                )
            if not skips:
                await self._store.send(domain, prepared(), **place)
                await self._tell_marks()
                return SendReport(ids)
            left_out = set(await self._store.send_new(domain, prepared(), **place))
            await self._tell_marks()
        numbered = list(enumerate(ids, 1))
        return SendReport(
            [each for number, each in numbered if number not in left_out],
            [each for number, each in numbered if number in left_out],
        )

    async def _tell_marks(self) -> None:
        # The types of many are known once they are sent: there is nothing left to fail.
        if self.preparer.marks.untold:
            await self.preparer.marks.tell_if_possible(self._store)

    def _check_count(self, commands: int) -> None:
        if commands > self._max_send_many:
            raise InvalidInputError(
                f"{commands:,} commands are more than one transaction should hold; send at "
                f"most {self._max_send_many:,} at a time"
            )

    async def send(
        self,
        domain: str,
        command: NewCommand,
        *,
        batch_id: UUID | None = None,
        actor: str | None = None,
        conn: Any = None,
    ) -> UUID:
        """Send one command, or raise what is wrong with it; returns the id of what is there now.

        That is another command if it holds the unique key of this one.
        """
        if self.preparer.marks.untold:
            await self.preparer.marks.tell(self._store)
        flow = command.flow
        # A key may be locked by somebody's open transaction: those who share a commit would wait.
        if flow is not None and flow.unique_key is not None:
            (sent,) = await self._store.send_unique(
                domain, [command], batch_id=batch_id, actor=actor, conn=conn
            )
            return sent.command_id
        is_keyed = flow is not None and flow.ordering_key is not None
        if batch_id is not None or conn is not None or actor is not None or is_keyed:
            await self._store.send(domain, [command], batch_id=batch_id, actor=actor, conn=conn)
            return command.command_id
        if self._on_their_way[domain] < LANES:
            self._on_their_way[domain] += 1
            try:
                await self._store.send(domain, [command])
            finally:
                self._lane_freed(domain)
            return command.command_id
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._waiting[domain].append(waiting)
        await waiting.sent
        return command.command_id

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
                waiting.sent.cancel()  # does nothing to those that were told
            self._lane_freed(domain)

    async def _try_together(self, domain: str, group: Sequence[_Waiting]) -> None:
        try:
            await self._store.send(domain, [waiting.command for waiting in group])
        except CommandBusError as error:
            if len(group) == 1 or isinstance(error, DatabaseUnavailableError):
                # Without a database it is not known whether it was committed, and each is told so.
                _tell(group, error)
                return
            # Nothing of the group is stored. One command caused that; the others are sent.
            for waiting in group:
                await self._try_together(domain, [waiting])
        except Exception as error:  # noqa: BLE001  (whatever it is, callers wait for it)
            _tell(group, error)
        else:
            _tell(group, None)


def _has_key(command: object) -> bool:
    if not isinstance(command, BatchCommand):  # an instance may have a field of this name
        return False
    return command.options is not None and command.options.get("unique_key") is not None


def _keyed(command: NewCommand, on_duplicate: str, *, is_list: bool) -> NewCommand:
    """One of several commands, with a key: what is done if it is held, unless it says so itself."""
    if not is_list:
        raise InvalidInputError(
            "commands with a unique_key are sent as a list: their keys are locked before anything "
            "is sent"
        )
    flow = command.flow or Flow()
    if flow.on_duplicate == "replace":
        raise InvalidInputError("a replacement is sent alone: use send")
    return replace(command, flow=replace(flow, on_duplicate=flow.on_duplicate or on_duplicate))


@contextmanager
def repeats_named(ids: Iterable[UUID]) -> Iterator[None]:
    """Around a call that creates a list of commands: tell a repeated id from one sent before.

    Looked for only once the database has refused the list, so that a good one does not pay for it.
    """
    try:
        yield
    except DuplicateCommandError as error:
        raise error.within(ids) from error


def _tell(group: Sequence[_Waiting], error: Exception | None) -> None:
    for waiting in group:
        if waiting.sent.done():
            continue
        if error is None:
            waiting.sent.set_result(None)
        else:
            waiting.sent.set_exception(error)

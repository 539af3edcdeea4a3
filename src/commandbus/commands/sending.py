"""Sending: commands are checked and encoded before a transaction begins.

Single sends of many tasks share their commits, and none of them waits longer for that. A send goes
at once while fewer than LANES commits of its domain are on their way. What is sent meanwhile
gathers, and goes as one group when a lane is free: one round trip and one commit for all of them.
Each caller is told about its own command.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

import orjson

from commandbus.commands.drafting import Drafting, drafted
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidInputError,
    InvalidSettingError,
)
from commandbus.flow import Flow, SendOptions, check_flow
from commandbus.keys import Keys
from commandbus.meta import check_meta
from commandbus.middleware.base import Drafts, Middleware
from commandbus.models import BatchCommand, NewCommand, SendReport
from commandbus.names import (
    NO_REPLY,
    check_command_type,
    check_domain,
    check_reply_to,
    check_uuid,
    new_id,
    replies_queue,
)
from commandbus.payload import encode_payload
from commandbus.retry import RetryPolicy, check_max_attempts
from commandbus.settings import Settings
from commandbus.typed.commands import TypedCommand, as_batch_command
from commandbus.typed.models import written

if TYPE_CHECKING:
    from commandbus.database.store import SendPlace, Store
    from commandbus.typed.codec import Codec

#: Commits of one domain in flight at once.
LANES = 2
#: Commands and bytes of payload in one group.
MAX_GROUP, MAX_GROUP_BYTES = 200, 4 * 1024 * 1024


class Preparer:
    """Turns what a caller says into a command that can be stored, or says what is wrong with it."""

    def __init__(
        self,
        settings: Settings,
        policy: RetryPolicy,
        codecs: Mapping[tuple[str, str], Codec] | None = None,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.drafting = Drafting(middleware)
        self._settings = settings
        self._policy = policy
        #: The types of payloads that this process knows, while handlers are registered.
        self._codecs = {} if codecs is None else codecs
        self._pepper = b""
        self._looked_at = float("-inf")

    def command(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: Mapping[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
        max_attempts: int | None = None,
        *,
        options: SendOptions | None = None,
    ) -> NewCommand:
        """Check and encode one command."""
        check_domain(domain)
        kind: Any = type(data)
        if kind is not dict:
            data = written(data, is_checked=self._settings.validate_on_send)
        if self._codecs and self._settings.validate_on_send:
            codec = self._codecs.get((domain, command_type))
            if codec is not None and codec.kind is not kind:  # else it was checked just now
                codec.check(data)
        return NewCommand(
            command_type=check_command_type(command_type),
            command_id=check_uuid(command_id),
            data=encode_payload(data, max_bytes=self._settings.max_payload_bytes),
            reply_to=self.reply_queue(domain) if reply_to is None else check_reply_to(reply_to),
            correlation_id=new_id()
            if correlation_id is None
            else check_uuid(correlation_id, "correlation_id"),
            max_attempts=self._policy.max_attempts
            if max_attempts is None
            else check_max_attempts(max_attempts),
            flow=check_flow(options) if options else None,
            meta=check_meta(options.get("meta")) if options else None,
        )

    def batch_command(
        self,
        domain: str,
        command: BatchCommand | TypedCommand,
        max_attempts: int | None = None,
        *,
        may_be_unique: bool = False,
    ) -> NewCommand:
        """Check and encode one of several commands."""
        if not isinstance(command, BatchCommand):
            command = as_batch_command(domain, command)
        prepared = self.command(
            domain, command.command_type, command.command_id, command.data, command.reply_to,
            command.correlation_id, max_attempts, options=command.options,
        )  # fmt: skip
        if not may_be_unique:
            refuse_unique(prepared)
        return prepared

    def closing_command(self, domain: str, command: BatchCommand | TypedCommand) -> bytes:
        """Check and encode the command that a batch sends when it ends.

        Its id is made at each closing (a batch that is retried ends again), and its correlation
        id is the id of the batch.
        """
        if not isinstance(command, BatchCommand):
            command = as_batch_command(domain, command)
        prepared = self.command(
            domain, command.command_type, command.command_id, command.data, command.reply_to, None,
            options=command.options,
        )  # fmt: skip
        refuse_unique(prepared)
        flow = prepared.flow or Flow()
        if flow.deliver_at is not None or flow.expires_at is not None:
            raise InvalidInputError(
                "the command for the end of a batch takes delay and expires_in, counted from that "
                "end; deliver_at and expires_at may be over by then"
            )
        if flow.ordering_key is not None:
            raise InvalidInputError(
                "the command for the end of a batch cannot have an ordering_key: the worker that "
                "ends the batch sends it, and must not wait for a key"
            )
        return orjson.dumps(
            {
                **flow.document(),
                "domain": domain,
                "type": prepared.command_type,
                "data": orjson.Fragment(prepared.data),
                "reply_to": prepared.reply_to,
                "max_attempts": prepared.max_attempts,
                **({} if prepared.meta is None else {"meta": prepared.meta}),
            }
        )

    def digest(self, domain: str, command: NewCommand) -> bytes:
        """Of what a repeat of the command must have in common with it, to be stored."""
        return self.digests(domain, command)[0]

    def digests(self, domain: str, command: NewCommand) -> list[bytes]:
        """The same under each pepper that it may have been stored with, the current one first.

        Keyed, so that a reader of the table of digests cannot try payloads. Services on one
        database share the pepper, as for their tokens; with another pepper a repeat is refused.
        """
        content: list[Any] = [domain, command.command_type, orjson.loads(command.data)]
        if command.flow is not None:  # another time is another request
            content.append(command.flow.digestible())
        text = b"commandbus sent command " + orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        return [hmac.digest(key, text, "sha256") for key in self._digest_keys()]

    def _digest_keys(self) -> list[bytes]:
        """The peppers; none where there is none, because a send must not fail for it.

        It is not made here: that of the machine that makes the tokens would be another one.
        """
        # Another process may have made it meanwhile; not looked for with each of 10,000 commands.
        if not self._pepper and time.monotonic() - self._looked_at >= 1:
            self._looked_at = time.monotonic()
            self._pepper = self._settings.token_pepper.encode() or self._kept_pepper()
        old = (part.strip().encode() for part in self._settings.token_pepper_old.split(","))
        return list(dict.fromkeys((self._pepper, *filter(None, old), b"")))

    def _kept_pepper(self) -> bytes:
        folder = self._settings.keys_folder or None
        try:
            return Keys.load("token_pepper", folder=folder, allow_create=False) or b""
        except InvalidSettingError:  # the service says it, where it checks tokens
            return b""

    def reply_queue(self, domain: str) -> str:
        """Where the reply of a command goes that names no queue."""
        if self._settings.replies == "domain":
            return replies_queue(domain)
        return NO_REPLY if self._settings.replies == "none" else self._settings.replies


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
                return SendReport(
                    [each.command_id for each in sent if each.verdict == "sent"],
                    [each.command_id for each in sent if each.verdict != "sent"],
                )
            if not skips:
                await self._store.send(domain, prepared(), **place)
                return SendReport(ids)
            left_out = set(await self._store.send_new(domain, prepared(), **place))
        numbered = list(enumerate(ids, 1))
        return SendReport(
            [each for number, each in numbered if number not in left_out],
            [each for number, each in numbered if number in left_out],
        )

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


def refuse_unique(command: NewCommand) -> None:
    """Refuse a command with a unique key where it must be sent whatever others do."""
    if command.flow is not None and command.flow.unique_key is not None:
        raise InvalidInputError(
            "a batch is created with all its commands, so none of them has a unique_key; use send, "
            "or send_many with batch_id"
        )


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

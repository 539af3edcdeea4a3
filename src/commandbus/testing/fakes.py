"""FakePgmqClient: PGMQ's verbs in memory, with visibility timeouts by a clock that tests move.

`Queues` is the same without `async`, and can be copied: the in-memory store stands on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from commandbus.database.model import PgmqMessage
from commandbus.errors import DatabaseError, SchemaMissingError
from commandbus.names import MAX_QUEUE_LENGTH, physical_queue
from commandbus.testing.clock import FakeClock

#: How many of the oldest messages are the head of a queue; as in the SQL function read_messages.
HEAD = 1_000
#: The vt of a message that does not become due by itself: PostgreSQL's 'infinity'.
INFINITY = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies in a queue: encoded, so that nobody can change it from outside."""

    msg_id: int
    read_ct: int
    enqueued_at: datetime
    vt: datetime
    body: bytes
    #: The priority of its command; on PostgreSQL it is in the headers.
    level: int = 0

    @property
    def message(self) -> Any:
        """The body, decoded anew."""
        return orjson.loads(self.body)

    @property
    def type(self) -> object:
        """The command type, if it is the message of a command."""
        return self.message.get("type") if isinstance(self.message, dict) else None


@dataclass(slots=True)
class Queue:
    """One queue and its archive, by msg_id; the order of msg_id is the order of sending."""

    messages: dict[int, StoredMessage] = field(default_factory=dict)
    archive: dict[int, StoredMessage] = field(default_factory=dict)
    last_id: int = 0

    def copy(self) -> Queue:
        return Queue(dict(self.messages), dict(self.archive), self.last_id)


class Queues:
    """All queues, by logical name. Every verb is PGMQ's own."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._queues: dict[str, Queue] = {}

    def copy(self) -> Queues:
        """A fork that shares nothing but the clock."""
        fork = Queues(self.clock)
        fork._queues = {name: queue.copy() for name, queue in self._queues.items()}
        return fork

    def restore(self, backup: Queues) -> None:
        """Go back to a copy. As with a sequence of PostgreSQL, numbers once given stay given."""
        for name, queue in backup._queues.items():
            queue.last_id = self._queues[name].last_id
        self._queues = backup._queues

    def exists(self, queue: str) -> bool:
        return physical_queue(queue) in self._queues

    def get(self, queue: str) -> Queue:
        """The queue, or the error that PostgreSQL's missing table becomes."""
        try:
            return self._queues[physical_queue(queue)]
        except KeyError:
            raise SchemaMissingError(f"there is no queue {queue!r}; create it first") from None

    def create(self, queue: str) -> None:
        name = physical_queue(queue)
        if len(name) > MAX_QUEUE_LENGTH:
            raise DatabaseError(f"queue name {queue!r} is longer than {MAX_QUEUE_LENGTH}")
        self._queues.setdefault(name, Queue())

    def drop(self, queue: str) -> None:
        """Remove a queue with all that is in it."""
        self.get(queue)
        del self._queues[physical_queue(queue)]

    def send_batch(self, queue: str, messages: Iterable[Any], delay: float = 0) -> list[int]:
        bodies = [encode(message) for message in messages]
        if not bodies:
            raise DatabaseError("PGMQ refuses an empty group of messages")
        now = self.clock.now()
        return [self.put(queue, body, now, now + timedelta(seconds=delay)) for body in bodies]

    def put(self, queue: str, body: bytes, now: datetime, due: datetime, level: int = 0) -> int:
        """Put one message that is due at this time, at this level."""
        target = self.get(queue)
        target.last_id += 1
        target.messages[target.last_id] = StoredMessage(target.last_id, 0, now, due, body, level)
        return target.last_id

    def read(self, queue: str, vt: int, qty: int = 1) -> list[StoredMessage]:
        """Lease the oldest visible messages."""
        now = self.clock.now()
        return self._lease(
            queue, vt, [m for m in self.get(queue).messages.values() if m.vt <= now][:qty]
        )

    def read_due(
        self,
        queue: str,
        vt: int,
        qty: int,
        *,
        from_head: bool = False,
        left_out: Collection[str] = (),
        level_seconds: float = 0.0,
    ) -> list[StoredMessage]:
        """Lease the messages that have been due for longest, as the SQL function take_levels.

        A level is worth `level_seconds` of waiting. So a higher one goes first, and no lower one
        waits for ever.
        """
        now = self.clock.now()
        oldest = sorted(self.get(queue).messages.values(), key=lambda m: m.msg_id)
        if left_out:
            oldest = [m for m in oldest if m.type not in left_out]
        due = [m for m in oldest if m.vt <= now]
        # Without low levels: an old backlog of them would go before everything else.
        head = [m for m in oldest[:HEAD] if m.vt <= now and m.level >= 0] if from_head else []
        others = sorted(
            (m for m in due if m not in head),
            key=lambda m: (m.vt - timedelta(seconds=m.level * level_seconds), m.msg_id),
        )
        chosen = [*head, *others][:qty]
        return self._lease(queue, vt, sorted(chosen, key=lambda m: m.msg_id))

    def _lease(self, queue: str, vt: int, messages: list[StoredMessage]) -> list[StoredMessage]:
        until = self.clock.now() + timedelta(seconds=vt)
        leased = [replace(m, read_ct=m.read_ct + 1, vt=until) for m in messages]
        self.get(queue).messages.update((m.msg_id, m) for m in leased)
        return leased

    def delete(self, queue: str, msg_ids: Iterable[int]) -> list[int]:
        messages = self.get(queue).messages
        return [i for i in _distinct(msg_ids) if messages.pop(i, None) is not None]

    def archive(self, queue: str, msg_ids: Iterable[int]) -> list[int]:
        source = self.get(queue)
        found = [i for i in _distinct(msg_ids) if i in source.messages]
        source.archive.update((i, source.messages.pop(i)) for i in found)
        return found

    def set_vt(self, queue: str, msg_ids: Iterable[int], moment: datetime) -> list[int]:
        messages = self.get(queue).messages
        found = [i for i in _distinct(msg_ids) if i in messages]
        messages.update((i, replace(messages[i], vt=moment)) for i in found)
        return found

    def set_level(self, queue: str, msg_id: int, level: int) -> None:
        messages = self.get(queue).messages
        messages[msg_id] = replace(messages[msg_id], level=level)


class FakePgmqClient:
    """Has the verbs of commandbus.database.pgmq.client.PgmqClient, and no PostgreSQL."""

    def __init__(self, clock: FakeClock | None = None, *, queues: Queues | None = None) -> None:
        self.queues = queues if queues is not None else Queues(clock or FakeClock())

    @property
    def clock(self) -> FakeClock:
        """The clock that visibility goes by."""
        return self.queues.clock

    async def create(self, queue: str) -> None:
        self.queues.create(queue)

    async def send(self, queue: str, message: Any, delay: int = 0) -> int:
        return self.queues.send_batch(queue, [message], delay)[0]

    async def send_batch(self, queue: str, messages: Sequence[Any], delay: int = 0) -> list[int]:
        return self.queues.send_batch(queue, messages, delay)

    async def read(self, queue: str, vt: int, qty: int = 1) -> list[PgmqMessage]:
        return [
            PgmqMessage(m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message)
            for m in self.queues.read(queue, vt, qty)
        ]

    async def delete(self, queue: str, msg_ids: Sequence[int]) -> list[int]:
        return self.queues.delete(queue, msg_ids)

    async def archive(self, queue: str, msg_ids: Sequence[int]) -> list[int]:
        return self.queues.archive(queue, msg_ids)

    async def set_vt(self, queue: str, msg_ids: Sequence[int], vt: int) -> list[int]:
        return self.queues.set_vt(queue, msg_ids, self.clock.now() + timedelta(seconds=vt))


def encode(value: Any) -> bytes:
    """Encode as jsonb would keep it: keys by length, then by their bytes."""
    return orjson.dumps(_in_jsonb_order(orjson.loads(orjson.dumps(value))))


def _in_jsonb_order(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _in_jsonb_order(value[key]) for key in keys}
    if isinstance(value, list):
        return [_in_jsonb_order(item) for item in value]
    return value


def _distinct(msg_ids: Iterable[int]) -> list[int]:
    return sorted(set(msg_ids))

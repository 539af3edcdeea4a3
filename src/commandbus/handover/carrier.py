"""Carrier: leases the commands of a domain and gives them to a broker, as signed commands.

The lease is the time that the other system has. Nothing keeps it alive here: if neither a result
nor a sign of life comes, it lapses, the command is given away again under the next lease, and what
the first one says then is refused. So it does not matter what a broker loses or doubles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.handover.messages import sign
from commandbus.keys import Key
from commandbus.loops import Backoff, Loop
from commandbus.names import handover_queue
from commandbus.privacy.redaction import redact_text
from commandbus.transport import BrokerError, MessageRefusedError, Transport
from commandbus.worker.options import new_worker_id
from commandbus.worker.outcomes import parked
from commandbus.worker.receiver import HEAD_SECONDS

Value = TypeVar("Value")

#: What the leases of a handover are called; handed_over in handover.sql asks for it.
HOLDER = "handover:"
#: Commands that are given away in one go.
GROUP = 100
#: First and longest wait between two looks for commands, in seconds.
POLL_SECONDS = (0.05, 1.0)
#: First and longest pause after the broker did not confirm, in seconds.
REFUSED_SECONDS = (0.1, 30.0)
#: How long another look at a full house waits, in seconds.
FULL_SECONDS = 0.5

_HANDED_OVER: LiteralString = (
    "select * from {schema}.handed_over(%s, cast(%s as uuid[]), cast(%s as bigint[]))"
)
_STILL_OUT: LiteralString = (
    "select * from {schema}.still_out(%s, cast(%s as uuid[]), cast(%s as bigint[]))"
)


async def leases_out(store: Store, domain: str, leases: Sequence[tuple[UUID, int]]) -> list[Lease]:
    """Of these, by command and number, those that a handover has still."""
    if not leases:
        return []
    ids, numbers = [command_id for command_id, _ in leases], [number for _, number in leases]
    rows = await store.gateway.rows(_HANDED_OVER, (domain, ids, numbers), domain=domain)
    return [Lease(domain, *row) for row in rows]


class Carrier(Loop):
    """Gives away what is due, so that at most `at_once` of its commands are open."""

    name = "handover"

    def __init__(
        self, store: Store, queue: Transport, domain: str, key: Key, lease_seconds: int,
        at_once: int, *, counts_lapses: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self._store = store
        self._queue = queue
        self._domain = domain
        self._key = key
        self._lease_seconds = lease_seconds
        self._at_once = at_once
        self._count_every: tuple[str, ...] | None = None if counts_lapses else ()
        self._worker = HOLDER + new_worker_id()
        self._polls = Backoff(*POLL_SECONDS)
        self._head_at = -HEAD_SECONDS
        #: What it has given away, by command: the number of the lease.
        self._open: dict[UUID, int] = {}
        #: Commands that the broker has confirmed since the start.
        self.given = 0
        #: How many are given away in one go; less after one that was not confirmed.
        self._group = GROUP
        self._refusals = Backoff(*REFUSED_SECONDS)
        #: When the broker did not confirm last, and when it answered last.
        self._failed_at = -1.0
        self._answered_at = 0.0

    def note_answer(self) -> None:
        """The broker has answered, to whatever it was asked."""
        self._answered_at = time.monotonic()

    def forget(self, leases: Sequence[tuple[UUID, int]]) -> None:
        """Their results have come to this process. One of a former lease frees no place."""
        before = len(self._open)
        for command_id, lease in leases:
            if self._open.get(command_id) == lease:
                del self._open[command_id]
        if len(self._open) < before:
            self.wake()

    async def step(self) -> float | None:
        """Give away one group."""
        if self._answered_at < self._failed_at:
            # It is down. To lease and give back meanwhile would only fill the audit.
            return POLL_SECONDS[1]
        if len(self._open) >= self._at_once:
            # Results may have come to another process, and leases may have lapsed.
            ids, leases_of = [*self._open], [*self._open.values()]
            self._open = dict(
                await self._store.gateway.rows(
                    _STILL_OUT, (self._domain, ids, leases_of), domain=self._domain
                )
            )
            if len(self._open) >= self._at_once:
                return FULL_SECONDS
        # Taken before, so that the end that is told is never later than the real one.
        ends = datetime.now(UTC) + timedelta(seconds=self._lease_seconds)
        leases = await self._receive(min(self._group, self._at_once - len(self._open)))
        if not leases:
            return self._polls.next()
        self._polls.reset()
        # A cancel waits for the broker: who gets a command must not find its lease given back.
        return await _finish(self._give(leases, ends))

    async def _receive(self, quantity: int) -> list[Lease]:
        now = time.monotonic()
        from_head = now - self._head_at >= HEAD_SECONDS
        if from_head:
            self._head_at = now
        receiving = asyncio.ensure_future(
            self._store.receive(
                self._domain, vt_seconds=self._lease_seconds, quantity=quantity,
                worker=self._worker, limits={}, from_head=from_head,
                count_every=self._count_every,
            )
        )  # fmt: skip
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            await self._give_back(await receiving)  # they may have been on their way
            raise

    async def _give(self, leases: Sequence[Lease], ends: datetime) -> float | None:
        """Returns the pause to make then."""
        commands = [
            sign(self._body(lease, ends), self._key, data=lease.payload, meta=lease.meta)
            for lease in leases
        ]
        try:
            await self._queue.publish(handover_queue(self._domain), commands)
        except MessageRefusedError as error:
            return await self._give_apart(leases, ends, error)
        except BrokerError as error:
            await self._give_back(leases)
            self._failed_at = time.monotonic()
            self._group = max(1, len(leases) // 2)
            pause = self._refusals.next()
            self._log.warning(
                "%d commands of %s could not be given away, next try in %.1f s: %s",
                len(leases), self._domain, pause, error,
            )  # fmt: skip
            return pause
        except BaseException:
            await self._give_back(leases)
            raise
        self._refusals.reset()
        if len(leases) >= self._group:
            self._group = min(GROUP, self._group * 2)
        self._open |= {lease.command_id: lease.lease_epoch for lease in leases}
        self.given += len(leases)
        return None

    async def _give_apart(
        self, leases: Sequence[Lease], ends: datetime, error: MessageRefusedError
    ) -> float | None:
        """The broker will never take one of these: find it, so that the others are not kept."""
        if len(leases) == 1:
            said = f"{self._queue.name} does not take the command: {error}"
            await self._store.settle(self._domain, [parked(leases[0], "NOT_HANDED_OVER", said)])
            return None
        half = len(leases) // 2
        pauses = [await self._give(leases[:half], ends), await self._give(leases[half:], ends)]
        return max((each for each in pauses if each is not None), default=None)

    def _body(self, lease: Lease, ends: datetime) -> dict[str, Any]:
        return {
            "kind": "command", "domain": self._domain, "command_id": str(lease.command_id),
            "type": lease.command_type, "lease": lease.lease_epoch, "attempt": lease.attempt,
            "max_attempts": lease.max_attempts, "correlation_id": str(lease.correlation_id),
            "lease_seconds": self._lease_seconds, "lease_ends_at": ends.isoformat(),
        }  # fmt: skip

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        """As if they had never been leased. If that fails they lapse."""
        if not leases:
            return
        try:
            await self._store.settle(
                self._domain, [Outcome(lease, OutcomeKind.RELEASE) for lease in leases]
            )
        except CommandBusError as error:
            self._log.warning(
                "%d leases could not be given back, and lapse: %s",
                len(leases), redact_text(str(error)),
            )  # fmt: skip


async def _finish(work: Coroutine[Any, Any, Value]) -> Value:
    """Do it to its end, also if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it was told, as far as it can be: the leases were given back
        raise

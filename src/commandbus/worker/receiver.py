"""Receiver: leases as many commands as the executor has room for; one per process and domain.

Delivery rests on polling: every few milliseconds while there is work, up to a second when idle. A
wake-up cuts the wait short; if one is lost, the next poll finds the command.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commandbus.database.model import Lease
from commandbus.database.store import ReceiveOptions, Store
from commandbus.loops import Backoff, Loop
from commandbus.worker.emptying import UntilEmpty

#: First wait after the queue was found empty, in seconds.
FIRST_POLL_SECONDS = 0.002
#: Seconds between two looks at the head of the queue, where the commands of a dead worker are. By
#: the time at which they are due, all that came while they were leased would go first.
HEAD_SECONDS = 1.0
#: The same, after a look that found a command that had been leased before.
HEAD_AGAIN_SECONDS = 0.05
#: After this time without a command the worker says that it is idle, and senders wake it up.
IDLE_AFTER_SECONDS = 0.05
#: After this time in which every poll found commands it says that it is busy, and they stop.
BUSY_AFTER_SECONDS = 0.25
#: Above this rate a poll may find nothing, if the next finds a command soon. Polling every few
#: milliseconds is as good as wake-ups, and each wake-up delays the commits of all senders.
BUSY_PER_SECOND = 1_000
BUSY_GAP_SECONDS = 0.01
#: After a look that a hint or a due time asked for, and that found nothing: the wait before it asks
#: when the next command is due. A hint may be about one that is delayed for less than a poll.
ASK_AGAIN_SECONDS = 0.02


class Room(Protocol):
    """Where leases go."""

    def wanted(self) -> int:
        """How many commands to lease now."""

    def has_few(self) -> bool:
        """Whether so few are leased at once that a commit costs more than they do."""

    def places(self) -> int:
        """How many could start at once: what is under a limit is not leased ahead."""

    def left_out(self) -> Sequence[str]:
        """Command types of which to lease none now; asked after `wanted`."""

    def submit(self, leases: Sequence[Lease], asked_at: float) -> None:
        """Take leases that were asked for at that moment of the monotonic clock."""

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back that came too late."""


@dataclass(eq=False)
class Receiver(Loop):
    """Keeps the executor supplied."""

    name = "receiver"

    store: Store
    room: Room
    domain: str
    worker: str
    vt_seconds: int
    limits: Callable[[], Mapping[str, int]]
    mark_in_progress: bool
    poll_max_seconds: float
    announce_idle: Callable[[], Awaitable[None]] | None
    #: Asks for many idle domains at once in how many seconds there is something to lease; 0: now,
    #: None: not by itself.
    due_in: Callable[[str], Awaitable[float | None]]
    count_every: Callable[[], Collection[str]] = tuple
    #: Told of each look, if the worker ends once its queue is empty.
    until_empty: UntilEmpty | None = None
    #: Whether leases say when they were due, for metrics.
    with_due: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._polls = Backoff(FIRST_POLL_SECONDS, self.poll_max_seconds)
        self._is_full = False
        self._is_woken = False
        self._is_told = False
        #: Whether commands are being asked for: by a step, or with the end of others. Never both at
        #: once: each asks for as many as there is room for.
        self._is_asking = False
        self._was_held_back = False
        self._is_refilled = False
        #: Whether the last group was all that was asked for: then places are not what it waits for.
        self._has_plenty = False
        #: Whether it has asked for commands, and was answered.
        self.has_asked = False
        self._due_at = float("inf")  # of the monotonic clock
        self._head_at = time.monotonic()
        self.is_idle = False
        self._quiet_since = time.monotonic()
        self._busy_since: float | None = None
        self._found_since_busy = 0

    def wake(self) -> None:
        """Lease now: there is something, or there may be."""
        self._is_woken = True
        super().wake()

    def room_freed(self) -> None:
        """A command has ended. It matters only if the receiver waits for room."""
        self._is_refilled = False
        if self._is_full and not self._is_told and self.room.wanted() > 0:
            self._is_told = True  # the next step looks for itself, so that is enough
            self.wake()

    def refill(self, *, is_limited: bool) -> ReceiveOptions | None:
        """What to lease in the transaction in which others end, which gives their places back.

        None: nothing. Otherwise `refilled` must follow. Under limits nothing too while each group
        is full: then others than those at a limit are done, and it is faster to end and to lease at
        once, on two connections, than one after the other. Without limits only where there are few
        places, for which a second commit is dear, while each group is full, so that there probably
        is more, and not when a look at the head is due.
        """
        if is_limited:
            is_busy = self._has_plenty
        else:
            is_few = self._has_plenty and self.room.has_few()
            is_busy = not is_few or self._is_head_due(time.monotonic())
        is_busy = is_busy or self._is_asking or self.is_stopping
        quantity = 0 if is_busy else self.room.wanted()
        if quantity <= 0:
            return None
        self._is_asking = True
        return self._options(quantity, from_head=False)

    def refilled(self, options: ReceiveOptions, leases: Sequence[Lease], asked_at: float) -> None:
        """It came to this; nothing, if the transaction failed."""
        self._is_asking = False
        self._has_plenty = len(leases) >= options["quantity"]
        if leases:
            self.has_asked = True
            self._note_work(len(leases))
            self._take(leases, asked_at)
        # As many as there were places for, and not more: then nothing is left to be asked for.
        places = options.get("places") or 1
        self._is_refilled = places <= len(leases) < options["quantity"]
        if self._was_held_back:
            self._was_held_back = False
            self.wake()

    def places_freed(self) -> None:
        """Commands have ended that have given places back, or whose key may go on."""
        if not self._is_refilled:
            self.wake()
        self._is_refilled = False

    def _options(self, quantity: int, *, from_head: bool) -> ReceiveOptions:
        return {
            "vt_seconds": self.vt_seconds,
            "quantity": quantity,
            "worker": self.worker,
            "limits": self.limits(),
            "mark_in_progress": self.mark_in_progress,
            "from_head": from_head,
            "except_types": self.room.left_out(),
            "count_every": self.count_every(),
            "places": self.room.places(),
            "with_due": self.with_due,
        }

    async def step(self) -> float | None:
        """Lease one group, or wait."""
        self._is_told = False
        if self._is_asking:
            self._was_held_back = True
            return self.poll_max_seconds
        quantity = self.room.wanted()
        self._is_full = quantity <= 0
        if self._is_full:
            # room_freed() ends this pause; its length matters only if that call is missed.
            return self.poll_max_seconds
        if self.until_empty is not None:
            self.until_empty.look_begins()
        is_called = self._is_woken or time.monotonic() >= self._due_at
        self._is_woken, self._due_at = False, float("inf")
        if self.is_idle and not is_called:
            seconds = await self.due_in(self.domain)
            if seconds is None or seconds > 0:
                return self._until_due(await self._found_nothing(), seconds)
        asked_at = time.monotonic()
        from_head = self._is_head_due(asked_at)
        self._is_asking = True
        try:
            leases = await self.store.receive(
                self.domain, **self._options(quantity, from_head=from_head)
            )
        finally:
            self._is_asking = False
        self.has_asked = True
        self._has_plenty = len(leases) >= quantity
        if from_head:
            # There may be more than there was room for.
            is_again = any(lease.lease_epoch > 1 for lease in leases)
            self._head_at = asked_at - (HEAD_SECONDS - HEAD_AGAIN_SECONDS if is_again else 0.0)
        if not leases:
            pause = await self._found_nothing()
            if pause is None or not (is_called and self.is_idle):
                return pause
            return min(pause, ASK_AGAIN_SECONDS)
        if not self._take(leases, asked_at):
            return None
        await self._found_work(len(leases))
        # A full group: there is probably more. Otherwise give new commands a moment to gather.
        return None if len(leases) == quantity else FIRST_POLL_SECONDS

    def _is_head_due(self, now: float) -> bool:
        return now - self._head_at >= HEAD_SECONDS

    def _take(self, leases: Sequence[Lease], asked_at: float) -> bool:
        # If the process was paused, or the event loop blocked, these leases may have lapsed, and
        # another worker may run the commands by now. They are given back, not started; the epoch
        # of the lease protects those that another worker has.
        if self.is_stopping or time.monotonic() - asked_at >= self.vt_seconds:
            self.room.release(leases)
            return False
        self.room.submit(leases, asked_at)
        return True

    def _until_due(self, pause: float | None, seconds: float | None) -> float | None:
        if pause is None or seconds is None or seconds >= pause:
            return pause
        self._due_at = time.monotonic() + seconds
        return seconds

    async def _found_work(self, number: int) -> None:
        now = self._note_work(number)
        if self.is_idle and now - (self._busy_since or now) > BUSY_AFTER_SECONDS:
            await self._set_idle(is_idle=False)

    def _note_work(self, number: int) -> float:
        now = time.monotonic()
        if self.until_empty is not None:
            self.until_empty.found_work()
        self._polls.reset()
        self._quiet_since = now
        if self._busy_since is None:
            self._busy_since, self._found_since_busy = now, 0
        self._found_since_busy += number
        return now

    async def _found_nothing(self) -> float | None:
        if self.until_empty is not None:
            await self.until_empty.found_nothing(self.store)
        now = time.monotonic()
        if self._busy_since is not None:
            is_fast = self._found_since_busy > (now - self._busy_since) * BUSY_PER_SECOND
            if not is_fast or now - self._quiet_since > BUSY_GAP_SECONDS:
                self._busy_since = None
        if not self.is_idle and now - self._quiet_since > IDLE_AFTER_SECONDS:
            await self._set_idle(is_idle=True)
            self._is_woken = True
            # One more look at once: a sender that saw us busy may have committed meanwhile.
            return None
        return self._polls.next()

    async def _set_idle(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        if self.announce_idle is not None:
            await self.announce_idle()

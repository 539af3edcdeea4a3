"""LeaseKeeper: extends leases from an OS thread, which a blocked event loop cannot stop.

It also notices that the event loop is blocked, and says where; learns which commands should be
canceled; and writes how far handlers say that they have come.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.database.model import Lease, Said
from commandbus.database.store import LeaseExtender
from commandbus.handler import HandlerEntry
from commandbus.privacy.redaction import redact_text
from commandbus.worker.outcomes import secrets_of

#: Seconds without a turn of the event loop after which its stack is logged.
STALL_SECONDS = 1.0
#: Seconds that `stop` waits for an extension that is still on its way.
STOP_SECONDS = 2.0
#: How often progress is written, in seconds; what was said in between is replaced by the last word.
TELL_SECONDS = 1.0
#: Characters of the text of a progress.
MAX_MESSAGE = 500
#: How often it is looked whether the thread has ended, in seconds.
STOP_LOOK_SECONDS = 0.005

_log = logging.getLogger("commandbus.lease")


@dataclass(slots=True)
class _Kept:
    lease: Lease
    expires_at: float  # monotonic seconds
    give_up_at: float


#: The lease, its handler, the fraction and the text of a progress.
_Word = tuple[Lease, HandlerEntry | None, float, str | None]


@dataclass(eq=False)
class LeaseKeeper:
    """Knows the leases of this worker and extends each when a third of its time is over."""

    thread: LeaseThread
    domain: str
    vt_seconds: int
    deadline_seconds: float
    on_lost: Callable[[Lease, str], None]
    on_overdue: Callable[[Lease], None]  # its handler had all the time that there is
    on_canceled: Callable[[Lease], None] = lambda _: None  # somebody wants it to end

    def __post_init__(self) -> None:
        #: By the number of the command's id: to look up an UUID calls Python code each time.
        self._kept: dict[int, _Kept] = {}
        #: The last word of each command that has not been written yet.
        self._said: dict[UUID, _Word] = {}
        self._told_at = -math.inf
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to extend."""
        self.thread.add(self)

    async def stop(self) -> None:
        """Extend nothing any more."""
        await self.thread.remove(self)

    def add(self, leases: Iterable[Lease], asked_at: float | None = None) -> None:
        """Extend these from now on (dict operations are atomic, so the thread needs no lock).

        Their time runs since they were asked for, not since the database answered.
        """
        now = time.monotonic() if asked_at is None else asked_at
        for lease in leases:
            key = lease.command_id.int
            older = self._kept.get(key)
            if older is not None:
                # Leased again before this thread noticed that the first lease had lapsed.
                self._lose(older, "its lease was lost")
            self._kept[key] = _Kept(lease, now + self.vt_seconds, now + self.deadline_seconds)

    def remove(self, leases: Sequence[Lease]) -> None:
        """These have ended."""
        for lease in leases:
            key = lease.command_id.int
            kept = self._kept.get(key)
            # The same command may have been leased again in the meantime.
            if kept is not None and kept.lease.lease_epoch == lease.lease_epoch:
                self._kept.pop(key, None)
                if self._said:
                    self._said.pop(lease.command_id, None)

    def keep_on(self, lease: Lease) -> None:
        """Extend it for the same time again: the handler began long after the lease."""
        now = time.monotonic()
        self._kept[lease.command_id.int] = _Kept(lease, now, now + self.deadline_seconds)

    def set_expiry(self, lease: Lease, seconds: float) -> None:
        """The handler extended its lease itself."""
        kept = self._kept.get(lease.command_id.int)
        if kept is not None:
            kept.expires_at = time.monotonic() + seconds

    def say(
        self, lease: Lease, entry: HandlerEntry | None, fraction: float, message: str | None
    ) -> None:
        """A handler says how far it has come: the last word is written soon. From any thread."""
        self._said[lease.command_id] = (lease, entry, fraction, message)

    def _tell(self) -> None:
        """Write what handlers said, once a second at most, in the thread."""
        now = time.monotonic()
        if not self._said or now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        words: list[_Word] = []
        while self._said:
            # Taken one by one: others are added meanwhile, from other threads.
            words.append(self._said.popitem()[1])
        try:
            said = [redacted_word(word) for word in words]
            self.thread.extender.record_progress(self.domain, said)
        except Exception:
            for word in words:  # tried again, unless a newer word has come meanwhile
                self._said.setdefault(word[0].command_id, word)
            raise

    def _extend_due(self) -> None:
        """Extend what is due, in the thread."""
        now = time.monotonic()
        kept = list(self._kept.values())
        for entry in kept:
            if now >= entry.give_up_at:
                # Its time-out is earlier: the event loop was blocked, or nothing has called it.
                self._kept.pop(entry.lease.command_id.int, None)
                self._loop.call_soon_threadsafe(self.on_overdue, entry.lease)
        due = [
            entry
            for entry in kept
            if now < entry.give_up_at and entry.expires_at - now <= self.vt_seconds * 2 / 3
        ]
        if not due:
            return
        leases = [entry.lease for entry in due]
        lost, canceled = self.thread.extender.extend(self.domain, leases, self.vt_seconds)
        for entry in due:
            if entry.lease.command_id not in lost:
                entry.expires_at = now + self.vt_seconds
                if entry.lease.command_id in canceled:
                    self._loop.call_soon_threadsafe(self.on_canceled, entry.lease)
            elif self._kept.get(entry.lease.command_id.int) is entry:
                # Not one that ended while the call was on its way.
                self._lose(entry, "its lease was lost")

    def _lose(self, entry: _Kept, why: str) -> None:
        self._kept.pop(entry.lease.command_id.int, None)
        self._loop.call_soon_threadsafe(self.on_lost, entry.lease, why)


def redacted_word(word: _Word) -> Said:
    """What is kept of a progress."""
    lease, entry, fraction, message = word
    if message is not None:
        message = redact_text(message, MAX_MESSAGE, secrets=secrets_of(lease, entry))
    return Said(lease, fraction, message)


class LeaseThread:
    """The one thread that extends leases, with the one connection for it, for all workers."""

    def __init__(self, extender: LeaseExtender) -> None:
        self.extender = extender
        self._keepers: set[LeaseKeeper] = set()
        self._lock = threading.Lock()  # held while leases of a keeper are extended
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._loop_seen = self._asked_at = time.monotonic()
        self._is_stalled = False

    @property
    def has_died(self) -> bool:
        """Whether leases should be extended and nothing does it."""
        thread = self._thread
        return thread is not None and not thread.is_alive()

    def add(self, keeper: LeaseKeeper) -> None:
        """Keep the leases of this one too; the first starts the thread."""
        self._keepers = self._keepers | {keeper}
        if self._thread is None:
            self._stop.clear()
            self._loop_seen = self._asked_at = time.monotonic()
            self._thread = threading.Thread(
                # What a middleware set for the worker's own work is so for this part of it too.
                target=contextvars.copy_context().run,
                args=(self._run,),
                name="commandbus-lease",
                daemon=True,
            )
            self._thread.start()

    async def remove(self, keeper: LeaseKeeper) -> None:
        """Extend none of its leases any more; the last ends the thread."""
        self._keepers = self._keepers - {keeper}
        if self._keepers or self._thread is None:
            is_busy: Callable[[], bool] = self._lock.locked
        else:
            is_busy, self._thread = self._thread.is_alive, None
            self._stop.set()
            self._stop = threading.Event()
        # Not in a thread: at the end of the process no more of them can be started.
        end = time.monotonic() + STOP_SECONDS
        while is_busy() and time.monotonic() < end:  # noqa: ASYNC110  (a thread sets no event)
            await asyncio.sleep(STOP_LOOK_SECONDS)

    def _run(self) -> None:
        stop = self._stop  # another one if a worker begins after the last has ended
        while not stop.wait(self._tick()):
            self._watch_loop()
            for keeper in self._keepers:
                with self._lock:
                    self._extend(keeper)
        with self._lock:  # not while a later thread uses it
            self.extender.close()

    def _tick(self) -> float:
        return min([STALL_SECONDS / 2, *(keeper.vt_seconds / 6 for keeper in self._keepers)])

    def _extend(self, keeper: LeaseKeeper) -> None:
        if keeper not in self._keepers:
            return
        try:
            keeper._extend_due()
            keeper._tell()
        except Exception as error:  # noqa: BLE001  (tried again at the next tick)
            _log.warning("cannot extend leases of %s: %s", keeper.domain, redact_text(str(error)))
            self.extender.close()

    def _watch_loop(self) -> None:
        # Since the loop was asked, not since it answered: this thread may have been held up too.
        is_answered = self._loop_seen >= self._asked_at
        silence = 0.0 if is_answered else time.monotonic() - self._asked_at
        if silence <= STALL_SECONDS:
            self._is_stalled = False
        elif not self._is_stalled:
            self._is_stalled = True
            frame = sys._current_frames().get(self._loop_thread)
            where = "".join(traceback.format_stack(frame, limit=25)) if frame else "unknown"
            _log.warning(
                "the event loop has been blocked for %.1f s; leases are kept, but nothing else "
                "runs. Use `def` handlers for blocking work. It is here:\n%s", silence, where,
            )  # fmt: skip
        try:
            if is_answered:
                self._asked_at = time.monotonic()
                self._loop.call_soon_threadsafe(self._mark_seen)
        except RuntimeError:  # the loop is closed: the process is ending
            self._stop.set()

    def _mark_seen(self) -> None:
        self._loop_seen = time.monotonic()

"""LeaseKeeper: extends leases from an OS thread, which a blocked event loop cannot stop.

It also notices that the event loop is blocked, and says where.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from commandbus.database.store import LeaseExtender
from commandbus.models import Lease
from commandbus.privacy.redaction import redact_text

#: Seconds without a turn of the event loop after which its stack is logged.
STALL_SECONDS = 1.0
#: Seconds that `stop` waits for an extension that is on its way to a server that hangs.
STOP_SECONDS = 2.0

_log = logging.getLogger("commandbus.lease")


@dataclass(slots=True)
class _Held:
    lease: Lease
    expires_at: float  # monotonic seconds
    give_up_at: float


class LeaseKeeper:
    """Knows which leases this worker holds and extends each at a third of its time."""

    def __init__(
        self,
        extender: LeaseExtender,
        domain: str,
        *,
        vt_seconds: int,
        deadline_seconds: float,
        on_lost: Callable[[Lease, str], None],
    ) -> None:
        self._extender = extender
        self._domain = domain
        self._vt_seconds = vt_seconds
        self._deadline_seconds = deadline_seconds
        self._on_lost = on_lost
        self._held: dict[UUID, _Held] = {}
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._loop_seen = time.monotonic()
        self._is_stalled = False
        self._thread = threading.Thread(
            target=self._run, name=f"commandbus-lease-{domain}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread and close its connection."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def add(self, leases: Iterable[Lease], asked_at: float | None = None) -> None:
        """Hold these from now on (dict operations are atomic, so the thread needs no lock).

        Their time runs since they were asked for, not since the answer was read.
        """
        now = time.monotonic() if asked_at is None else asked_at
        for lease in leases:
            older = self._held.get(lease.command_id)
            if older is not None:
                # Leased again before we noticed that the first lease had lapsed.
                self._lose(older, "its lease was lost")
            self._held[lease.command_id] = _Held(
                lease, now + self._vt_seconds, now + self._deadline_seconds
            )

    def remove(self, leases: Sequence[Lease]) -> None:
        """These have ended."""
        for lease in leases:
            held = self._held.get(lease.command_id)
            # The same command may have been leased again in the meantime.
            if held is not None and held.lease.lease_epoch == lease.lease_epoch:
                self._held.pop(lease.command_id, None)

    def set_expiry(self, lease: Lease, seconds: float) -> None:
        """The handler extended its lease itself."""
        held = self._held.get(lease.command_id)
        if held is not None:
            held.expires_at = time.monotonic() + seconds

    def _run(self) -> None:
        tick = min(self._vt_seconds / 6, STALL_SECONDS / 2)
        while not self._stop.wait(tick):
            self._watch_loop()
            try:
                self._extend_due()
            except Exception as error:  # noqa: BLE001  (tried again at the next tick)
                _log.warning("cannot extend leases: %s", redact_text(str(error)))
                self._extender.close()
        self._extender.close()

    def _extend_due(self) -> None:
        now = time.monotonic()
        held = list(self._held.values())
        for entry in held:
            if now >= entry.give_up_at:
                self._lose(entry, f"it ran longer than {self._deadline_seconds:g} s")
        due = [
            entry
            for entry in held
            if now < entry.give_up_at and entry.expires_at - now <= self._vt_seconds * 2 / 3
        ]
        if not due:
            return
        leases = [entry.lease for entry in due]
        lost = self._extender.extend(self._domain, leases, self._vt_seconds)
        for entry in due:
            if entry.lease.command_id not in lost:
                entry.expires_at = now + self._vt_seconds
            elif self._held.get(entry.lease.command_id) is entry:
                # Not one that ended while the call was on its way.
                self._lose(entry, "its lease was lost")

    def _lose(self, entry: _Held, why: str) -> None:
        self._held.pop(entry.lease.command_id, None)
        self._loop.call_soon_threadsafe(self._on_lost, entry.lease, why)

    def _watch_loop(self) -> None:
        silence = time.monotonic() - self._loop_seen
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
            self._loop.call_soon_threadsafe(self._mark_seen)
        except RuntimeError:  # the loop is closed: the process is ending
            self._stop.set()

    def _mark_seen(self) -> None:
        self._loop_seen = time.monotonic()

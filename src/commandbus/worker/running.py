"""Run: one execution, as the executor watches it. TimeOuts: how those end that take too long."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from commandbus.database.model import Lease
from commandbus.errors import InvalidOperationError
from commandbus.handler import HandlerEntry
from commandbus.logging import HANDLED
from commandbus.middleware.base import Call
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import Secrets
from commandbus.worker.log_fields import fields_of
from commandbus.worker.outcomes import secrets_of

#: How long a handler may take to end after its time-out, in seconds; its failure waits for that.
GRACE_SECONDS = 5.0
#: How long a handler in a thread waits for something that the event loop does for it, in seconds.
WAIT_SECONDS = 60.0

_log = logging.getLogger("commandbus.worker")

#: A handler says how far its command has come: the lease, the handler, the fraction, a text.
OnProgress = Callable[[Lease, HandlerEntry | None, float, str | None], None]
# Of a lease: the number of its command's id, and its epoch. A command may be leased again while the
# handler of its lost lease still runs. To look up an UUID itself calls Python code each time.
Key = tuple[int, int]


class Run:
    """One execution. What waits (for a thread, for a connection) has not begun yet."""

    # On the class: most runs end before any of these changes, and to set each costs time.
    #: None again once it has ended, unless its handler runs in a thread.
    task: asyncio.Task[None] | None = None
    #: The handler that was called; None: not yet.
    entry: HandlerEntry | None = None
    #: What its middleware see; None: there is none, or it has not begun.
    call: Call | None = None
    timeout_seconds: float = math.inf
    #: When the executor has to act, by the monotonic clock; never while the handler is not called.
    due_at: float = math.inf
    in_thread: bool = False
    #: Read by `ctx.should_stop`, from any thread.
    must_stop: bool = False
    has_timed_out: bool = False
    #: Somebody asked to cancel the command.
    is_canceled: bool = False
    #: Its failure is recorded, and the handler has not ended.
    is_abandoned: bool = False
    #: Ends the statement that its handler waits for in a thread; from the event loop.
    interrupt: Callable[[], None] | None = None
    #: Of its payload, once somebody asked.
    _secrets: Secrets | None = None
    #: How often its task was cancelled, because of the time-out or of a cancel of the command.
    _cancels: int = 0

    def __init__(
        self,
        lease: Lease,
        timeouts: TimeOuts,
        found: HandlerEntry | None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.lease = lease
        self._on_progress = on_progress
        #: The handler that is to be called, if there is one.
        self.found = found
        self.needs_thread = found is not None and not found.is_async
        self._timeouts = timeouts

    def log_fields(self) -> dict[str, str | int | None]:
        """Its ids, for what is logged meanwhile; from any thread.

        What began in its task and goes on, such as the next command, has its context and is not
        about it. To look here is cheaper than to set the context of each command twice. But one
        that was given up may run on in its thread.
        """
        if (self.task is None or self.task.done()) and not self.must_stop:
            return {}
        return {**fields_of(self.lease), "worker_id": self._timeouts.worker_id}

    def log(self, level: int, text: str, *more: object) -> None:
        """Log something about it, from any context; its id fills the first place of `text`."""
        _log.log(level, text, self.lease.command_id, *more, extra=self.log_fields())

    def log_secrets(self) -> Secrets:
        """The secret values of its payload; looked for once, however much is logged."""
        if self._secrets is None:
            self._secrets = secrets_of(self.lease, self.entry or self.found)
        return self._secrets

    def redact(self, text: str) -> str:
        """A text without them."""
        return redact_text(text, secrets=self.log_secrets())

    @property
    def is_begun(self) -> bool:
        """Whether the handler was called, and neither ended nor was given up."""
        return self.due_at < math.inf

    @property
    def is_alive(self) -> bool:
        """Whether its own task asks, and not the end of an event loop that destroys the task."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no loop runs
            return False

    @property
    def is_transactional(self) -> bool:
        """Whether it keeps a connection while it runs."""
        return self.entry is not None and self.entry.is_transactional

    def begin(self, entry: HandlerEntry, timeout_seconds: float) -> float:
        """The handler is called now; returns this moment of the monotonic clock."""
        self.entry = entry
        self.timeout_seconds = timeout_seconds
        now = time.monotonic()
        self.due_at = due_at = now + timeout_seconds
        if due_at < self._timeouts.at:
            self._timeouts.plan(due_at)
        return now

    def end(self) -> None:
        """The handler has ended: a time-out comes too late now, and must not stop the commit."""
        self.due_at = math.inf
        while self._cancels and self.task is not None:
            self._cancels -= 1
            self.task.uncancel()

    def cancel(self) -> None:
        """Cancel the handler because of its time-out, or because the command is canceled."""
        if self.task is not None:
            self._cancels += 1
            self.task.cancel()

    def stop(self) -> None:
        """End the whole execution: its command goes back."""
        self.must_stop = True
        if self.interrupt is not None:
            self.interrupt()
        # After the task's first step, which the loop has planned already: a task that is cancelled
        # before it never reports its end, and its command would count as running without limit.
        if self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)

    def request_cancel(self) -> None:
        """Somebody wants the command to end."""
        self.is_canceled = self.must_stop = True
        if self.entry is None:
            self.stop()  # it waits for a thread or a connection
        elif self.is_begun and not self.in_thread:
            self.cancel()
        elif self.interrupt is not None:
            self.interrupt()
        # Else it has ended and is being committed, or only the thread can end it.

    def say(self, fraction: float, message: str | None) -> None:
        """Its handler says how far it has come; from any thread."""
        if self._on_progress is not None and not self.is_abandoned:
            self._on_progress(self.lease, self.found, fraction, message)

    def wait_for(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on the event loop and wait for its end, from a handler's thread."""
        loop = None if self.task is None else self.task.get_loop()
        if loop is None or asyncio._get_running_loop() is not None:
            raise InvalidOperationError(
                "this waits for the event loop, so only a `def` handler may call it, in its thread"
            )
        waiting = asyncio.run_coroutine_threadsafe(begin(), loop)
        try:
            waiting.result(WAIT_SECONDS)
        except TimeoutError:
            waiting.cancel()
            raise


class TimeOuts:
    """Ends runs that take too long: one timer for all, since nearly all end long before."""

    def __init__(
        self,
        running: Mapping[Key, Run],
        deadline_seconds: float,
        on_hung: Callable[[Run], None],
        worker_id: str | None = None,
    ) -> None:
        self.worker_id = worker_id
        self._running = running
        self._deadline_seconds = deadline_seconds  # when a lease is given up
        self._on_hung = on_hung  # an async handler does not end although it was cancelled
        #: When the first run is due, by the monotonic clock.
        self.at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        # Planned while some command begins, and not about that one.
        self._context = contextvars.copy_context()

    def close(self) -> None:
        """Look no more."""
        self.at = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def plan(self, at: float) -> None:
        """Look at what runs no later than then."""
        if at < self.at:
            self.close()
            self.at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._look, context=self._context)

    def _look(self) -> None:
        self.at = math.inf
        now = time.monotonic()
        for run in [run for run in self._running.values() if run.due_at <= now]:
            self.end(run)
        self.plan(min((run.due_at for run in self._running.values()), default=math.inf))

    def end(self, run: Run) -> None:
        """Its time is over, or the time that it had to end."""
        before = HANDLED.set(run)
        try:
            self._end(run)
        finally:
            HANDLED.reset(before)

    def _end(self, run: Run) -> None:
        lease = run.lease
        # The failure must be recorded before the lease is given up.
        grace = min(GRACE_SECONDS, (self._deadline_seconds - run.timeout_seconds) / 2)
        if not run.has_timed_out:
            _log.warning(
                "handler of %s (%s) ran longer than %g s: it is %s",
                lease.command_id, lease.command_type, run.timeout_seconds,
                "asked to stop" if run.in_thread else "cancelled",
            )  # fmt: skip
            run.has_timed_out = run.must_stop = True
            run.due_at = time.monotonic() + grace
            self.plan(run.due_at)
            if not run.in_thread:
                run.cancel()
            elif run.interrupt is not None:
                run.interrupt()
            return
        _log.warning(
            "handler of %s (%s) has not ended %g s after its time-out: its command has failed, and "
            "its result will be ignored%s", lease.command_id, lease.command_type,
            grace, "; it keeps its thread until it ends" if run.in_thread else "",
        )  # fmt: skip
        run.due_at = math.inf
        if run.in_thread:
            run.cancel()  # the thread goes on, but nobody waits for it
        else:
            self._on_hung(run)

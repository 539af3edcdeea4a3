"""`worker --processes N`: a parent that keeps N worker processes running, and speaks for them.

The parent opens no database and loads no application. Each process has a session of its own, so
that Ctrl-C reaches it through the parent, once; and it ends when the parent is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from commandbus.cli.declared import option
from commandbus.cli.output import ExitCode, print_error
from commandbus.cli.systemd import Manager
from commandbus.errors import InvalidInputError
from commandbus.monitoring.reports import MAX_REPORT, Gathered

if TYPE_CHECKING:
    from commandbus.cli.frame import Place
    from commandbus.cli.logs import Logs
    from commandbus.cli.monitored import Shown
    from commandbus.cli.worker import End, Workers

MAX_PROCESSES = 256
#: The first pause before a process is started again, and the longest, in seconds.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
#: A process that ran for so long has worked: its next pause is the first again.
STEADY_SECONDS = 60.0
#: Seconds in which the last report of a process that has ended must be read.
LAST_REPORT_SECONDS = 1.0
#: To start these again would lead to the same end: the options, the schema, a paused domain.
_HOPELESS = {ExitCode.USAGE, ExitCode.PENDING_MIGRATIONS, ExitCode.TOO_NEW, ExitCode.PAUSED}
_COMMAND = "from commandbus.cli.processes import run_child; run_child()"
#: A service manager talks to the parent alone.
_PARENTS_OWN = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}

_log = logging.getLogger("commandbus.cli")

Processes = Annotated[
    int,
    option(
        "--processes",
        metavar="N",
        help="Keep this number of worker processes running.",
    ),
]


@dataclass(frozen=True, slots=True)
class Job:
    """What each process runs. It travels over a pipe: an address may have a password in it."""

    app: str
    workers: Workers
    end: End
    logs: Logs
    place: Place
    #: Seconds to wait for a server that accepts writes.
    wait: float = 0.0
    #: Whether workers add what they count to the database.
    counts: bool = False
    #: Where Python looks for modules.
    path: list[str] = field(default_factory=lambda: list(sys.path))
    #: The pipe for reports; None: nobody wants any.
    reports_to: int | None = None


def check_processes(count: int) -> int:
    """A number of processes, or raise InvalidInputError."""
    if not 1 <= count <= MAX_PROCESSES:
        raise InvalidInputError(f"--processes is {count}; use 1 to {MAX_PROCESSES}")
    return count


def run_processes(job: Job, count: int, shown: Shown) -> None:
    """Run them until a signal, or until all have ended; ends the program with one exit code."""
    from commandbus.cli.monitored import bound

    sock = bound(shown.http)
    manager = Manager.from_env()
    gathered = Gathered(count)
    parent = Parent(job, gathered, wants_reports=shown.is_here or manager.address is not None)

    async def run() -> int:
        attending = asyncio.create_task(manager.attend(lambda: not gathered.not_ready()))
        with shown.of(gathered.pages(), sock):
            try:
                return await parent.run(count, lambda: manager.tell("STOPPING=1"))
            finally:
                attending.cancel()

    code = asyncio.run(run())
    if code == ExitCode.INTERRUPTED:
        print_error("stopped at once; what was running goes back to the queue")
    if code:
        raise SystemExit(code)


class Parent:
    """Starts processes, starts those again that end by themselves, and passes signals on."""

    def __init__(self, job: Job, gathered: Gathered, *, wants_reports: bool) -> None:
        self._job = job
        self._gathered = gathered
        self._wants_reports = wants_reports
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._signals = 0
        self._stopping = asyncio.Event()

    async def run(self, count: int, on_stopping: Callable[[], None] = lambda: None) -> int:
        """Keep them running; returns the exit code for all."""
        with self._heard():
            keeping = [asyncio.create_task(self._keep(number)) for number in range(count)]
            telling = asyncio.create_task(self._tell(on_stopping))
            try:
                codes = await asyncio.gather(*keeping)
            finally:
                telling.cancel()
                for process in self._running.values():  # only if this itself has failed
                    with suppress(ProcessLookupError):
                        process.kill()
        if self._signals > 1:
            return ExitCode.INTERRUPTED
        return next((code for code in codes if code), ExitCode.OK)

    async def _tell(self, on_stopping: Callable[[], None]) -> None:
        await self._stopping.wait()
        self._gathered.stopping()
        on_stopping()

    # -- one process

    async def _keep(self, number: int) -> int:
        """Run one process, again and again; returns how it ended at last."""
        failures = 0
        while True:
            began = time.monotonic()
            code = await self._run_once(number)
            if self._is_last(code):
                self._stop_all_because_of(number, code)
                return _own_code(code)
            failures = 1 if time.monotonic() - began >= STEADY_SECONDS else failures + 1
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), LONGEST_PAUSE_SECONDS)
            why = f"it ended, {_described(code)}; it is started again after {pause:g} s"
            self._gathered.ended(number, why)
            _log.warning("worker process %d: %s", number + 1, why)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return ExitCode.OK
            self._gathered.restarted()

    def _is_last(self, code: int) -> bool:
        if self._stopping.is_set() or code in _HOPELESS:
            return True
        # One that was to end by itself has said how that went; one that was killed has not.
        return self._job.end.until_empty and code >= 0

    def _stop_all_because_of(self, number: int, code: int) -> None:
        self._gathered.ended(number, f"it ended, {_described(code)}")
        if not self._stopping.is_set() and code != ExitCode.OK:
            _log.error(
                "worker process %d ended, %s; the others are stopped", number + 1, _described(code)
            )
            self._stopping.set()
            self._pass_on(signal.SIGTERM)

    async def _run_once(self, number: int) -> int:
        readable, writable = os.pipe() if self._wants_reports else (None, None)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _COMMAND,
                stdin=asyncio.subprocess.PIPE,
                pass_fds=() if writable is None else (writable,),
                start_new_session=True,
                env={name: text for name, text in os.environ.items() if name not in _PARENTS_OWN},
            )  # fmt: skip
        finally:
            if writable is not None:
                os.close(writable)
        # From here on it hears signals by _pass_on, once: a second one would stop it at once.
        is_late = self._stopping.is_set()
        self._running[number] = process
        self._gathered.started(number)
        _log.info("worker process %d is %d", number + 1, process.pid)
        reading = asyncio.create_task(self._read(number, readable))
        try:
            assert process.stdin is not None  # noqa: S101  (asked for above)
            process.stdin.write(pickle.dumps(replace(self._job, reports_to=writable)))
            with suppress(ConnectionError):
                await process.stdin.drain()
            if is_late:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL if self._signals > 2 else signal.SIGTERM)
            return await process.wait()
        finally:
            self._running.pop(number, None)
            # What a handler has started may keep the pipe open.
            await asyncio.wait([reading], timeout=LAST_REPORT_SECONDS)
            reading.cancel()

    async def _read(self, number: int, pipe: int | None) -> None:
        if pipe is None:
            return
        reader = asyncio.StreamReader(limit=MAX_REPORT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb")
        )
        try:
            while line := await reader.readline():
                self._gathered.said(number, line)
        finally:
            transport.close()

    # -- signals

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """First signal: stop. Second: at once. Third: without asking."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._hear)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _hear(self) -> None:
        self._signals += 1
        if self._signals == 1:
            _log.info("stopping; running handlers may finish, a second signal stops at once")
        self._stopping.set()
        self._pass_on(signal.SIGKILL if self._signals > 2 else signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in tuple(self._running.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _described(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _own_code(code: int) -> int:
    """What the end of one process means for the program."""
    if code == -signal.SIGTERM:  # it was stopped before it could listen to signals
        return ExitCode.OK
    return ExitCode.FAILED if code < 0 else code


# -- in the process


def run_child() -> None:
    """What each process runs: the job that the parent writes to it."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  (from the parent, over its own pipe)
    parent = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # an application that reads its input must not wait for the parent
    os.close(nothing)
    threading.Thread(
        target=_end_with, args=(parent,), name="commandbus-parent", daemon=True
    ).start()
    if job.reports_to is not None:
        os.set_inheritable(job.reports_to, False)
    sys.path[:] = job.path
    sys.exit(_work(job))


def _work(job: Job) -> int:
    from commandbus.cli.ending import describe_error, exit_code_of, root_cause
    from commandbus.cli.monitored import Shown
    from commandbus.cli.worker import run_one

    job.logs.start()
    try:
        shown = Shown(counts=job.counts)
        run_one(job.app, job.workers, job.end, job.place, job.wait, shown, job.reports_to)
    except (Exception, KeyboardInterrupt) as raised:
        if os.environ.get("COMMANDBUS_DEBUG"):
            raise
        error = root_cause(raised)
        print_error(describe_error(error))
        return exit_code_of(error)
    return ExitCode.OK


def _end_with(parent: int) -> None:
    """When the parent is gone, nobody would start this process again, or stop it."""
    while os.read(parent, 1):
        pass
    _log.warning("the parent process is gone; stopping")
    os.kill(os.getpid(), signal.SIGTERM)

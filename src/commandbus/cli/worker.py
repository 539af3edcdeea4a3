"""`worker`: a process that works until it is stopped; and how all such processes stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from commandbus.bus import CommandBus
from commandbus.cli.apps import AppError, open_app
from commandbus.cli.declared import argument, option
from commandbus.cli.frame import WAIT_SECONDS, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.monitored import Shown, bound, monitored
from commandbus.cli.output import ExitCode, print_error
from commandbus.cli.processes import Job, Processes, check_processes, run_processes
from commandbus.cli.stuck import GivingUp, StuckError
from commandbus.cli.systemd import Manager
from commandbus.errors import DomainPausedError, InvalidInputError

if TYPE_CHECKING:
    from commandbus.http.serving import HttpServer

_log = logging.getLogger("commandbus.cli")


@dataclass(frozen=True, slots=True)
class Workers:
    """How the workers of one process run."""

    domain: Annotated[
        list[str] | None,
        option("--domain", "-d", help="Serve this domain; may be repeated. Default: all."),
    ] = None
    concurrency: Annotated[
        int, option("--concurrency", "-c", help="Handlers at once, for each domain.")
    ] = 10
    vt_seconds: Annotated[
        int,
        option("--vt-seconds", help="Seconds of a lease; extended while the handler runs."),
    ] = 30
    no_notify: Annotated[
        bool, option("--no-notify", help="Only poll: for poolers without LISTEN.")
    ] = False


@dataclass(frozen=True, slots=True)
class End:
    """When workers end by themselves."""

    until_empty: Annotated[
        bool,
        option("--until-empty", help="End once nothing is due in any of the domains."),
    ] = False
    include_delayed: Annotated[
        bool,
        option("--include-delayed", help="With --until-empty: wait for what is due later as well."),
    ] = False

    exit_when_stuck: Annotated[
        float,
        option(
            "--exit-when-stuck",
            metavar="SECONDS",
            help="End with code 1 once handlers that hang have taken all places of a domain for "
            "that long, to be started again. Default: never.",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        if self.include_delayed and not self.until_empty:
            raise InvalidInputError("--include-delayed goes with --until-empty")
        if not 0 <= self.exit_when_stuck < math.inf:
            raise InvalidInputError(
                f"--exit-when-stuck is {self.exit_when_stuck:g}; use seconds, 0 for never"
            )


def worker(
    app: Annotated[
        str, argument(metavar="MODULE:ATTRIBUTE", help="The app, for example myapp:setup.")
    ],
    *,
    workers: Workers,
    end: End,
    processes: Processes = 1,
    shown: Shown,
    wait: WaitForServer = WAIT_SECONDS,
    logs: Logs,
    place: Place,
) -> None:
    """Process commands with the handlers of an app, until Ctrl-C or SIGTERM.

    The app is Handlers, a function `setup(bus)` that registers handlers, a CommandBus, or a
    function that opens one. The first signal lets running handlers finish; the second stops at
    once. Either way, leases go back. With --until-empty it ends by itself; if a domain is paused,
    at once. With --processes a process that ends by itself is started again.
    """
    logs.start()
    if check_processes(processes) > 1:
        run_processes(Job(app, workers, end, logs, place, wait, shown.counts), processes, shown)
    else:
        run_one(app, workers, end, place, wait, shown)


def run_one(
    app: str,
    workers: Workers,
    end: End,
    place: Place,
    wait: float,
    shown: Shown,
    reports_to: int | None = None,
) -> None:
    """The workers of one process; `reports_to`: a pipe of the parent that started it."""
    sock = bound(shown.http)

    async def work() -> bool:
        async with open_app(app, place, wait) as bus, monitored(bus, shown, sock, reports_to):
            return await serve(bus, app, workers, end=end)

    run_until_stopped(work)


def shell_quoted(address: str) -> str:
    """An address as it can be typed into a shell."""
    # The address has single quotes in it; double ones around it are easier to read.
    return shlex.quote(address) if set(address) & set('"$`\\!') else f'"{address}"'


# -- serving


async def run_until_signal(
    bus: CommandBus,
    workers: Iterable[Coroutine[Any, Any, None]],
    server: HttpServer | None,
    on_started: Callable[[], None],
    *,
    ends: bool = False,
    is_ready: Callable[[], bool] = lambda: True,
) -> bool:
    """Run workers and the HTTP service until a signal; returns whether it ended gracefully.

    `ends`: the workers end by themselves, and all of them are waited for. `is_ready`: whether the
    workers take commands; a service manager is told so.
    """
    stop, abort = asyncio.Event(), asyncio.Event()
    manager = Manager.from_env()
    greeted = asyncio.Event()

    def greet() -> None:
        greeted.set()
        on_started()

    # Not before the HTTP service listens.
    attending = asyncio.create_task(manager.attend(lambda: greeted.is_set() and is_ready()))
    with _signals(stop, abort):
        tasks = [asyncio.create_task(worker) for worker in workers]
        if server is None:
            greet()
        else:
            tasks.append(asyncio.create_task(server.run(greet)))
        try:
            # A task that ends by itself has failed: the others end too.
            if await _is_first(stop, [asyncio.create_task(_all_ended(tasks))] if ends else tasks):
                manager.tell("STOPPING=1")
                _log.info("stopping; running handlers may finish, a second signal stops at once")
                tasks.append(asyncio.create_task(_stop_gracefully(bus, server, serving=tasks[-1])))
                await _is_first(abort, tasks[-1:])
        finally:
            for task in (attending, *tasks):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return not abort.is_set()


def spare_the_collector() -> None:
    """What was made so far stays until this process ends: let garbage be looked for elsewhere.

    With it in the way that takes a tenth of a second in place of some milliseconds, again and
    again, for which every command and every request would wait.
    """
    gc.collect()
    gc.freeze()


async def serve(
    bus: CommandBus,
    app: str,
    workers: Workers,
    server: HttpServer | None = None,
    greet: Callable[[list[str]], None] = lambda _: None,
    end: End = End(),  # noqa: B008  (it is frozen)
) -> bool:
    """The same with a worker for each domain; `greet` is told the domains once everything runs."""
    domains = _served(bus, app, workers.domain or [])
    giving_up = GivingUp(lambda: bus.stuck_domains, end.exit_when_stuck)
    running = (
        bus.run_worker(
            domain,
            concurrency=workers.concurrency,
            vt_seconds=workers.vt_seconds,
            use_notify=not workers.no_notify,
            until_empty=end.until_empty,
            include_delayed=end.include_delayed,
        )
        for domain in domains
    )
    import_module("commandbus.worker.worker")  # else the first worker loads it, and is not spared
    spare_the_collector()
    async with giving_up.watched():
        is_graceful = await run_until_signal(
            bus, running, server, partial(greet, domains), ends=end.until_empty,
            is_ready=lambda: set(domains) <= set(bus.started_domains),
        )  # fmt: skip
    giving_up.check()
    return is_graceful


async def _stop_gracefully(
    bus: CommandBus, server: HttpServer | None, *, serving: asyncio.Task[None]
) -> None:
    # No more requests first: they may ask for what the workers still do.
    if server is not None:
        server.stop()
        await asyncio.wait([serving])
    await bus.stop()


async def _all_ended(tasks: list[asyncio.Task[None]]) -> None:
    """Wait until all tasks have ended, or one has failed. A paused domain is no failure here: its
    worker has told those of the other domains to end.
    """
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if running and all(isinstance(task.exception(), DomainPausedError | None) for task in done):
        await asyncio.wait(running)


async def _is_first(event: asyncio.Event, tasks: list[asyncio.Task[None]]) -> bool:
    """Wait until the event is set or a task has ended; True if it was the event."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        return waiting.done()
    finally:
        waiting.cancel()


def _served(bus: CommandBus, app: str, wanted: list[str]) -> list[str]:
    known = bus.domains
    if not known:
        raise AppError(f"{app} registers no handlers")
    for domain in wanted:
        if domain not in known:
            raise AppError(
                f"{app} has no handlers for domain {domain!r}; it has {', '.join(known)}"
            )
    return list(dict.fromkeys(wanted)) or known


@contextmanager
def _signals(stop: asyncio.Event, abort: asyncio.Event) -> Iterator[None]:
    """First signal: stop. Second: abort. Third: what the system does, which ends the process."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle() -> None:
        if stop.is_set():
            abort.set()
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run_until_stopped(work: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Run it to its end, and end the program with the code that says how it went."""
    code = ExitCode.OK
    try:
        if not asyncio.run(work()):
            code = ExitCode.INTERRUPTED
            print_error("stopped at once; what was running goes back to the queue")
    except StuckError as error:
        code = ExitCode.FAILED
        print_error(str(error))
    if any(thread.name.startswith("commandbus-handler") for thread in threading.enumerate()):
        # A handler in a thread cannot be cancelled, and Python would wait for it at exit.
        _log.warning("a handler is still running in a thread; the process ends without it")
        sys.stdout.flush()
        logging.shutdown()
        os._exit(code)
    if code is not ExitCode.OK:
        raise SystemExit(code)

"""`scheduler`: a process that only fires schedules and does maintenance, until it is stopped."""

from __future__ import annotations

from commandbus.cli.frame import WAIT_SECONDS, Frame, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.output import say
from commandbus.cli.worker import run_until_signal, run_until_stopped
from commandbus.settings import Settings


def scheduler(*, wait: WaitForServer = WAIT_SECONDS, logs: Logs, place: Place) -> None:
    """Fire schedules and do maintenance, without handlers, until Ctrl-C or SIGTERM.

    Workers and the HTTP service fire schedules too: this is for a database where none of them
    always runs. Several may run at once.
    """
    from commandbus.worker.scheduler import Scheduler

    logs.start()
    settings = Settings.from_env()

    async def work() -> bool:
        async with Frame(place=place).open(wait_seconds=wait) as session:
            if place.has_map:
                from commandbus.cli.spanning import schedulers

                running = schedulers(session.bus, settings)
            else:
                running = [Scheduler(session.store, settings).serve()]
            return await run_until_signal(session.bus, running, None, _greet)

    run_until_stopped(work)


def _greet() -> None:
    say("[bold green]commandbus fires schedules[/]")
    say("Stop with Ctrl-C.")

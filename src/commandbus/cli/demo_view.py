"""What is seen while the demo runs: its steps as sentences, and how many commands have ended."""

from __future__ import annotations

import time
from typing import assert_never

from commandbus.cli.output import duration
from commandbus.cli.progress import Quiet, Step
from commandbus.demo import events
from commandbus.demo.run import BUSY_EVERY, FAILING_FOR_GOOD, VT_SECONDS
from commandbus.demo.tables import Progress


class DemoView:
    """Tells what a run of the demo does."""

    def __init__(self, view: Quiet, commands: int) -> None:
        self._view = view
        self._totals = {
            "completed": commands - FAILING_FOR_GOOD,
            "retried": (commands - 1) // BUSY_EVERY,
            "in troubleshooting": FAILING_FOR_GOOD,
        }
        #: When, and how many were completed, at the first look.
        self._began: tuple[float, int] | None = None

    def tell(self, told: events.Told) -> None:
        """Show it."""
        if not isinstance(told, Progress):
            self._view.say(_sentence(told))
            return
        line = (
            f"  {told.completed:>7,} completed  {told.retried:>5,} retried  "
            f"{told.in_troubleshooting:>3} in troubleshooting  {self._rate(told)}"
        )
        counts = (told.completed, told.retried, told.in_troubleshooting)
        self._view.show(
            *(
                Step(line, told.is_finished, name, count, total, f"{count}/{total}")
                for (name, total), count in zip(self._totals.items(), counts, strict=True)
            )
        )

    def _rate(self, progress: Progress) -> str:
        """Commands per second since the first look."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, progress.completed)
        began, before = self._began
        return f"{(progress.completed - before) / (now - began):,.0f}/s" if now > began else ""


def _sentence(step: events.Step) -> str:
    dot = "[bold cyan]•[/] "
    match step:
        case events.ServerReady(version, seconds):
            return f"{dot}PostgreSQL {version} is ready, with our schema ({duration(seconds)})."
        case events.WorkersReady(pids, seconds):
            shown = ", ".join(str(pid) for pid in pids)
            return f"{dot}{len(pids)} worker processes are up: {shown} ({duration(seconds)})."
        case events.Committed(seconds):
            return (
                f"{dot}A payment and its command were committed together; done in "
                f"{duration(seconds)}."
            )
        case events.RolledBack(traces):
            left = "neither is there" if traces == 0 else f"{traces} traces are left"
            return f"{dot}Another payment and its command were rolled back: {left}."
        case events.Sent(commands, seconds):
            return (
                f"{dot}{commands:,} payments and their commands were committed in one "
                f"transaction ({duration(seconds)})."
            )
        case events.Killed(pid, leases, replacement):
            return (
                f"{dot}[bold red]Worker {pid} was killed with SIGKILL[/] while it had {leases} "
                f"leases.\n  Their leases lapse after {VT_SECONDS} s, then others take over. "
                f"Worker {replacement} replaces it."
            )
        case events.OperatorRetried(left):
            return (
                f"{dot}An operator opened the closed account and retried one parked command.\n"
                f"  It is completed; {left} others wait: `commandbus tsq list`."
            )
        case _ as unreachable:
            assert_never(unreachable)

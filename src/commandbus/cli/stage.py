"""What is seen while the demo runs: bars on a terminal, lines elsewhere, nothing for JSON."""

from __future__ import annotations

import time
from typing import assert_never

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from commandbus.cli.output import console, duration, is_fancy, say
from commandbus.demo.events import (
    Committed,
    Killed,
    OperatorRetried,
    RolledBack,
    Sent,
    ServerReady,
    Step,
    Told,
    WorkersReady,
)
from commandbus.demo.run import BUSY_EVERY, FAILING_FOR_GOOD, VT_SECONDS
from commandbus.demo.tables import Progress


class Silence:
    """Shows nothing."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""

    def tell(self, told: Told) -> None:
        """Take note of what happens."""


class Lines(Silence):
    """Prints a line for each step, and one a second while commands are worked off."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._next_line = 0.0

    def tell(self, told: Told) -> None:
        """Print it, if it is time."""
        if not isinstance(told, Progress):
            self._say(_sentence(told))
            return
        self._rate.see(told)
        self._show(told)

    def _say(self, sentence: str) -> None:
        say(sentence)

    def _show(self, progress: Progress) -> None:
        if time.monotonic() >= self._next_line or progress.is_finished:
            self._next_line = time.monotonic() + 1.0
            self._say(
                f"  {progress.completed:>7,} completed  {progress.retried:>5,} retried  "
                f"{progress.in_troubleshooting:>3} in troubleshooting  {self._rate.text}"
            )


class Live(Lines):
    """Shows bars, with the steps above them."""

    def __init__(self, commands: int) -> None:
        super().__init__()
        self._bars = Bars(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console(),
        )
        self._is_open = False
        self._tasks = [
            self._bars.add_task(name, total=total, note="")
            for name, total in (
                ("completed", commands - FAILING_FOR_GOOD),
                ("retried", (commands - 1) // BUSY_EVERY),
                ("in troubleshooting", FAILING_FOR_GOOD),
            )
        ]

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _say(self, sentence: str) -> None:
        self._bars.console.print(sentence)

    def _show(self, progress: Progress) -> None:
        if not self._is_open:
            self._is_open = True
            self._bars.start()
        counts = (progress.completed, progress.retried, progress.in_troubleshooting)
        for task, count in zip(self._tasks, counts, strict=True):
            self._bars.update(task, completed=count)
        self._bars.update(self._tasks[0], note=self._rate.text)
        if progress.is_finished:
            self._bars.stop()


class Rate:
    """Commands per second since the first look."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        self.text = ""

    def see(self, progress: Progress) -> None:
        """Look once more."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, progress.completed)
        elif now > self._began[0]:
            rate = (progress.completed - self._began[1]) / (now - self._began[0])
            self.text = f"{rate:,.0f}/s"


def stage_for(commands: int) -> Silence:
    """What suits where the text goes."""
    return Live(commands) if is_fancy(console()) else Lines()


def _sentence(step: Step) -> str:
    dot = "[bold cyan]•[/] "
    match step:
        case ServerReady(version, seconds):
            return f"{dot}PostgreSQL {version} is ready, with our schema ({duration(seconds)})."
        case WorkersReady(pids, seconds):
            shown = ", ".join(str(pid) for pid in pids)
            return f"{dot}{len(pids)} worker processes are up: {shown} ({duration(seconds)})."
        case Committed(seconds=seconds):
            return (
                f"{dot}A payment and its command were committed together; done in "
                f"{duration(seconds)}."
            )
        case RolledBack(traces):
            left = "neither is there" if traces == 0 else f"{traces} traces are left"
            return f"{dot}Another payment and its command were rolled back: {left}."
        case Sent(commands, seconds):
            return (
                f"{dot}{commands:,} payments and their commands were committed in one "
                f"transaction ({duration(seconds)})."
            )
        case Killed(pid, leases, replacement):
            return (
                f"{dot}[bold red]Worker {pid} was killed with SIGKILL[/] while it held {leases} "
                f"commands.\n  Their leases lapse after {VT_SECONDS} s, then others take over. "
                f"Worker {replacement} replaces it."
            )
        case OperatorRetried(left=left):
            return (
                f"{dot}An operator opened the closed account and retried one parked command.\n"
                f"  It is completed; {left} others wait: `commandbus tsq list`."
            )
        case _ as unreachable:
            assert_never(unreachable)

"""What somebody sees who waits: a line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from faults.plan import Run
from faults.runner import Verdict, replay_command


class Display:
    """Says how far a tier is, and what came of each run."""

    def __init__(self, runs: Sequence[Run], console: Console | None = None) -> None:
        self.console = console or Console(soft_wrap=True)
        self._runs = runs
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began = time.monotonic()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Around all runs."""
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
            TextColumn("left:"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as progress:
            self._progress = progress
            self._task = progress.add_task(
                "faults", total=sum(run.expected_seconds for run in self._runs)
            )
            yield
        self._progress = None

    def say(self, run: Run, step: str) -> None:
        """A run has come to its next step."""
        if self._progress is not None and self._task is not None:
            text = f"{run.id} {escape(run.title[:40])}: {step}"
            self._progress.update(self._task, description=text)
        else:
            passed = time.monotonic() - self._began
            self.console.print(f"{passed:7.1f} s  {run.id:<4} {step}", highlight=False)

    def judged(self, verdict: Verdict, scale: str) -> None:
        """A run has ended."""
        run, figures = verdict.run, verdict.figures
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, run.expected_seconds)
        if figures is None:
            self._print(f"{run.id:<4} skipped: {escape(verdict.skipped)}", "yellow")
            return
        word, style = ("good", "green") if verdict.is_good else ("BAD ", "red")
        self._print(
            f"{run.id:<4} {word} {figures.commands:,} commands, {figures.lost} lost, "
            f"{figures.double_finished} double, stale {figures.stale_accepted} accepted "
            f"{figures.stale_rejected:,} rejected, {figures.duplicates_allowed:,} further runs, "
            f"{verdict.seconds:.0f} s",
            style,
        )
        for violation in verdict.violations[:5]:
            text = f"{violation.invariant} {violation.subject}: {violation.message}"
            self._print(f"     {escape(text)}", "red")
        for text in (*verdict.missed, *verdict.notes):
            self._print(f"     {escape(text)}", "red" if text in verdict.missed else "")
        if not verdict.is_good:
            self._print(f"     again: {replay_command(verdict, scale)}", "red")

    def _print(self, text: str, style: str) -> None:
        self.console.print(text, style=style or None, highlight=False)

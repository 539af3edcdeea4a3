"""What is seen of a load: a bar for each stage on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from commandbus.cli.batch_view import rate_text
from commandbus.cli.output import console, is_fancy, say
from commandbus.loads.model import LoadProgress

_VERBS = {"loading": "stored", "dispatching": "queued"}


class QuietLoad:
    """Shows nothing, but knows how far the load is."""

    def __init__(self) -> None:
        self.rows = 0

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""

    def tell(self, progress: LoadProgress) -> None:
        """Take note of it."""
        self.rows = max(self.rows, progress.rows)
        self._show(progress)

    def _show(self, progress: LoadProgress) -> None:
        """Show it."""


class LoadLines(QuietLoad):
    """A line a second, and one at the end of each stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next_line = 0.0

    def _show(self, progress: LoadProgress) -> None:
        if self._clock() >= self._next_line or progress.rows == progress.total:
            self._next_line = self._clock() + 1.0
            say(f"{_rows(progress)} {_VERBS[progress.stage]}; {_pace(progress)}")


class LoadBars(QuietLoad):
    """A bar for each stage."""

    def __init__(self) -> None:
        super().__init__()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            TextColumn("{task.fields[rows]}  {task.fields[pace]}"),
            console=console(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self._bars.start()

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _show(self, progress: LoadProgress) -> None:
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(
                _VERBS[progress.stage], total=progress.total, rows="", pace=""
            )
        self._bars.update(
            self._tasks[progress.stage],
            completed=progress.rows,
            rows=_rows(progress),
            pace=_pace(progress),
        )


def _rows(progress: LoadProgress) -> str:
    total = "" if progress.total is None else f" of {progress.total:,}"
    return f"{progress.rows:,}{total} rows"


def _pace(progress: LoadProgress) -> str:
    return rate_text(progress.per_second, progress.seconds_left)


def load_view(*, quiet: bool) -> QuietLoad:
    """What suits where the text goes."""
    if quiet:
        return QuietLoad()
    return LoadBars() if is_fancy(console()) else LoadLines()

"""What is seen while something goes on: bars on a terminal, lines elsewhere, nothing for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commandbus.cli.output import console, duration, escaped, is_fancy, say

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.text import Text

#: Seconds between two lines.
LINE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """How far something is."""

    #: As a line of its own.
    line: str
    #: Whether it has ended: its last line is printed at once.
    is_last: bool
    #: As a bar: which one, how far, and the text beside it.
    bar: str = ""
    done: int = 0
    total: int | None = None
    beside: str = ""
    #: What to do about it, printed once; plain text.
    hint: str = ""
    #: As a drawing of this width, for a view that has something else than bars.
    draw: Callable[[int], Text] | None = None


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def show(self, *steps: Step) -> None:
        """Show how far it is: one step, or one for each bar, of which the first has the line."""

    def say(self, sentence: str) -> None:
        """Print a sentence above the bars."""


class Lines(Quiet):
    """A line a second, one at the end, and one for each new hint."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_line = 0.0
        self._hint = ""

    def show(self, *steps: Step) -> None:
        """Print it, if it is time."""
        step = steps[0]
        if self._clock() < self._next_line and not step.is_last:
            return
        self._next_line = self._clock() + LINE_SECONDS
        say(step.line)
        if step.hint and step.hint != self._hint:
            say(f"  {escaped(step.hint)}")
        self._hint = step.hint

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        say(sentence)


class Bars(Quiet):
    """A bar for each name; they are there from the first step on."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            TextColumn("{task.fields[beside]}"),
            console=console(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, *steps: Step) -> None:
        """Move the bars."""
        self._bars.start()
        for step in steps:
            if step.bar not in self._tasks:
                self._tasks[step.bar] = self._bars.add_task(step.bar, total=step.total, beside="")
            self._bars.update(self._tasks[step.bar], completed=step.done, beside=step.beside)

    def say(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        self._bars.console.print(sentence)


def progress_view(*, quiet: bool, bars: Callable[[], Quiet] = Bars) -> Quiet:
    """What suits where the text goes: nothing, lines, or on a terminal `bars`."""
    if quiet:
        return Quiet()
    return bars() if is_fancy(console()) else Lines()


def rate_text(per_second: float | None, seconds_left: float | None) -> str:
    """`120/s, 2 min left`: a rate, and the time that is left at this rate; nothing if unknown."""
    if per_second is None:
        return ""
    is_whole = per_second >= 10 or per_second == 0
    rate = f"{per_second:,.0f}/s" if is_whole else f"{per_second:.1f}/s"
    if not seconds_left:
        return rate
    left = duration(seconds_left) if seconds_left >= 120 else f"{max(seconds_left, 1):.0f} s"
    return f"{rate}, {left} left"

"""A batch while it runs: a bar with segments on a terminal, lines elsewhere; rate and time left."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from commandbus.batches.actions import BatchWait, waits_for
from commandbus.batches.model import BatchProgress, progress_of
from commandbus.cli.frame import Session
from commandbus.cli.output import moment
from commandbus.cli.progress import Quiet, Step, progress_view, rate_text
from commandbus.loads.model import LoadMetadata
from commandbus.models import BatchMetadata

if TYPE_CHECKING:
    from rich.text import Text

#: Seconds between two looks at a batch that is watched.
WATCH_SECONDS = 0.25
#: Seconds over which the rate of a batch that is watched is measured.
WINDOW_SECONDS = 10.0
BAR_WIDTH = 50

_ENDS = (
    "`commandbus batch seal {batch.batch_id}` keeps what is loaded, "
    "`commandbus batch cancel {batch.batch_id}` does not"
)
_HINTS = {
    BatchWait.FAILED_LOAD: (
        "the load stopped ({load.last_error}); fix it and continue with "
        "`commandbus batch resume {batch.domain} {batch.batch_id} SOURCE`, or end it: " + _ENDS
    ),
    BatchWait.LOAD: (
        "not complete, {load.rows_committed:,} rows are in (last commit {committed}); if the "
        "process that loads has ended: "
        "`commandbus batch resume {batch.domain} {batch.batch_id} SOURCE`, or " + _ENDS
    ),
    BatchWait.OPERATOR: (
        "the rest waits for an operator: `commandbus batch retry {batch.batch_id}` sends it "
        "again, `commandbus tsq list --domain {batch.domain}` shows it"
    ),
}


def hint_of(batch: BatchMetadata, load: LoadMetadata | None) -> str:
    """What a batch waits for, and what to do about it; plain text, empty if for nothing."""
    reason = waits_for(batch, load)
    committed = None if load is None else moment(load.updated_at)
    return _HINTS[reason].format(batch=batch, load=load, committed=committed) if reason else ""


def parts_of(batch: BatchMetadata) -> list[tuple[str, str, int]]:
    """Name, colour and count of the parts of a batch that are not open."""
    return [
        ("completed", "green", batch.completed_count),
        ("failed", "red", batch.failed_count),
        ("canceled", "yellow", batch.canceled_count),
        ("in troubleshooting", "magenta", batch.in_troubleshooting_count),
    ]


def counts_text(batch: BatchMetadata) -> str:
    """`480 of 500 ended: 479 completed, 1 failed, 2 in troubleshooting`, as markup."""
    ended = batch.completed_count + batch.failed_count + batch.canceled_count
    shown = [
        f"[{colour}]{count:,} {name}[/]"
        for name, colour, count in parts_of(batch)
        if count or name == "completed"
    ]
    return f"{ended:,} of {batch.total_count:,} ended: {', '.join(shown)}"


def pace_text(progress: BatchProgress) -> str:
    """`120/s, 2 min left`, or nothing while nothing is known."""
    return rate_text(progress.per_second, progress.seconds_left)


# -- the bar


def segments(counts: Sequence[int], total: int, width: int) -> list[int]:
    """Cells of a bar for each count: every count has one, and only a full bar is full."""
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    is_full = sum(counts) >= total
    most = width if is_full else width - 1
    while any(cells) and (sum(cells) > most or (is_full and sum(cells) < width)):
        cells[cells.index(max(cells))] += 1 if sum(cells) < width else -1
    return cells


def bar(batch: BatchMetadata, width: int) -> Text:
    """A bar with a segment for each part."""
    from rich.text import Text

    parts = parts_of(batch)
    text = Text()
    cells = segments([count for _, _, count in parts], batch.total_count, width)
    for (_, colour, _), count in zip(parts, cells, strict=True):
        text.append("━" * count, style=colour)
    return text.append("━" * (width - sum(cells)), style="bright_black")


class Speed:
    """How fast a batch goes just now: over the last seconds, not since its beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, batch: BatchMetadata) -> BatchProgress:
        """Look once more."""
        now, progress = self._clock(), progress_of(batch)
        self._seen.append((now, progress.ended))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        if batch.completed_at is not None or now - then < 1.0:
            return progress
        # Below zero when commands that had ended were sent again.
        rate = max(progress.ended - before, 0) / (now - then)
        left = progress.open / rate if rate else None
        return dataclasses.replace(progress, per_second=rate, seconds_left=left)


# -- watching


async def watch(session: Session, batch: BatchMetadata, *, quiet: bool) -> BatchMetadata:
    """Show a batch until it has ended; returns it as it is then."""
    speed = Speed()
    with progress_view(quiet=quiet, bars=LiveBar) as view:
        while True:
            load = await session.bus.loads.get(batch.domain, batch.batch_id)
            view.show(batch_step(batch, speed.see(batch), hint_of(batch, load)))
            if batch.completed_at is not None:
                return batch
            await asyncio.sleep(WATCH_SECONDS)
            batch = await session.bus.batches.require(batch.domain, batch.batch_id)


def batch_step(batch: BatchMetadata, progress: BatchProgress, hint: str) -> Step:
    """How far a batch is."""
    counts, pace = counts_text(batch), pace_text(progress)

    def draw(width: int) -> Text:
        from rich.text import Text

        # Not rounded up: 100 % is when everything has ended.
        beside = f"  {int(progress.fraction * 100):>3} %  {pace}"
        first = bar(batch, min(BAR_WIDTH, max(width - 30, 10))).append(beside, style="")
        lines = [first, Text.from_markup(counts), *([Text(hint, style="yellow")] if hint else [])]
        return Text("\n").join(lines)

    line = f"{counts}{'; ' if pace else ''}{pace}"
    return Step(line, batch.completed_at is not None, hint=hint, draw=draw)


class LiveBar(Quiet):
    """A live bar, with the counts below it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Not the console of plain text: what is too long must be wrapped to be drawn over.
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, *steps: Step) -> None:
        """Draw it again."""
        self._live.start()
        for step in steps:
            if step.draw is not None:
                self._live.update(step.draw(self._console.width), refresh=True)

"""What is seen of a batch: counts, a bar with segments, rate and time left, what to do next."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from commandbus.batches.model import BatchProgress, progress_of
from commandbus.cli.output import console, duration, is_fancy, jsonable, moment, say
from commandbus.loads.model import LoadMetadata, LoadStatus
from commandbus.models import BatchMetadata
from commandbus.privacy.redaction import redact_value

#: The rate of a batch that is watched is that of the last so many seconds.
WINDOW_SECONDS = 10.0
BAR_WIDTH = 50


def parts_of(batch: BatchMetadata) -> list[tuple[str, str, int]]:
    """Name, colour and count of the parts of a batch that are not open."""
    return [
        ("completed", "green", batch.completed_count),
        ("failed", "red", batch.failed_count),
        ("canceled", "yellow", batch.canceled_count),
        ("in troubleshooting", "magenta", batch.in_troubleshooting_count),
    ]


def open_count(batch: BatchMetadata) -> int:
    """Commands that workers have still to do."""
    return batch.total_count - sum(count for _, _, count in parts_of(batch))


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
    if progress.per_second is None:
        return ""
    return rate_text(progress.per_second, progress.seconds_left)


def rate_text(per_second: float, seconds_left: float | None) -> str:
    """A rate, and the time that is left at this rate."""
    is_whole = per_second >= 10 or per_second == 0
    rate = f"{per_second:,.0f}/s" if is_whole else f"{per_second:.1f}/s"
    if not seconds_left:
        return rate
    left = duration(seconds_left) if seconds_left >= 120 else f"{max(seconds_left, 1):.0f} s"
    return f"{rate}, {left} left"


def progress_document(progress: BatchProgress) -> dict[str, Any]:
    """Progress as it stands in `--json`."""
    return {**dataclasses.asdict(progress), "fraction": progress.fraction}


def batch_json(batch: BatchMetadata) -> dict[str, Any]:
    """A batch as it stands in `--json`, secrets masked."""
    return {**jsonable(batch), "custom_data": redact_value(batch.custom_data)}


def hint_of(batch: BatchMetadata, load: LoadMetadata | None) -> str:
    """What holds a batch up, and what to do about it; plain text, empty if nothing does."""
    if batch.completed_at is not None:
        return ""
    if load is not None and load.status is LoadStatus.FAILED:
        return (
            f"the load stopped ({load.last_error}); mend it and go on with "
            f"`commandbus batch resume {batch.domain} {batch.batch_id} SOURCE`"
        )
    if load is not None and load.status is LoadStatus.LOADING:
        return (
            f"not complete, {load.rows_committed:,} rows are in (last commit "
            f"{moment(load.updated_at)}); if its loader is gone: "
            f"`commandbus batch resume {batch.domain} {batch.batch_id} SOURCE`"
        )
    if batch.in_troubleshooting_count and open_count(batch) == 0:
        return (
            f"the rest waits for an operator: `commandbus batch retry {batch.batch_id}` sends it "
            f"again, `commandbus tsq list --domain {batch.domain}` shows it"
        )
    return ""


# -- the bar


def segments(counts: Sequence[int], total: int, width: int) -> list[int]:
    """Cells of a bar for each count: whatever is there has one, and only a full bar is full."""
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    is_full = sum(counts) >= total
    most = width if is_full else width - 1
    while any(cells) and (sum(cells) > most or (is_full and sum(cells) < width)):
        cells[cells.index(max(cells))] += 1 if sum(cells) < width else -1
    return cells


def bar(batch: BatchMetadata, width: int) -> Text:
    """A bar with a segment for each part."""
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
        left = open_count(batch) / rate if rate else None
        return dataclasses.replace(progress, per_second=rate, seconds_left=left)


# -- watching


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What is known of a batch at one moment."""

    batch: BatchMetadata
    progress: BatchProgress
    hint: str


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def show(self, look: Look) -> None:
        """Take note of it."""


class Lines(Quiet):
    """A line a second, and one for each new hint."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_line = 0.0
        self._hint = ""

    def show(self, look: Look) -> None:
        """Print it, if it is time."""
        if self._clock() >= self._next_line or look.batch.completed_at is not None:
            self._next_line = self._clock() + 1.0
            pace = pace_text(look.progress)
            say(f"{counts_text(look.batch)}{'; ' if pace else ''}{pace}")
            if look.hint != self._hint:
                self._hint = look.hint
                if look.hint:
                    say(f"  {escape(look.hint)}")


class Bar(Quiet):
    """A live bar, with the counts beneath it."""

    def __init__(self) -> None:
        # Not the console of plain text: what is too long must be wrapped to be drawn over.
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Bar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, look: Look) -> None:
        """Draw it anew."""
        width = min(BAR_WIDTH, max(self._console.width - 30, 10))
        # Not rounded up: 100 % is when everything has ended.
        share = f"{int(look.progress.fraction * 100):>3} %"
        first = bar(look.batch, width).append(f"  {share}  {pace_text(look.progress)}", style="")
        lines = [first, Text.from_markup(counts_text(look.batch))]
        if look.hint:
            lines.append(Text(look.hint, style="yellow"))
        self._live.update(Group(*lines), refresh=True)


def watcher(*, quiet: bool) -> Quiet:
    """What suits where the text goes."""
    if quiet:
        return Quiet()
    return Bar() if is_fancy(console()) else Lines()

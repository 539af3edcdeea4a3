"""`batch watch` without an id: all open batches at once, until none is left."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from commandbus.batches.model import BatchProgress
from commandbus.cli.batch_view import batch_json, progress_json
from commandbus.cli.batch_watch import (
    WATCH_SECONDS,
    LiveBar,
    Speed,
    bar,
    counts_text,
    pace_text,
)
from commandbus.cli.frame import Session
from commandbus.cli.output import console, escaped, is_fancy, jsonable, say, styled_status
from commandbus.cli.progress import LINE_SECONDS, Quiet, Step
from commandbus.models import BatchMetadata

if TYPE_CHECKING:
    from rich.text import Text

#: Batches that are watched at once: the newest.
MOST = 50
BAR_WIDTH = 20


class EachLine(Quiet):
    """A line for each batch that has changed, at most one a second, and one when it has ended."""

    def __init__(
        self, write: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_lines = 0.0
        self._counts: dict[str, str] = {}

    def show(self, *steps: Step) -> None:
        """Print what is new, if it is time."""
        is_time = self._clock() >= self._next_lines
        if is_time:
            self._next_lines = self._clock() + LINE_SECONDS
        for step in steps:
            # A rate that changes is no news of a batch that stands still.
            if (is_time or step.is_last) and self._counts.get(step.bar) != step.beside:
                self._counts[step.bar] = step.beside
                self._write(step.line)


class LiveBars(LiveBar):
    """A live bar for each batch that is open; a batch that has ended leaves its line above."""

    def show(self, *steps: Step) -> None:
        """Draw them again."""
        from rich.text import Text

        self._live.start()
        for step in steps:
            if step.is_last:
                self._console.print(step.line)
        drawn = [step.draw(self._console.width) for step in steps if step.draw and not step.is_last]
        self._live.update(Text("\n").join(drawn), refresh=True)


def view_of_all(*, as_json: bool) -> Quiet:
    """What suits where the text goes."""
    if as_json:
        return EachLine(partial(print, flush=True))
    return LiveBars() if is_fancy(console()) else EachLine()


async def watch_all(session: Session, domain: str | None, *, as_json: bool) -> list[BatchMetadata]:
    """Show the open batches until none is; returns those that have ended meanwhile."""
    speeds: defaultdict[UUID, Speed] = defaultdict(Speed)
    seen: dict[UUID, BatchMetadata] = {}
    ended: list[BatchMetadata] = []
    with view_of_all(as_json=as_json) as view:
        while True:
            found = await session.bus.batches.list_open(domain, limit=MOST)
            for batch_id in set(seen) - {each.batch_id for each in found}:
                gone = seen.pop(batch_id)
                last = await session.bus.batches.get(gone.domain, batch_id)
                if last is not None and last.completed_at is not None:
                    ended.append(last)
                    found.append(last)
            view.show(
                *(_step(each, speeds[each.batch_id].see(each), as_json=as_json) for each in found)
            )
            seen |= {each.batch_id: each for each in found if each.completed_at is None}
            if not seen:
                return ended
            await asyncio.sleep(WATCH_SECONDS)


def _step(batch: BatchMetadata, progress: BatchProgress, *, as_json: bool) -> Step:
    counts, pace = counts_text(batch), pace_text(progress)
    name = f"{batch.batch_id}  {escaped(batch.name or batch.domain)}"
    is_last = batch.completed_at is not None
    end = styled_status(batch.status) if is_last else pace
    line = f"{name}  {counts}{'; ' if end else ''}{end}"
    if as_json:
        document = {"batch": batch_json(batch), "progress": progress_json(batch)}
        line = json.dumps(jsonable(document), ensure_ascii=False)

    def draw(width: int) -> Text:
        from rich.text import Text

        drawn = Text.from_markup(f"{name}\n")
        drawn.append_text(bar(batch, min(BAR_WIDTH, max(width - 60, 5))))
        # Not rounded up: 100 % is when everything has ended.
        percent = f"  {int(progress.fraction * 100):>3} %  "
        return drawn.append_text(Text.from_markup(f"{percent}{counts}  {pace}"))

    key = f"{batch.status} {counts}"
    return Step(line, is_last, bar=str(batch.batch_id), beside=key, draw=draw)

"""`top`: what goes on in a database, drawn again every second until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.cli.ending import describe_error
from commandbus.cli.frame import Frame, View
from commandbus.cli.options import DomainFilter, parse_seconds
from commandbus.cli.output import escaped, is_fancy, jsonable, moment
from commandbus.cli.top_view import Size, draw
from commandbus.errors import DatabaseUnavailableError
from commandbus.upkeep.activity import Activity, Watch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: The longest time between two looks, in seconds.
MAX_INTERVAL = 3_600
#: A database that does not answer within this many seconds is away.
LOOK_SECONDS = 5.0
#: The width of a picture that goes to a file or a pipe.
PLAIN_WIDTH = 160


async def top(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    interval: Annotated[
        float, typer.Option("--interval", "-n", metavar="SECONDS", help="Between two looks.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once: after two looks, which make a rate.")
    ] = False,
) -> View:
    """Watch domains, workers and limits, until Ctrl-C.

    Off a terminal, and with --json, it prints once what it would show. Depths over 10,000 are
    estimates and begin with ~.
    """
    parse_seconds(interval, "--interval", MAX_INTERVAL)
    target = _console()
    async with frame.open() as session:
        seen = Seen(session.bus.upkeep.figures.watch(domain), domain, interval)
        if once or frame.as_json or not is_fancy(target):
            await seen.look_now()
            await asyncio.sleep(interval)
            await seen.look_now()
        else:
            await _live(seen, target)
    return View(seen.document(), lambda: _print(seen))


def _console(width: int | None = None) -> Console:
    from rich.console import Console

    # Not the console of plain text: what is too long must be cut.
    return Console(file=sys.stdout, highlight=False, width=width)


def _print(seen: Seen) -> None:
    """What was seen last. Of a live picture nothing else stays on the terminal."""
    target = _console()
    if not is_fancy(target):
        target = _console(PLAIN_WIDTH)
    target.print(seen.picture(Size(target.width)))


@dataclass(slots=True)
class Seen:
    """What was seen last, and whether the database is there."""

    watch: Watch
    domain: str | None
    interval: float
    activity: Activity | None = None
    at: datetime | None = None
    #: Why the last look failed.
    trouble: str | None = None
    #: The look that is under way.
    looking: asyncio.Task[Activity] | None = None

    async def look(self) -> None:
        """Look once more; a database that is away is remembered, not raised.

        A look that takes too long is not cancelled, which would wait for the server once more:
        the next call goes on waiting for it.
        """
        looking = self.looking = self.looking or asyncio.create_task(self.watch.look())
        await asyncio.wait([looking], timeout=LOOK_SECONDS)
        if not looking.done():
            self.trouble = f"it did not answer within {LOOK_SECONDS:g} s"
            return
        self.looking = None
        try:
            self.activity = looking.result()
        except DatabaseUnavailableError as error:
            self.trouble = describe_error(error)
        else:
            self.at, self.trouble = datetime.now(UTC), None

    async def look_now(self) -> None:
        """Look once more; raises if the database is away."""
        await self.look()
        if self.trouble is not None:
            self.close()
            raise DatabaseUnavailableError(f"the database is away: {self.trouble}")

    def close(self) -> None:
        """Give up the look that is under way."""
        if self.looking is not None:
            self.looking.cancel()

    def picture(self, size: Size) -> RenderableType:
        """All of it, for this much room."""
        from rich.text import Text

        if self.activity is None:
            return Text.from_markup(self.header())
        return draw(self.activity, self.header(), size, domain=self.domain)

    def header(self) -> str:
        """One line: when, or since when not."""
        where = "all domains" if self.domain is None else f"domain {escaped(self.domain)}"
        if self.trouble is None:
            return f"[bold]commandbus top[/]  {where}  {moment(self.at)}  every {self.interval:g} s"
        last = "" if self.at is None else f", this is of {moment(self.at)}"
        return f"[bold red]The database is away{last}:[/] {escaped(self.trouble)}"

    def document(self) -> dict[str, object]:
        """As `--json` prints it."""
        parts = jsonable(self.activity) or {"domains": [], "workers": [], "limits": []}
        return {"at": jsonable(self.at), **parts}


async def _live(seen: Seen, target: Console) -> None:
    from rich.live import Live

    with (
        _ended_by_signal() as ended,
        Live(console=target, screen=True, auto_refresh=False) as live,
    ):
        ending = asyncio.create_task(ended.wait())
        try:
            while not ended.is_set():
                looking = asyncio.create_task(seen.look())
                # A database that hangs must not keep Ctrl-C waiting.
                await asyncio.wait([looking, ending], return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():
                    looking.cancel()
                    break
                looking.result()
                live.update(seen.picture(Size(target.width, target.height)), refresh=True)
                await asyncio.wait([ending], timeout=seen.interval)
        finally:
            ending.cancel()
            seen.close()


@contextmanager
def _ended_by_signal() -> Iterator[asyncio.Event]:
    """Ctrl-C is how this command ends, and no failure of it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        yield ended
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

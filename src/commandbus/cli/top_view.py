"""What `top` draws: domains, workers and limits as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from commandbus.cli.output import text_of
from commandbus.gates.model import rule_text
from commandbus.upkeep.activity import (
    MOST_COUNTED,
    Activity,
    DomainActivity,
    LimitActivity,
    WorkerActivity,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Item = TypeVar("Item")

#: From this width on numbers are written out.
WIDE = 110
#: A worker whose heartbeat is older than this many seconds is late, or gone: they come every few.
LATE_SECONDS = 30.0
#: Lines that are not rows: the header, the heads of three tables, blank lines, what is left out.
_FURNITURE = 10
#: Characters that a name keeps, however narrow the terminal is.
_LEAST = 6


@dataclass(frozen=True, slots=True)
class Size:
    """The room there is: columns, and lines; None: as many as there are."""

    width: int
    height: int | None = None

    @property
    def is_wide(self) -> bool:
        """Whether there is room for whole numbers."""
        return self.width >= WIDE

    def rows(self, *counts: int) -> list[int]:
        """How many rows each table shows: an even share, and what others do not need."""
        if self.height is None:
            return list(counts)
        room = max(self.height - _FURNITURE, len(counts))
        given = [0] * len(counts)
        while room > 0 and (open_ := [i for i, n in enumerate(counts) if given[i] < n]):
            for index in open_[:room]:
                given[index] += 1
                room -= 1
        return given


def draw(activity: Activity, header: str, size: Size, *, domain: str | None) -> RenderableType:
    """The whole picture."""
    from rich.console import Group
    from rich.text import Text

    domains, workers, limits = activity.domains, activity.workers, activity.limits
    room = size.rows(len(domains), len(workers), len(limits))
    parts: list[RenderableType] = [Text.from_markup(header, overflow="ellipsis"), Text()]
    if domains:
        kept = sorted(domains, key=_weight, reverse=True)[: room[0]]
        parts += [_domains([each for each in domains if each in kept], size)]
        parts += _left_out(len(domains) - len(kept), "domain")
    else:
        named = "" if domain is None else f" {domain}"
        parts += [Text(f"No domain{named} here yet: the first command makes one.")]
    parts += [Text()]
    if workers:
        parts += [_workers(workers[: room[1]], size)]
        parts += _left_out(len(workers) - room[1], "worker")
    else:
        parts += [Text("No workers.", style="yellow" if _has_work(domains) else "")]
    if limits:
        kept_limits = sorted(limits, key=lambda each: -each.waiting)[: room[2]]
        shown = [each for each in limits if each in kept_limits]
        parts += [Text(), _limits(shown, size)]
        parts += _left_out(len(limits) - len(shown), "limit")
    return Group(*parts)


def _weight(each: DomainActivity) -> tuple[int, int]:
    return each.ready + each.in_flight, each.parked


def _has_work(domains: Sequence[DomainActivity]) -> bool:
    return any(each.ready for each in domains)


def _left_out(count: int, what: str) -> list[RenderableType]:
    from rich.text import Text

    text = f"… {count:,} more {what}{'' if count == 1 else 's'}"
    return [Text(text, style="dim", overflow="ellipsis")] if count > 0 else []


# -- tables


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    #: As markup.
    value: Callable[[Any], str]
    #: Gives way when the terminal is narrow.
    gives_way: bool = False
    is_number: bool = True


def _table(items: Sequence[Item], columns: Sequence[_Column], size: Size) -> Table:
    from rich.table import Table

    gap = 2 if size.is_wide else 1
    rows = [[column.value(item) for column in columns] for item in items]
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column, width in zip(columns, _widths(columns, rows, size.width, gap), strict=True):
        justify: Literal["right", "left"] = "right" if column.is_number else "left"
        table.add_column(
            column.title, justify=justify, width=width, no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _widths(
    columns: Sequence[_Column], rows: Sequence[Sequence[str]], room: int, gap: int
) -> list[int]:
    """The width of each column: rich would take from the numbers too, which must be whole."""
    from rich.text import Text

    widths = [
        max(len(column.title), *(Text.from_markup(row[index]).cell_len for row in rows))
        for index, column in enumerate(columns)
    ]
    yielding = [index for index, column in enumerate(columns) if column.gives_way]
    while sum(widths) + gap * (len(widths) - 1) > room:
        widest = max(yielding, key=lambda index: widths[index])
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def _domains(items: Sequence[DomainActivity], size: Size) -> Table:
    def depth(each: DomainActivity, value: int) -> str:
        return ("~" if each.is_estimate else "") + count_text(value, size)

    columns = [
        _Column("DOMAIN", lambda each: text_of(each.domain), gives_way=True, is_number=False),
        _Column("READY", lambda each: depth(each, each.ready)),
        _Column("LATER", lambda each: depth(each, each.delayed)),
        _Column("OLDEST", lambda each: age_text(each.oldest_seconds) if each.ready else "-"),
        _Column("IN/S", lambda each: rate_cell(each.in_per_second, size)),
        _Column("OUT/S", lambda each: rate_cell(each.out_per_second, size)),
        _Column("BUSY", _busy),
        _Column("PARKED", lambda each: _if_any(each.parked, "red", size)),
        _Column("STATE", _state, is_number=False),
    ]
    return _table(items, columns, size)


def _busy(each: DomainActivity) -> str:
    return f"{each.in_flight}/{each.concurrency}" if each.workers else "-"


def _state(each: DomainActivity) -> str:
    if each.is_paused:
        return "[yellow]paused[/]"
    return "[red]no worker[/]" if each.ready and not each.workers else ""


def _workers(items: Sequence[WorkerActivity], size: Size) -> Table:
    def seen(each: WorkerActivity) -> str:
        text = age_text(each.heartbeat_seconds)
        return f"[red]{text}[/]" if each.heartbeat_seconds > LATE_SECONDS else text

    columns = [
        _Column("WORKER", lambda each: text_of(each.worker_id), gives_way=True, is_number=False),
        _Column("DOMAIN", lambda each: text_of(each.domain), gives_way=True, is_number=False),
        _Column("BUSY", lambda each: f"{each.in_flight}/{each.concurrency}"),
        _Column("STUCK", lambda each: _if_any(each.stuck, "red", size)),
        _Column("HEARTBEAT", seen),
        _Column("UP", lambda each: age_text(each.up_seconds)),
    ]
    return _table(items, columns, size)


def _limits(items: Sequence[LimitActivity], size: Size) -> Table:
    def waiting(each: LimitActivity) -> str:
        more = "+" if each.waiting >= MOST_COUNTED else ""
        return count_text(each.waiting, size) + more

    def rule(each: LimitActivity) -> str:
        text = rule_text(
            each.max_running, each.rate, each.per, each.burst, is_paused=each.is_paused
        )
        return f"[yellow]{text}[/]" if each.is_paused else text

    def named(each: LimitActivity) -> str:
        return text_of(each.type or "all") + (" by key" if each.per_key else "")

    columns = [
        _Column("LIMIT OF", lambda each: text_of(each.domain), gives_way=True, is_number=False),
        _Column("TYPE", named, gives_way=True, is_number=False),
        _Column("RULE", rule, gives_way=True, is_number=False),
        _Column("RUNNING", lambda each: count_text(each.running, size)),
        _Column("WAITING", waiting),
        _Column("OLDEST", lambda each: age_text(each.oldest_seconds) if each.waiting else "-"),
    ]
    return _table(items, columns, size)


# -- values


def _if_any(value: int, colour: str, size: Size) -> str:
    return f"[{colour}]{count_text(value, size)}[/]" if value else "0"


def count_text(value: float, size: Size) -> str:
    """`1,234,567` where there is room, else `1.2M`."""
    if size.is_wide or value < 10_000:
        return f"{value:,.0f}"
    for factor, unit in ((1_000_000_000, "G"), (1_000_000, "M")):
        # What would be rounded to 1000k is 1M.
        if value >= factor * 0.9995:
            return f"{value / factor:.1f}{unit}"
    return f"{value / 1_000:.0f}k"


def rate_cell(per_second: float | None, size: Size) -> str:
    """A rate; a dash while it is not known."""
    if per_second is None:
        return "-"
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else count_text(per_second, size)


def age_text(seconds: float) -> str:
    """How long ago, short: `3s`, `12m`, `5h`, `9d`."""
    for factor, unit, most in ((1, "s", 120), (60, "m", 120), (3_600, "h", 48)):
        if seconds < factor * most:
            return f"{max(seconds, 0.0) / factor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"

"""What every command prints: exit codes, tables, JSON, one-line errors.

Rich tables and colours only on a terminal; everywhere else plain aligned text.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from commandbus.models import Progress

Item = TypeVar("Item")


class ExitCode(enum.IntEnum):
    """How the program ends. `commandbus --help` prints this list."""

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Keep the meaning beside the number."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    meaning: str

    OK = 0, "it worked"
    FAILED = 1, "refused or failed; nothing half done is left behind"
    USAGE = 2, "an argument or option is not acceptable"
    PENDING_MIGRATIONS = 3, "the database needs `commandbus db init` or `db migrate`"
    UNAVAILABLE = 4, "no database: unreachable, wrong login, or it cannot start"
    TOO_NEW = 5, "the database needs a newer release of commandbus than this one"
    PAUSED = 6, "a worker was to empty the queue of a paused domain"
    INTERRUPTED = 130, "interrupted (Ctrl-C, or a second signal)"


def print_error(message: str) -> None:
    """One line on stderr."""
    print(f"error: {message}", file=sys.stderr)


def print_note(message: str) -> None:
    """One line on stderr that is no error."""
    print(message, file=sys.stderr)


# -- text


def console(file: TextIO | None = None) -> Console:
    """Where text goes. Made each time: sys.stdout may have been replaced."""
    from rich.console import Console

    return Console(file=file or sys.stdout, highlight=False, soft_wrap=True)


def is_fancy(target: Console) -> bool:
    """Whether tables and live displays make sense there."""
    return target.is_terminal and not target.is_dumb_terminal


def working(text: str, *, quiet: bool) -> AbstractContextManager[Status | None]:
    """Show on a terminal that something goes on; on stderr, so that it is never in the result."""
    target = console(sys.stderr)
    return target.status(text) if is_fancy(target) and not quiet else nullcontext()


def say(text: str = "") -> None:
    """Print a line; `[bold]…[/]` markup shows on terminals only, and only where rich is."""
    if has_rich():
        console().print(text)
    else:
        print(_without_markup(text))


def has_rich() -> bool:
    """Whether the extra `cli` is installed. What the core prints must do without it."""
    return find_spec("rich") is not None


def _without_markup(text: str) -> str:
    """As rich shows it where there are no colours: tags are gone, escaped brackets stay."""
    return re.sub(r"(\\?)\[(/?[a-z ]*)\]", lambda tag: f"[{tag[2]}]" if tag[1] else "", text)


#: Of commands and batches, of bulk operations, and of findings.
_COLOURS = {
    "COMPLETED": "green",
    "COMPLETED_WITH_FAILURES": "yellow",
    "IN_TROUBLESHOOTING_QUEUE": "red",
    "FAILED": "red",
    "CANCELED": "yellow",
    "IN_PROGRESS": "cyan",
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "error": "red",
    "warning": "yellow",
    "notice": "cyan",
}


def styled_status(status: str) -> str:
    """A status, or a severity, in the colour that it has everywhere."""
    return f"[{_COLOURS[status]}]{status}[/]" if status in _COLOURS else status


@dataclasses.dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table."""

    title: str
    #: What it shows of an item. A str is markup; any other value is shown as people read it.
    value: Callable[[Item], object]
    is_number: bool = False
    #: On a narrow terminal this column may be folded; the others keep their width.
    may_fold: bool = False


class Table(Generic[Item]):
    """Items as rows: a rich table on a terminal, aligned columns elsewhere.

    `empty`: what to say instead if there are no items.
    """

    def __init__(self, *columns: Column[Item], empty: str | None = None) -> None:
        self._columns = columns
        self._empty = empty

    def cells(self, item: Item) -> list[str]:
        """The cells of one row, as markup."""
        return [_cell(column.value(item)) for column in self._columns]

    def print(self, items: Iterable[Item]) -> None:
        """Print the items."""
        rows = [self.cells(item) for item in items]
        if not rows and self._empty is not None:
            say(self._empty)
        elif is_fancy(console()):
            self._print_rich(rows)
        else:
            self._print_aligned(rows)

    def _print_rich(self, rows: list[list[str]]) -> None:
        from rich.table import Table as RichTable

        table = RichTable(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in self._columns:
            table.add_column(
                column.title,
                justify="right" if column.is_number else "left",
                no_wrap=not column.may_fold,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*row)
        console().print(table, soft_wrap=False)

    def _print_aligned(self, rows: list[list[str]]) -> None:
        plain = console().render_str
        cells = [[column.title for column in self._columns]]
        cells += [[plain(cell).plain for cell in row] for row in rows]
        widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
        for row in cells:
            line = "  ".join(
                cell.rjust(width) if column.is_number else cell.ljust(width)
                for cell, width, column in zip(row, widths, self._columns, strict=True)
            )
            print(line.rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, aligned; values as those of a table."""
    shown = list(fields)
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        say(f"  [dim]{name.ljust(width)}[/]  {_cell(value)}")


def _cell(value: object) -> str:
    match value:
        case str():
            return value
        case datetime():
            return moment(value)
        case int():
            return f"{value:,}"
        case _:
            return text_of(value)


# -- values


def text_of(value: object) -> str:
    """A value as a cell; nothing shows as a dash."""
    return "-" if value is None or value == "" else escaped(str(value))


def progress_text(told: Progress | None) -> str:
    """How far a command has come, for people."""
    if told is None:
        return "-"
    parts = [f"{told.fraction:.0%}", *([escaped(told.message)] if told.message else [])]
    return ", ".join([*parts, f"at {moment(told.at)}"])


def escaped(text: str) -> str:
    """A text whose brackets are shown, not taken for markup."""
    if not has_rich():
        return re.sub(r"\[(?=/?[a-z ]*\])", r"\[", text)
    from rich.markup import escape

    return escape(text)


def error_text(code: str | None, message: str | None) -> str:
    """An error as a cell: its code, then its message."""
    return f"{text_of(code)}: {text_of(message)}"


def first_few(texts: Sequence[str], most: int = 5) -> str:
    """Some of a list, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def in_local(when: datetime) -> datetime:
    """The same moment in the zone of this machine; in its own where that would leave the calendar.

    The last night of the year 9999 in UTC is in the year 10000 in the east.
    """
    try:
        return when.astimezone()
    except OverflowError:
        return when


def moment(when: datetime | None) -> str:
    """A time for people, in their own zone; without the date if it is today."""
    if when is None:
        return "-"
    local = in_local(when)
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"


def jsonable(value: Any) -> Any:
    """A value as `--json` prints it: keys as in the data classes, times in ISO 8601 (UTC)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            spec.name: jsonable(getattr(value, spec.name)) for spec in dataclasses.fields(value)
        }
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, UUID | Path):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(jsonable(document), indent=2, ensure_ascii=False))

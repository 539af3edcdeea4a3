"""How values are written: times, durations, numbers, states, JSON. Filters of the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import unified_diff
from typing import Any, NamedTuple

#: What stands for a value that is not there.
NOTHING = "\N{EN DASH}"


class StateLook(NamedTuple):
    """How a state is shown: its word, its picture, its colour."""

    word: str
    icon: str
    colour: str


#: By the code of a state, of commands, batches, bulk operations, loads and tickets. The colour is
#: that of one of seven states, so that one colour means one thing everywhere.
STATES: dict[str, StateLook] = {
    "PENDING": StateLook("Pending", "s-pending", "pending"),
    "IN_PROGRESS": StateLook("In progress", "s-progress", "progress"),
    "COMPLETED": StateLook("Completed", "s-done", "done"),
    "IN_TROUBLESHOOTING_QUEUE": StateLook("In troubleshooting", "s-parked", "parked"),
    "CANCELED": StateLook("Canceled", "s-canceled", "canceled"),
    "FAILED": StateLook("Failed", "s-failed", "failed"),
    "PENDING_APPROVAL": StateLook("Waits for approval", "s-waits", "waits"),
    "COMPLETED_WITH_FAILURES": StateLook("Completed with failures", "s-failed", "failed"),
    "PARTIAL_SUCCESS": StateLook("Partial success", "s-failed", "failed"),
    "SUCCESS": StateLook("Completed", "s-done", "done"),
    "APPROVED": StateLook("Approved", "s-done", "done"),
    "REJECTED": StateLook("Rejected", "s-canceled", "canceled"),
    "EXPIRED": StateLook("Expired", "s-canceled", "canceled"),
    "RUNNING": StateLook("Running", "s-progress", "progress"),
    "STOPPED": StateLook("Stopped", "s-canceled", "canceled"),
    "DONE": StateLook("Done", "s-done", "done"),
    "OPEN": StateLook("Open", "s-progress", "progress"),
    "INTERRUPTED": StateLook("Interrupted", "s-parked", "parked"),
    "PAUSED": StateLook("Paused", "pause", "waits"),
}


def look_of(code: object) -> StateLook:
    """How a state is shown; one that is not known is shown as it is written."""
    text = str(code)
    if text in STATES:
        return STATES[text]
    return StateLook(text.replace("_", " ").capitalize(), "s-pending", "pending")


def now() -> datetime:
    """The server's clock, which is the clock of every page."""
    return datetime.now(UTC)


def iso(value: datetime) -> str:
    """A time for machines, in UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc(value: datetime) -> str:
    """A time for people, in UTC, with its zone."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(value: timedelta | float | None) -> str:
    """A duration with its unit: the two largest, from milliseconds to days."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def number(value: float | None) -> str:
    """A number in groups of three digits; never rounded if it is whole."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate per second, small ones with their decimals."""
    if value is None:
        return NOTHING
    return f"{value:,.2f}/s" if 0 < value < 1 else f"{number(float(value))}/s"


def short_id(value: object) -> str:
    """A part of an id, enough for the eye. Ids that begin with the time are told apart by their
    end: those that were made together begin alike.
    """
    text = str(value)
    is_timed = len(text) == 36 and text[14] == "7"
    return f"…{text[-8:]}" if is_timed else text[:8]


def pretty_json(value: Any) -> str:
    """A document as indented JSON. It is masked already: templates get no secrets."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def raw_json(value: Any) -> str:
    """The same in one line, as it is stored."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def plural(count: int, one: str, many: str = "") -> str:
    """`1 command`, `1,204 commands`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# -- drawings: numbers in, attributes of SVG out


class Bar(NamedTuple):
    """A part of a bar, in hundredths of its width."""

    colour: str
    word: str
    number: int
    x: float
    width: float


def bars(parts: Iterable[tuple[str, str, int]]) -> list[Bar]:
    """The segments of a bar (colour, word, count); one that is there is at least a hair wide."""
    given = list(parts)
    total = sum(count for *_, count in given) or 1
    found, x = [], 0.0
    for colour, word, count in given:
        width = 0.0 if count == 0 else max(0.4, 100 * count / total)
        width = min(width, 100 - x)
        found.append(Bar(colour, word, count, round(x, 2), round(width, 2)))
        x += width
    return found


def points(values: Sequence[float | None], width: int = 120, height: int = 24) -> str:
    """The points of a line; zero is always in. Of what is flat only both ends are there, and no
    point is finer than a pixel: pages have fifty of these.
    """
    known = [value or 0 for value in values]
    top = max([*known, 0]) or 1
    step = (width - 6) / max(1, len(known) - 1)
    found = [
        (round(3 + i * step), round(height - 3 - (height - 6) * value / top))
        for i, value in enumerate(known)
    ]
    bends = [
        at
        for i, at in enumerate(found)
        if not (0 < i < len(found) - 1 and found[i - 1][1] == at[1] == found[i + 1][1])
    ]
    return " ".join(f"{x},{y}" for x, y in bends)


#: Width of a column and of the gap behind it, and height of each half of a strip.
COLUMN, GAP, HALF = 4, 2, 32


def columns(values: Sequence[float | None], top: float) -> str:
    """Columns on a line, as a path: `top` is as high as a half of the picture."""
    return "".join(
        _column(place, HALF - _height(value, top), _height(value, top))
        for place, value in enumerate(values)
        if value
    )


def stacked(
    values: Sequence[float | None], parts: Sequence[float | None], top: float
) -> tuple[str, str]:
    """Columns below the line, as two paths: the rest beside it, and at the outer end the part,
    which is always seen, with a gap between.
    """
    inner, outer = [], []
    for place, (value, part) in enumerate(zip(values, parts, strict=True)):
        if not value:
            continue
        whole = _height(value, top)
        end = min(whole, _height(part, top)) if part else 0
        rest = whole - end - (1 if end and whole - end > 1 else 0)
        if rest:
            inner.append(_column(place, HALF + 1, rest))
        if end:
            outer.append(_column(place, HALF + 1 + whole - end, end))
    return "".join(inner), "".join(outer)


def _height(value: float, top: float) -> int:
    return max(1, round((HALF - 1) * value / (top or 1)))


def _column(place: int, y: int, height: int) -> str:
    return f"M{place * (COLUMN + GAP)} {y}h{COLUMN}v{height}h-{COLUMN}z"


class DiffLine(NamedTuple):
    """A line of a difference: `same`, `gone`, `new` or `place`."""

    kind: str
    text: str


def diff(before: Any, after: Any) -> list[DiffLine]:
    """The difference between two documents, line by line."""
    old, new = (
        (value if isinstance(value, str) else pretty_json(value)).splitlines()
        for value in (before, after)
    )
    kinds = {"+": "new", "-": "gone", " ": "same", "@": "place"}
    lines = list(unified_diff(old, new, lineterm="", n=3))[2:]
    return [DiffLine(kinds.get(line[:1], "same"), line[1:]) for line in lines]


class Part(NamedTuple):
    """A part of a sentence, written as code or as words."""

    text: str
    is_code: bool


def prose(text: str) -> list[Part]:
    """A text of the API's document, in which backticks mark code."""
    parts = text.split("`")
    return [Part(each, bool(i % 2)) for i, each in enumerate(parts) if each]


#: What stands in the message of a cause for what differs from command to command.
_PLACEHOLDER = re.compile(r"<\w+>")


def cause(group: Any) -> str:
    """What a failure group is called: its message, after the code where the message alone says
    nothing, as that of a KeyError does.
    """
    code, message = group.error_code or "", group.message or ""
    if re.search(r"\w", _PLACEHOLDER.sub("", message)):
        return str(message)
    return ": ".join(each for each in (code, message) if each) or "(no message)"


FILTERS = {
    "cause": cause,
    "iso": iso,
    "utc": utc,
    "duration": duration,
    "number": number,
    "rate": rate,
    "short_id": short_id,
    "pretty_json": pretty_json,
    "plural": plural,
    "look": look_of,
    "diff_to": diff,
    "prose": prose,
}

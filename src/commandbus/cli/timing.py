"""Options about time that commands share: when a command starts, how long a pause is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import typer

from commandbus.errors import InvalidInputError
from commandbus.flow import SendOptions

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

In = Annotated[
    str | None,
    typer.Option("--in", metavar="DURATION", help="Not before this long from now: 90s, 10m, 2h."),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="Not before then: 2026-05-01T10:00, local, or with its zone."
    ),
]


def parse_duration(text: str | None, option: str) -> timedelta | None:
    """A duration that somebody typed: 90s, 10m, 2h, 1d; None if nothing was."""
    if text is None:
        return None
    found = _DURATION.match(text.strip().lower())
    if found is None:
        raise InvalidInputError(f"{option} is {text!r}; write a duration: 90s, 10m, 2h, 1d, 1w")
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        raise InvalidInputError(f"{option} is {text!r}, which is too long") from None


def parse_time(text: str | None, option: str) -> datetime | None:
    """A time that somebody typed: ISO 8601, local unless it says its zone; None if nothing was."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{option} is {text!r}; write 2026-05-01T10:00, or with its zone 2026-05-01T10:00Z"
        ) from None


@dataclass(frozen=True, slots=True)
class Start:
    """When a command may start, in which order, and what limits count it by."""

    after: In = None
    at: At = None
    expires_in: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Cancel it if it has not begun by then: 90s, 1h."),
    ] = None
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="The same, written like --at.")
    ] = None
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="From -2 to 2; 2 goes first. Default: 0.")
    ] = None
    ordering_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Commands of one key run one after the other."),
    ] = None
    limit_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="What limits by key count it by.")
    ] = None

    def options(self) -> SendOptions:
        """As the verbs of the bus take them."""
        found: SendOptions = {
            "delay": parse_duration(self.after, "--in"),
            "deliver_at": parse_time(self.at, "--at"),
            "expires_in": parse_duration(self.expires_in, "--expires-in"),
            "expires_at": parse_time(self.expires_at, "--expires-at"),
            "priority": self.priority,
            "ordering_key": self.ordering_key,
            "limit_key": self.limit_key,
        }
        if found["delay"] is not None and found["deliver_at"] is not None:
            raise InvalidInputError("--in and --at are two times; use one of them")
        if found["expires_in"] is not None and found["expires_at"] is not None:
            raise InvalidInputError("--expires-in and --expires-at are two times; use one of them")
        given: SendOptions = {}
        for name, value in found.items():
            if value is not None:
                given[name] = value  # type: ignore[literal-required]
        return given

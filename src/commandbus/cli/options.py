"""Options that several commands share, each declared once; and how their texts are read."""

from __future__ import annotations

import getpass
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from commandbus.errors import InvalidInputError
from commandbus.names import check_uuid

# -- which commands

Domain = Annotated[str, typer.Argument(metavar="DOMAIN", help="For example payments.")]
DomainFilter = Annotated[str | None, typer.Option("--domain", "-d", help="Only this domain.")]
TypeFilter = Annotated[str | None, typer.Option("--type", "-t", help="Only this command type.")]
GroupFilter = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="FINGERPRINT", help="A failure group; how it begins is enough."
    ),
]
OneGroup = Annotated[
    str,
    typer.Argument(metavar="FINGERPRINT", help="The failure group; how it begins is enough."),
]
Meta = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=TEXT", help="Travels with it; may be repeated."),
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The id of the batch.")]
InBatch = Annotated[
    str | None, typer.Option("--batch", metavar="UUID", help="Only this batch and its commands.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From then on: 2026-05-01T10:00, or 90s, 2h, 3d."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Before then, written like --since.")
]


@dataclass(frozen=True, slots=True)
class OneCommand:
    """One command, by its id."""

    command_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the command.")]
    domain: Annotated[
        str | None,
        typer.Option("--domain", "-d", help="Needed only if several domains know the id."),
    ] = None


@dataclass(frozen=True, slots=True)
class OneBatch:
    """One batch, by its id."""

    batch_id: BatchId
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Look in this domain only; never needed.")
    ] = None


Limit = Annotated[int, typer.Option("--limit", "-n", help="At most this many.")]


@dataclass(frozen=True, slots=True)
class Listing:
    """Which page of a listing."""

    limit: Limit = 20
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="TEXT", help="Continue where the same listing ended."),
    ] = None

    @property
    def of_page(self) -> dict[str, Any]:
        """As the facets of the bus take it."""
        return {"limit": self.limit, "cursor": self.cursor}


@dataclass(frozen=True, slots=True)
class LongListing(Listing):
    """The same for listings whose items take one short line each."""

    limit: Limit = 50


# -- who decides, and what


def actor_or_login(operator: str | None) -> str | None:
    """Who acts: the name that was given, else the login name, else None."""
    if operator is not None:
        return operator
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return None


def _actor(option: str) -> Any:
    """The option that says who acts."""
    text = "Who does it. Default: your login name."
    return typer.Option(option, metavar="NAME", help=text, callback=actor_or_login)


Operator = Annotated[str | None, _actor("--operator")]
By = Annotated[str | None, _actor("--by")]
Reason = Annotated[
    str, typer.Option("--reason", "-r", help="Why; it is stored, and the reply contains it.")
]
ReasonWhy = Annotated[
    str | None, typer.Option("--reason", "-r", help="Why; it is stored, and the audit has it.")
]
WithRunning = Annotated[
    bool, typer.Option("--running", help="Ask workers to end what they have; it may still succeed.")
]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="At most: 100/s, 600/m, 50/h.")
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Do it here and show progress, or leave it to the workers."
    ),
]


@dataclass(frozen=True, slots=True)
class Again:
    """How parked commands are sent again."""

    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Do not count attempts from zero again.")
    ] = False
    reason: ReasonWhy = None
    operator: Operator = None


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload, given in one of two ways."""

    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The whole payload, an object; '-' reads it from stdin."),
    ] = None
    data_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the payload.")
    ] = None

    def read(self) -> Any:
        """The payload; None if there is none."""
        if self.data is not None and self.data_file is not None:
            raise InvalidInputError("--data and --data-file are two payloads; use one of them")
        if self.data == "-" or self.data_file == Path("-"):
            return parse_json(sys.stdin.read(), "stdin")
        if self.data_file is not None:
            try:
                text = self.data_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInputError(f"cannot read {self.data_file}: {error}") from None
            return parse_json(text, str(self.data_file))
        if self.data is not None and self.data.startswith("@"):
            raise InvalidInputError("--data is the JSON itself; use --data-file for that of a file")
        return parse_json(self.data, "--data")


def parse_json(text: str | None, what: str) -> Any:
    """Read JSON that somebody typed; None if nothing was."""
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{what} is not JSON: {error}") from None


def parse_uuid(text: str | None, what: str) -> UUID | None:
    """Read an id that somebody typed; None if nothing was."""
    return None if text is None else check_uuid(text, what)


def parse_meta(pairs: list[str] | None) -> dict[str, str] | None:
    """Read --meta KEY=TEXT, which may be given several times; None if it was not."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, is_pair, text = pair.partition("=")
        if not is_pair:
            raise InvalidInputError(f"--meta is {pair!r}; write KEY=TEXT, like tenant=north")
        if key in found:
            raise InvalidInputError(f"--meta names {key!r} twice; give it once")
        found[key] = text
    return found or None


_AGO = re.compile(r"(\d{1,9})\s*([smhdw])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, what: str) -> datetime:
    """A moment that somebody typed: ISO 8601, local unless it says its zone, or how long ago."""
    if ago := _AGO.match(text.strip()):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise InvalidInputError(f"{what} is {text!r}, which is before all times") from None
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{what} is {text!r}; write 2026-05-01T10:00, or how long ago: 90s, 15m, 2h, 3d, 1w"
        ) from None


def parse_range(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Read --since and --until."""
    return (
        None if since is None else parse_moment(since, "--since"),
        None if until is None else parse_moment(until, "--until"),
    )


def parse_seconds(seconds: float | None, option: str, most: int) -> float | None:
    """A time to wait, checked."""
    if seconds is not None and not 0 < seconds <= most:
        raise InvalidInputError(f"{option} is {seconds:g}; use seconds from 0 to {most:,}")
    return seconds


_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?\Z")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3_600}


def parse_rate(text: str | None) -> float | None:
    """Commands per second of `100/s`, `600/m` or `50/h`."""
    if text is None:
        return None
    found = _RATE.match(text)
    if found is None:
        raise InvalidInputError(f"--rate is {text!r}; write 100/s, 600/m or 50/h")
    return float(found[1]) / _SECONDS[found[2]]

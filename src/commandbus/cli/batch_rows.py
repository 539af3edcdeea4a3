"""What `batch create` and `batch load` share: which rows, and what is said of the batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from commandbus.cli.options import By, parse_json
from commandbus.errors import InvalidInputError

STDIN = "-"

RowType = Annotated[
    str | None,
    typer.Option(
        "--type",
        "-t",
        metavar="TYPE",
        help="The type of every command; then each row is the data of one.",
    ),
]


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a batch."""

    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What people call the batch.")
    ] = None
    custom_data: Annotated[
        str | None, typer.Option(metavar="JSON", help="An object that is stored with the batch.")
    ] = None
    by: By = None

    def options(self) -> dict[str, Any]:
        """As the bus takes it."""
        custom = parse_json(self.custom_data, "--custom-data")
        if self.custom_data is not None and not isinstance(custom, dict):
            raise InvalidInputError("--custom-data must be a JSON object")
        return {"name": self.name, "custom_data": custom, "created_by": self.by}


class StandardInput:
    """JSON lines from stdin, as a source."""

    def __iter__(self) -> Iterator[str]:
        return (line for line in sys.stdin if not line.isspace())


def source_of(name: str) -> object:
    """What the library calls a source."""
    return StandardInput() if name == STDIN else name


def refuse_untyped_csv(source: str, *options: str | None) -> None:
    """A row of a CSV file does not say what command it is."""
    if source.lower().endswith(".csv") and not any(options):
        raise InvalidInputError(
            "a CSV file needs --type, or `batch load` with --type-column for the column that has it"
        )

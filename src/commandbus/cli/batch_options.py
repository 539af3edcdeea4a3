"""What the commands of `batch` share: their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from commandbus.cli.options import parse_json
from commandbus.errors import InvalidInputError

STDIN = "-"

BatchDomain = Annotated[str, typer.Argument(metavar="DOMAIN", help="For example payments.")]
BatchName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What people call the batch.")
]
RowType = Annotated[
    str | None,
    typer.Option(
        "--type",
        "-t",
        metavar="TYPE",
        help="The type of every command; then each row is the data of one.",
    ),
]
CustomData = Annotated[
    str | None, typer.Option(metavar="JSON", help="An object that is kept with the batch.")
]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it. Default: your login name.")
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The id of the batch.")]
DomainOfBatch = Annotated[
    str | None, typer.Option("--domain", "-d", help="Look in this domain only; never needed.")
]


def parse_custom_data(text: str | None) -> dict[str, Any] | None:
    """Read --custom-data."""
    if text is None:
        return None
    custom = parse_json(text, "--custom-data")
    if not isinstance(custom, dict):
        raise InvalidInputError("--custom-data must be a JSON object")
    return custom


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

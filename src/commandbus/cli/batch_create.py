"""`batch create`: a batch from a file, in one transaction; and what `batch load` shares with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import typer

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import By, Domain, parse_json
from commandbus.cli.output import first_few
from commandbus.cli.timing import Start
from commandbus.errors import (
    DuplicateCommandError,
    InvalidInputError,
    InvalidOperationError,
    RepeatedIdError,
)
from commandbus.flow import SendOptions, with_defaults
from commandbus.loads.model import RowFormat
from commandbus.models import BatchCommand
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings

# -- shared with `batch load`: which rows, and what the batch is called

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
    """The name of a new batch, its data, and who creates it."""

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


Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="Between the columns of a CSV file, or `tab`. Default: its header tells.",
    ),
]


def delimiter_of(option: str | None) -> str | None:
    """`--delimiter` as `bus.loads` takes it."""
    return "\t" if option in {"tab", "\\t"} else option


def source_of(name: str) -> object:
    """The source as `bus.loads` takes it; `-` is stdin."""
    if name != "-":
        return name
    try:
        # A file object of its own: a thread that reads sys.stdin would hold its lock at the exit.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError):
        return sys.stdin.buffer


def refuse_untyped_csv(source: str, *options: str | None) -> None:
    """A row of a CSV file does not say which type of command it is."""
    name = source.lower().removesuffix(".gz")
    if name.endswith((".csv", ".tsv")) and not any(options):
        raise InvalidInputError(
            "a CSV file needs --type, or `batch load` with --type-column for the column that has it"
        )


# -- create


async def create(
    frame: Frame,
    domain: Domain,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="JSON (.jsonl, .json) or .csv, also .gz; '-' is stdin, with JSON."
        ),
    ],
    *,
    command_type: RowType = None,
    delimiter: Delimiter = None,
    start: Start,
    about: About,
) -> View:
    """Create a batch from a file, all or nothing, and print its id.

    A row has command_type, data and perhaps command_id, deliver_at, priority and the like; with
    --type a row is the data itself. A bad row or a repeated id: nothing is created. `batch load`
    takes what is too large for this.
    """
    options = about.options()
    refuse_untyped_csv(file, command_type)
    lines, commands = await read_commands(
        domain, file, RowFormat(command_type, delimiter=delimiter_of(delimiter)), start.options()
    )
    async with frame.open(creates=True) as session:
        try:
            batch_id = await session.bus.batches.create(domain, commands, **options)
        except DuplicateCommandError as error:
            raise repeated(error, commands, lines) from None
    document = {"batch_id": batch_id, "commands": len(commands)}
    return View(document, lambda: print(batch_id))


async def read_commands(
    domain: str, file: str, row_format: RowFormat, defaults: SendOptions
) -> tuple[list[str], list[BatchCommand]]:
    """The commands of a file and where each is; raises at the first that is not acceptable."""
    from commandbus.commands.preparing import Preparer
    from commandbus.loads.sources import open_source, to_command

    settings = Settings.from_env()
    preparer = Preparer(settings, RetryPolicy())
    seed, lines, commands = uuid4(), list[str](), list[BatchCommand]()
    async with open_source(source_of(file), row_format) as reader:
        while (row := await reader.read()) is not None:
            if len(commands) == settings.max_batch_size:
                count = "" if reader.total is None else f" (it has {reader.total:,})"
                raise InvalidInputError(
                    f"{file} has more than the {settings.max_batch_size:,} rows that one "
                    f"transaction should hold{count}; `commandbus batch load` takes the "
                    "same options and commits in checkpoints"
                )
            place, content = row
            try:
                command = to_command(content, row_format, seed, len(commands) + 1)
                if defaults:
                    command = BatchCommand(
                        command.command_type, command.command_id, command.data, command.reply_to,
                        command.correlation_id, **with_defaults(command.options, defaults),
                    )  # fmt: skip
                preparer.batch_command(domain, command)
            except InvalidInputError as error:
                raise reader.error_at(place, f"{error}; nothing was created") from None
            lines.append(f"{reader.unit} {place:,}")
            commands.append(command)
    if not commands:
        raise InvalidInputError(f"{file} has no rows, and a batch needs at least one command")
    return lines, commands


def repeated(
    error: DuplicateCommandError, commands: list[BatchCommand], lines: list[str]
) -> InvalidOperationError:
    """Where in the file a repeated id is."""
    if isinstance(error, RepeatedIdError):
        where = [lines[position - 1] for position in error.positions[error.command_id]]
        return InvalidOperationError(
            f"the id {error.command_id} is more than once in the file: {first_few(where)}; nothing "
            "was created"
        )
    repeated = {str(command_id) for command_id in error.command_ids}
    places = [
        f"{line} ({command.command_id})"
        for line, command in zip(lines, commands, strict=True)
        if str(command.command_id) in repeated
    ]
    return InvalidOperationError(
        f"command ids that were sent before: {first_few(places)}; nothing was created"
    )

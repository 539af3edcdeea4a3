"""`--export`: everything that a listing would show page by page, in a file or on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import typer

from commandbus.cli.frame import View
from commandbus.cli.options import Listing
from commandbus.cli.output import jsonable
from commandbus.commands.export import ExportFormat, exported
from commandbus.errors import CommandBusError, InvalidInputError
from commandbus.names import check_choice

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Export:
    """Whether, and where, everything is written."""

    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write everything that matches to a file; - is stdout. No --limit, no --cursor.",
        ),
    ] = None
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="jsonl|csv",
            help="Of --export. Default: csv for a file with that ending, else jsonl.",
        ),
    ] = None

    def check(self, listing: Listing) -> bool:
        """Whether it was asked for; raises if its options do not go together."""
        if self.export is None:
            if self.form is not None:
                raise InvalidInputError("--format is of --export; say where with --export FILE")
            return False
        if listing != type(listing)():
            raise InvalidInputError("--export writes everything; leave out --limit and --cursor")
        return True

    @property
    def format(self) -> ExportFormat:
        """What was asked for, or what the name of the file says."""
        if self.form is not None:
            return check_choice(ExportFormat, self.form, "--format")
        is_csv = self.export is not None and self.export.suffix.lower() == ".csv"
        return ExportFormat.CSV if is_csv else ExportFormat.JSONL

    async def write(
        self,
        kind: type[Item],
        items: AsyncIterator[Item],
        to_json: Callable[[Item], dict[str, Any]] = jsonable,
        *,
        hide: Sequence[str] = (),
    ) -> View:
        """Write the items of this data class, but for the fields to hide."""
        columns = [spec.name for spec in fields(kind) if spec.name not in hide]  # type: ignore[arg-type]
        count = 0

        async def rows() -> AsyncIterator[dict[str, Any]]:
            nonlocal count
            async for item in items:
                count += 1
                yield to_json(item)

        form, target = self.format, self.export
        with _opened(target) as file:
            async for piece in exported(rows(), columns, form):
                file.write(piece)
        if target is None or target == Path("-"):
            raise typer.Exit
        return View.line(
            f"{count:,} rows are in {target}", rows=count, file=str(target), format=form
        )


@contextmanager
def _opened(target: Path | None) -> Iterator[BinaryIO]:
    """Where it is written. Until a file is whole, its name ends in .part."""
    if target is None or target == Path("-"):
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if target.exists() and not target.is_file():
            # A pipe or a device: there is nothing to rename. A folder raises.
            with target.open("wb") as file:
                yield file
            return
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                yield file
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno is None:
            raise  # a reader that went away, or no error of a file at all
        raise CommandBusError(f"cannot write {target}: {error.strerror or error}") from None

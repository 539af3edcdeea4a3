"""Sources: where the rows of a load come from, read one by one and never all in memory.

A source is a file (.jsonl, .ndjson, .csv, .parquet, .arrow), a table or stream of pyarrow, an
iterable or an async iterable. What is read here is raw, with its place in the source; `to_command`
makes a command of it, so rows that were loaded before are passed over without being parsed.
"""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID, uuid5

from commandbus.errors import InvalidInputError, InvalidPayloadError, SourceError
from commandbus.loads import arrow
from commandbus.loads.model import RowFormat
from commandbus.models import BatchCommand

#: A longer line is not a row: a file without line ends must not end up in memory.
MAX_LINE_BYTES = 8 * 1024 * 1024
#: Rows between two moments in which other tasks of the event loop may run.
ROWS_PER_TURN = 200

_TABLES = {".parquet", ".arrow"}
_ROW_KEYS = {"command_type", "type", "command_id", "data", "reply_to", "correlation_id"}

#: The place of a row (its line, or its position from 1) and what stands there.
RawRow = tuple[int, Any]


class Reader:
    """Rows of one source, from its beginning, once."""

    def __init__(self, rows: AsyncIterator[RawRow], unit: str, total: int | None) -> None:
        self._rows = rows
        self._peeked: RawRow | None = None
        self._place = 0
        self.unit = unit
        self.total = total

    async def read(self) -> RawRow | None:
        """The next row, or None at the end. What the source raises comes as SourceError."""
        if self._peeked is not None:
            row, self._peeked = self._peeked, None
            return row
        try:
            row = await anext(self._rows)
        except StopAsyncIteration:
            return None
        except SourceError:
            raise
        except Exception as error:
            reason = f"the source failed after {self.unit} {self._place:,}"
            raise SourceError(f"{reason}: {type(error).__name__}: {error}", self._place) from error
        self._place = row[0]
        return row

    async def skip(self, count: int) -> int:
        """Pass over rows without parsing them; returns how many there were."""
        for passed in range(count):
            if await self.read() is None:
                return passed
        return count

    async def is_at_end(self) -> bool:
        """Whether nothing is left."""
        self._peeked = await self.read()
        return self._peeked is None

    def error_at(self, place: int, reason: object) -> SourceError:
        """The error of one row, with its place."""
        return SourceError(f"{self.unit} {place:,}: {reason}", place)


def name_of(source: object) -> str:
    """What to call a source when people look at the load."""
    if isinstance(source, str | PathLike):
        return str(fspath(source))[:1_000]
    return type(source).__name__


@asynccontextmanager
async def open_source(source: object, row_format: RowFormat) -> AsyncIterator[Reader]:
    """Open a source; raises SourceError if it cannot be read at all."""
    async with AsyncExitStack() as stack:
        if isinstance(source, str | PathLike):
            path = Path(str(fspath(source)))
            suffix = path.suffix.lower()
            if suffix == ".csv" and row_format == RowFormat():
                raise InvalidInputError(
                    "a CSV file needs command_type, or type_column for the column that has it"
                )
            if suffix in _LINES:
                read = _LINES[suffix]
                file, total = stack.enter_context(_open(path)), await _count(path, read)
                rows, unit = read(file), "line"
            elif suffix in _TABLES:
                _open(path).close()
                (rows, total), unit = arrow.open_file(path, suffix), "row"
            else:
                raise SourceError(
                    f"cannot tell what {path.name!r} holds; use .jsonl, .ndjson, .csv, .parquet or "
                    ".arrow, or read it yourself and give an iterable"
                )
        elif arrow.is_table(source):
            (rows, total), unit = arrow.open_table(source), "row"
        elif isinstance(source, AsyncIterable):
            numbered = await stack.enter_async_context(aclosing(_numbered(source)))
            yield Reader(numbered, "item", None)
            return
        elif isinstance(source, Iterable) and not isinstance(source, bytes | Mapping):
            rows, unit = enumerate(source, 1), "item"
            total = len(source) if isinstance(source, Sized) else None
        else:
            raise SourceError(
                f"a {type(source).__name__} is not a source; use a path, an iterable or an async "
                "iterable of BatchCommand or dicts"
            )
        yield Reader(await stack.enter_async_context(aclosing(_in_turns(rows))), unit, total)


def derived_id(batch_id: UUID, number: int) -> UUID:
    """The id of the n-th row if it brings none: the same whenever the source is read."""
    return uuid5(batch_id, str(number))


def to_command(raw: Any, row_format: RowFormat, batch_id: UUID, number: int) -> BatchCommand:
    """Make a command of the n-th row; InvalidInputError says what is wrong with it."""
    if isinstance(raw, BatchCommand):
        return raw
    row = _parse_json(raw) if isinstance(raw, str) else raw
    if not isinstance(row, Mapping):
        raise InvalidPayloadError(f"a row must be an object, not {type(row).__name__}")
    if row_format.command_type is None and row_format.type_column is None:
        return _from_object(row, batch_id, number)
    data = dict(row)
    command_type = row_format.command_type
    if row_format.type_column is not None:
        command_type = _take(data, row_format.type_column)
    if row_format.id_column is not None:
        command_id = _take(data, row_format.id_column)
    else:
        command_id = derived_id(batch_id, number)
    return BatchCommand(str(command_type), command_id, data)


def _from_object(row: Mapping[str, Any], batch_id: UUID, number: int) -> BatchCommand:
    unknown = sorted(str(key) for key in row.keys() - _ROW_KEYS)
    command_type = row.get("command_type", row.get("type"))
    if unknown or command_type is None:
        what = f"unknown keys {', '.join(unknown)}" if unknown else "no command_type"
        raise InvalidInputError(
            f"{what}; a row has command_type, data and perhaps command_id, or name the type of all "
            "rows (command_type, --type) and let each row be the data"
        )
    return BatchCommand(
        command_type,
        derived_id(batch_id, number) if row.get("command_id") is None else row["command_id"],
        row.get("data", {}),
        row.get("reply_to"),
        row.get("correlation_id"),
    )


def _take(data: dict[str, Any], column: str) -> Any:
    value = data.pop(column, None)
    if value is None or value == "":
        raise InvalidInputError(f"nothing in column {column!r}")
    return value


def _parse_json(text: str) -> Any:
    # Not orjson: it turns integers of more than 64 bits into floats without a word.
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidPayloadError("nested too deeply to be decoded") from None
    except json.JSONDecodeError as error:
        raise InvalidPayloadError(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise InvalidPayloadError(f"not JSON: {error}") from None


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SourceError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


async def _count(path: Path, rows: Callable[[BinaryIO], Iterator[RawRow]]) -> int | None:
    """How many rows there are, so that progress can say how much is left; None for a pipe."""

    def count() -> int | None:
        if not path.is_file():
            return None
        try:
            with _open(path) as file:
                return sum(1 for _ in rows(file))
        except SourceError:
            return None  # the load gets as far as the error, and says where it is

    return await asyncio.to_thread(count)


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise SourceError(f"line {number:,}: longer than {MAX_LINE_BYTES:,} bytes", number)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"line {number:,}: not UTF-8 ({error.reason})", number) from error


def _filled_lines(file: BinaryIO) -> Iterator[RawRow]:
    return ((number, line) for number, line in _lines(file) if not line.isspace())


def _records(file: BinaryIO) -> Iterator[RawRow]:
    """Records of a CSV file with a header, each with the line where it begins."""
    reader = csv.reader((line for _, line in _lines(file)), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) != len(header) or "" in header:
            raise SourceError("line 1: a column has no name, or the name of another", 1)
        begin = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                reason = f"{len(fields)} fields where the header has {len(header)}"
                raise SourceError(f"line {begin:,}: {reason}", begin)
            if fields:
                yield begin, dict(zip(header, fields, strict=True))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"line {reader.line_num:,}: not CSV: {error}", reader.line_num) from error


#: What reads the rows of a file, line by line, by its suffix.
_LINES = {".jsonl": _filled_lines, ".ndjson": _filled_lines, ".csv": _records}


async def _in_turns(rows: Iterable[RawRow]) -> AsyncGenerator[RawRow, None]:
    for count, row in enumerate(rows, 1):
        yield row
        if count % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _numbered(rows: AsyncIterable[Any]) -> AsyncGenerator[RawRow, None]:
    place = 0
    async for row in rows:
        place += 1
        yield place, row

"""Sources: where the rows of a load come from, read in groups and never all in memory.

A source is a file (.jsonl, .ndjson, .json, .csv, .tsv, each perhaps .gz; .parquet, .arrow), a
binary file of JSON that is open, a table or stream of pyarrow, an iterable or an async iterable.
What is read here is raw, with its place in the source; `to_command` makes a command of it, so rows
that were loaded before are passed over without being parsed. Async iterables and lists are read in
the event loop; everything else may have to wait for something, and is read in a thread.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sized,
)
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from commandbus.errors import (
    InvalidInputError,
    InvalidPayloadError,
    InvalidSettingError,
    SourceError,
)
from commandbus.flow import OPTION_MEMBERS, options_of
from commandbus.loads import arrow, files
from commandbus.loads.model import RowFormat
from commandbus.loads.reading import Opened, RawRow, SourceThread
from commandbus.models import BatchCommand

#: Rows of a list between two moments in which other tasks of the event loop may run.
ROWS_PER_TURN = 200

_TABLES = {".parquet", ".arrow"}
_ROW_KEYS = {
    "command_type", "type", "command_id", "data", "reply_to", "correlation_id", *OPTION_MEMBERS,
}  # fmt: skip


class Reader:
    """Rows of one source, from its beginning, once."""

    def __init__(
        self, next_rows: Callable[[], Awaitable[list[RawRow]]], unit: str, total: int | None
    ) -> None:
        self._next_rows = next_rows
        self._rows: deque[RawRow] = deque()
        self._place = 0
        self.unit = unit
        self.total = total

    async def read(self) -> RawRow | None:
        """The next row, or None at the end. What the source raises comes as SourceError."""
        if not self._rows and await self.is_at_end():
            return None
        row = self._rows.popleft()
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
        if self._rows:
            return False
        try:
            self._rows.extend(await self._next_rows())
        except SourceError:
            raise
        except Exception as error:
            reason = f"the source failed after {self.unit} {self._place:,}"
            raise SourceError(f"{reason}: {type(error).__name__}: {error}", self._place) from error
        return not self._rows

    def error_at(self, place: int, reason: object) -> SourceError:
        """The error of one row, with its place."""
        return SourceError(f"{self.unit} {place:,}: {reason}", place)


def name_of(source: object) -> str:
    """What to call a source when people look at the load."""
    if isinstance(source, str | PathLike):
        return str(fspath(source))[:1_000]
    name = getattr(source, "name", None) if isinstance(source, io.IOBase) else None
    if isinstance(name, str):
        return name[:1_000]
    return "stdin" if name == 0 else type(source).__name__


@asynccontextmanager
async def open_source(source: object, row_format: RowFormat) -> AsyncIterator[Reader]:
    """Open a source; raises SourceError if it cannot be read at all."""
    if isinstance(source, AsyncIterable):
        yield Reader(_one_by_one(source), "item", None)
        return
    if type(source) in {list, tuple}:
        rows: list[Any] | tuple[Any, ...] = source  # type: ignore[assignment]
        yield Reader(_in_turns(rows), "item", len(rows))
        return
    thread = SourceThread(_opener(source, row_format))
    try:
        opened = await thread.start()
        yield Reader(thread.next_rows, opened.unit, opened.total)
    except asyncio.CancelledError:
        thread.stop()
        raise
    except BaseException:
        await thread.close()
        raise
    await thread.close()


def _opener(source: object, row_format: RowFormat) -> Callable[[ExitStack], Opened]:
    """What opens a source, in its thread."""
    if isinstance(source, str | PathLike):
        return _file_opener(Path(str(fspath(source))), row_format)
    if isinstance(source, io.BufferedIOBase):
        return partial(files.read_json, source)
    if arrow.is_table(source):
        return lambda _: _of_rows(arrow.open_table(source))
    if isinstance(source, Iterable) and not isinstance(source, bytes | Mapping):
        return partial(_open_iterable, source)
    raise SourceError(
        f"a {type(source).__name__} is not a source; use a path, an iterable or an async "
        "iterable of BatchCommand or dicts"
    )


def _file_opener(path: Path, row_format: RowFormat) -> Callable[[ExitStack], Opened]:
    suffix = files.suffix_of(path)
    if suffix in files.CSV_SUFFIXES:
        if row_format.command_type is None and row_format.type_column is None:
            raise InvalidInputError(
                "a CSV file needs command_type, or type_column for the column that has it"
            )
        delimiter = row_format.delimiter
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '" \r\n\0'):
            raise InvalidSettingError(
                f"delimiter is {delimiter!r}; use one character, for example ';' or a tab"
            )
        return lambda stack: files.open_csv(path, stack, delimiter)
    if row_format.delimiter is not None:
        raise InvalidInputError("only a CSV file (.csv, .tsv) has a delimiter")
    if suffix in files.JSON_SUFFIXES:
        return lambda stack: files.open_json(path, stack)
    if suffix in _TABLES and path.suffix.lower() != ".gz":
        return lambda _: _of_rows(arrow.open_file(path, suffix))
    raise SourceError(
        f"cannot tell what {path.name!r} holds; use .jsonl, .ndjson, .json, .csv, .tsv (each also "
        "with .gz), .parquet or .arrow, or read it yourself and give an iterable"
    )


def _of_rows(rows: arrow.Rows) -> Opened:
    return Opened(rows[0], "row", rows[1])


def _open_iterable(source: Iterable[Any], _: ExitStack) -> Opened:
    total = len(source) if isinstance(source, Sized) else None
    return Opened(enumerate(source, 1), "item", total)


def _in_turns(rows: list[Any] | tuple[Any, ...]) -> Callable[[], Awaitable[list[RawRow]]]:
    passed = 0

    async def next_rows() -> list[RawRow]:
        nonlocal passed
        await asyncio.sleep(0)
        group = list(enumerate(rows[passed : passed + ROWS_PER_TURN], passed + 1))
        passed += len(group)
        return group

    return next_rows


def _one_by_one(source: AsyncIterable[Any]) -> Callable[[], Awaitable[list[RawRow]]]:
    rows, place = aiter(source), 0

    async def next_rows() -> list[RawRow]:
        nonlocal place
        try:
            row = await anext(rows)
        except StopAsyncIteration:
            return []
        place += 1
        return [(place, row)]

    return next_rows


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
        **options_of(row),
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

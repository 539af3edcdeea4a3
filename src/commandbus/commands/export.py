"""Exports: everything that a search finds, as JSON lines or CSV, a piece at a time.

At no time more than one page of rows and one piece of text are in memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import orjson

#: Characters of text after which a piece is given away.
PIECE = 65_536
#: A spreadsheet takes a cell that begins with one of these for a formula, and may run it. The last
#: four are the wide forms of the first four.
FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


class ExportFormat(StrEnum):
    """How an export is written."""

    JSONL = "jsonl"
    CSV = "csv"

    @property
    def media_type(self) -> str:
        """Its name in HTTP."""
        return "text/csv" if self is ExportFormat.CSV else "application/x-ndjson"


async def exported(
    rows: AsyncIterator[Mapping[str, Any]], columns: Sequence[str], form: ExportFormat
) -> AsyncIterator[bytes]:
    """The text of an export. Rows are JSON documents; `columns` are the keys that CSV shows.

    A line of JSON has a row as it is. A cell of CSV is text: empty for null, JSON for an object or
    an array. Text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    if form is ExportFormat.CSV:
        table.writerow(columns)
    async for row in rows:
        if form is ExportFormat.CSV:
            table.writerow([_cell(row.get(name)) for name in columns])
        else:
            text.write(orjson.dumps(row).decode() + "\n")
        if text.tell() >= PIECE:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    if text.tell():
        yield text.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return orjson.dumps(value).decode()

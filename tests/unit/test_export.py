"""How rows become JSON lines and CSV, and pages one stream."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from commandbus.commands.export import PIECE, ExportFormat, exported
from commandbus.paging import Page, every


async def rows_of(*rows: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for row in rows:
        yield row


async def text_of(form: ExportFormat, columns: list[str], *rows: dict[str, Any]) -> str:
    return b"".join([piece async for piece in exported(rows_of(*rows), columns, form)]).decode()


async def test_a_line_is_a_row_as_it_is() -> None:
    rows: list[dict[str, Any]] = [{"a": "=1+1", "b": {"c": [1, None]}}, {"a": "zwei\nZeilen, “”"}]
    text = await text_of(ExportFormat.JSONL, ["a"], *rows)
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert await text_of(ExportFormat.JSONL, ["a"]) == ""


async def test_a_table_has_its_columns_even_without_rows() -> None:
    assert await text_of(ExportFormat.CSV, ["a", "b"]) == "a,b\r\n"


async def test_a_cell_is_text_that_a_reader_gets_back() -> None:
    row = {"a": 'x,"y"\nz', "b": None, "c": -5, "d": True, "e": {"k": 1}, "f": 1.5}
    text = await text_of(ExportFormat.CSV, list("abcdef"), row)
    assert list(csv.reader(io.StringIO(text, newline="")))[1] == [
        'x,"y"\nz', "", "-5", "true", '{"k":1}', "1.5",
    ]  # fmt: skip


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＠"])  # noqa: RUF001
async def test_a_spreadsheet_runs_no_cell(start: str) -> None:
    text = await text_of(ExportFormat.CSV, ["a"], {"a": f"{start}cmd|' /C calc'!A0"})
    [[cell]] = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert cell == f"'{start}cmd|' /C calc'!A0"


async def test_no_more_than_a_page_and_a_piece_are_in_memory() -> None:
    read: list[str | None] = []

    async def page(cursor: str | None) -> Page[Mapping[str, Any]]:
        read.append(cursor)
        number = int(cursor or 0)
        items: list[Mapping[str, Any]] = [
            {"n": number * 10 + each, "text": "x" * 2_000} for each in range(10)
        ]
        return Page(items if number != 3 else [], None if number == 50 else str(number + 1))

    pieces = exported(every(page), ["n", "text"], ExportFormat.JSONL)
    first = await anext(pieces)
    assert PIECE <= len(first) < PIECE + 3_000
    assert len(read) == 5  # of 51, and the fourth page was empty
    numbers = [json.loads(line)["n"] for line in first.splitlines()]
    async for piece in pieces:
        numbers += [json.loads(line)["n"] for line in piece.splitlines()]
    assert numbers == [n for n in range(510) if n // 10 != 3]

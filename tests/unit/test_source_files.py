"""Files as sources: what people have on their disks, and what is wrong with it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from commandbus import InvalidInputError
from commandbus.errors import InvalidSettingError, SourceError
from commandbus.loads import files
from commandbus.loads.model import RowFormat
from commandbus.loads.sources import name_of, open_source, to_command
from tests.unit.test_sources import BATCH, WORK, rest, written

ROWS = [{"n": 1}, {"n": 2}, {"n": 3}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


async def data(source: object, row_format: RowFormat = WORK) -> list[Any]:
    async with open_source(source, row_format) as reader:
        rows = await rest(reader)
    return [to_command(raw, row_format, BATCH, 1).data for _, raw in rows]


async def refusal(source: object, row_format: RowFormat = WORK) -> str:
    with pytest.raises(SourceError) as caught:
        await data(source, row_format)
    return str(caught.value)


# -- gzip


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.ndjson.GZ", "a.json.gz", "a.jsonl"])
async def test_a_compressed_file_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    assert await data(written(tmp_path, name, gzip.compress(LINES))) == ROWS


async def test_a_file_that_is_only_called_compressed_is_read(tmp_path: Path) -> None:
    assert await data(written(tmp_path, "a.jsonl.gz", LINES)) == ROWS


async def test_compressed_parts_that_were_put_together_are_one_file(tmp_path: Path) -> None:
    parts = b"".join(gzip.compress(json.dumps(row).encode() + b"\n") for row in ROWS)
    assert await data(written(tmp_path, "a.jsonl.gz", parts)) == ROWS


async def test_a_compressed_table_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"n;m\n1;2\n")
    assert await data(written(tmp_path, "a.csv.gz", packed)) == [{"n": "1", "m": "2"}]


async def test_a_compressed_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    lines = b"".join(b'{"n": %d}\n' % n for n in range(50_000))
    packed = gzip.compress(lines)
    error = await refusal(written(tmp_path, "a.jsonl.gz", packed[: len(packed) // 2]))
    assert "cannot read on after line" in error
    assert "is cut off" in error
    assert "is cut off" in await refusal(written(tmp_path, "b.jsonl.gz", packed[:5]))


@pytest.mark.parametrize("spoil", [lambda p: p + b"rubbish", lambda p: p[:-8] + b"\0" * 8])
async def test_a_compressed_file_that_is_damaged_says_so(tmp_path: Path, spoil: Any) -> None:
    path = written(tmp_path, "a.jsonl.gz", spoil(gzip.compress(LINES)))
    assert "is damaged" in await refusal(path)


async def test_what_begins_as_compressed_and_is_not_is_damaged(tmp_path: Path) -> None:
    assert "is damaged" in await refusal(written(tmp_path, "a.jsonl", b"\x1f{}"))


async def test_a_binary_file_that_is_open_is_read_and_stays_open(tmp_path: Path) -> None:
    for content in (LINES, gzip.compress(LINES), json.dumps(ROWS).encode()):
        source = io.BytesIO(content)
        assert await data(source) == ROWS
        assert not source.closed
        with written(tmp_path, "a.bin", content).open("rb") as file:
            assert await data(file) == ROWS
            assert name_of(file).endswith("a.bin")
    assert name_of(io.BytesIO()) == "BytesIO"
    with open(0, "rb", closefd=False) as standard_input:  # noqa: ASYNC230
        assert name_of(standard_input) == "stdin"


# -- arrays


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", "\ufeff", " \r\n\n "])
async def test_an_array_is_read_item_by_item(
    tmp_path: Path, indent: int | None, before: str
) -> None:
    path = written(tmp_path, "a.json", before + json.dumps(ROWS, indent=indent) + "\n")
    async with open_source(path, WORK) as reader:
        assert reader.unit == "item"
        assert [place for place, _ in await rest(reader)] == [1, 2, 3]
    assert await data(path) == ROWS


async def test_an_array_may_be_in_a_file_for_lines_and_lines_in_one_for_json(
    tmp_path: Path,
) -> None:
    assert await data(written(tmp_path, "a.jsonl", json.dumps(ROWS))) == ROWS
    assert await data(written(tmp_path, "b.json", LINES)) == ROWS
    assert await data(written(tmp_path, "c.json", "[]")) == []


async def test_an_array_is_the_same_wherever_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"s": 'Grüße, "x" ] } \\ \n 😀', "n": 10**30, "a": [[1], {"b": -1.5e3}]}, {}, {"n": 12}]
    path = written(tmp_path, "a.json", json.dumps(rows, ensure_ascii=False, indent=1))
    for size in range(1, 40):
        monkeypatch.setattr(files, "CHUNK_BYTES", size)
        assert await data(path) == rows


async def test_an_array_is_not_read_into_memory(tmp_path: Path) -> None:
    item = b'{"n": "' + b"x" * 1_000 + b'"}'
    path = written(tmp_path, "a.json", b"[" + b",".join([item] * 20_000) + b"]")
    with path.open("rb") as file:
        rows = iter(files._Array(file, 1))
        for _ in range(3):
            next(rows)
        assert file.tell() < 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"n": 1},]', "item 2 (line 1, column 11): not JSON: a comma before the end"),
        ('[{"n": 1}', "item 1 (line 1, column 10): not JSON: the array has no end"),
        ('[{"n": 1},\n', "item 2 (line 2, column 1): not JSON: the array has no end"),
        ('[{"n": 1}\n {"n": 2}]', "item 1 (line 2, column 2): not JSON: a comma is missing"),
        ('[{"n": 1}] x', "item 1 (line 1, column 12): not JSON: something follows the end"),
        ("[{}]{}", "item 1 (line 1, column 5): not JSON: something follows the end"),
        ('[\n{"n": 1},\n{"n": oops}]', "item 2 (line 3, column 7): not JSON: Expecting value"),
        ('[{"n": "a', "item 1 (line 1, column 8): not JSON: Unterminated string"),
        ("[", "item 1 (line 1, column 2): not JSON: the array has no end"),
        ("[" + "[" * 100_000, "nested too deeply"),
        ('[{"n": ' + "1" * 5_000 + "}]", "4300 digits"),
    ],
)
async def test_an_array_that_is_wrong_says_where(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in await refusal(written(tmp_path, "a.json", text))


@pytest.mark.parametrize("text", ['[["n"]]', "[1]", '["{}"]', "[null]", "[true]"])
async def test_an_item_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="a row must be an object"):
        await data(written(tmp_path, "a.json", text))


async def test_an_item_without_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    path = written(tmp_path, "a.json", '[{"n": "' + "x" * 1_000_000)
    assert "an item longer than 100,000 bytes" in await refusal(path)


# -- lines


async def test_the_last_line_needs_no_end_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    assert await data(written(tmp_path, "a.jsonl", LINES.rstrip().replace(b"\n", b"\r\n"))) == ROWS


async def test_lines_are_counted_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b"\n\n  \n" + LINES)
    async with open_source(path, WORK) as reader:
        assert [place for place, _ in await rest(reader)] == [4, 5, 6]
        assert reader.total == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
async def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    assert await data(written(tmp_path, name, b"")) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be"])
async def test_wide_characters_are_named(tmp_path: Path, name: str, code: str) -> None:
    error = await refusal(written(tmp_path, name, '{"n": 1}\n'.encode(code)))
    assert "line 1: not UTF-8" in error
    assert "iconv -f UTF-16 -t UTF-8" in error


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("a.jsonl", '{}\n{"n": "ü"}\n', 2), ("a.csv", "n\nü\n", 2), ("a.json", '[{},\n{"n":"ü"}]', 1)],
)
async def test_another_encoding_is_named(tmp_path: Path, name: str, text: str, line: int) -> None:
    error = await refusal(written(tmp_path, name, text.encode("latin-1")))
    assert f"line {line}: not UTF-8" in error
    assert "iconv -f LATIN1 -t UTF-8" in error


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    assert "Is a directory" in await refusal(tmp_path / "folder.jsonl")
    assert "No such file" in await refusal(tmp_path / "none.csv")
    assert "cannot tell what 'a.gz' holds" in await refusal(tmp_path / "a.gz")
    assert "cannot tell what" in await refusal(tmp_path / "a.parquet.gz")


# -- CSV


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
async def test_the_header_tells_what_separates_the_columns(tmp_path: Path, delimiter: str) -> None:
    text = f'\ufeffid{delimiter}"name"\r\n1{delimiter}"a, b; c | d\te"\r\n'
    expected = [{"id": "1", "name": "a, b; c | d\te"}]
    assert await data(written(tmp_path, "a.csv", text)) == expected


async def test_a_single_column_is_a_table_too(tmp_path: Path) -> None:
    assert await data(written(tmp_path, "a.csv", "id\n1\n2")) == [{"id": "1"}, {"id": "2"}]
    assert await data(written(tmp_path, "b.csv", '"a;b"\n1')) == [{"a;b": "1"}]


async def test_a_header_that_could_be_split_in_two_ways_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "amount, net;name\n1;a\n")
    assert "',' and ';' could separate the columns" in await refusal(path)
    told = RowFormat("Work", delimiter=";")
    assert await data(path, told) == [{"amount, net": "1", "name": "a"}]


async def test_a_delimiter_that_does_not_split_the_header_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "a;b;c\n1;2;3\n")
    error = await refusal(path, RowFormat("Work", delimiter=","))
    assert "with ',' the header is a single column, with ';' it has 3" in error


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "\0", " "])
async def test_a_delimiter_is_one_character(tmp_path: Path, delimiter: str) -> None:
    path = written(tmp_path, "a.csv", "a\n1\n")
    with pytest.raises(InvalidSettingError, match="use one character"):
        await data(path, RowFormat("Work", delimiter=delimiter))


async def test_only_a_table_has_a_delimiter(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="only a CSV file"):
        await data(written(tmp_path, "a.jsonl", LINES), RowFormat("Work", delimiter=";"))


async def test_a_file_with_tabs_needs_no_guess(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "a,b\tc\n1\t2\n")
    assert await data(path) == [{"a,b": "1", "c": "2"}]


async def test_a_header_alone_has_no_rows_and_a_blank_one_is_refused(tmp_path: Path) -> None:
    assert await data(written(tmp_path, "a.csv", "a,b\n")) == []
    assert "a column has no name" in await refusal(written(tmp_path, "b.csv", "\na,b\n1,2\n"))


async def test_a_record_with_other_columns_names_the_separator(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "a;b\n1;2\n1;2;3\n")
    assert await refusal(path) == ("line 3: 3 fields where the header has 2 (separated by ';')")


async def test_a_large_field_is_read_and_the_limit_of_others_stays(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = written(tmp_path, "a.csv", "a,b\n" + "x" * 500_000 + ",1\n")
    assert len((await data(path))[0]["a"]) == 500_000
    assert csv.field_size_limit() == before
    csv.field_size_limit(10)
    try:
        assert len((await data(path))[0]["a"]) == 500_000
    finally:
        csv.field_size_limit(before)
    assert sys.modules["_csv"] is not files._csv


async def test_a_quote_that_is_not_closed_does_not_swallow_the_file(tmp_path: Path) -> None:
    line = "3," + "4" * 997 + "\n"
    content = 'a,b\n1,"2\n' + line * (files.MAX_LINE_BYTES // len(line) + 10)
    assert "is there a quote that is not closed?" in await refusal(
        written(tmp_path, "a.csv", content)
    )

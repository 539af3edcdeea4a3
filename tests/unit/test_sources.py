"""Sources: every kind of rows, one by one, each with its place."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, InvalidInputError
from commandbus.errors import DuplicateCommandError, SourceError
from commandbus.loads import files, reading
from commandbus.loads.model import RowFormat
from commandbus.loads.run import LARGEST_SIZE, SMALLEST_SIZE, Chunk, Pace
from commandbus.loads.sources import Reader, derived_id, open_source, to_command
from commandbus.models import NewCommand

BATCH = UUID("00000000-0000-4000-8000-000000000001")
WORK = RowFormat(command_type="Work")
ENVELOPES = RowFormat()


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


async def rest(reader: Reader) -> list[reading.RawRow]:
    rows = []
    while (row := await reader.read()) is not None:
        rows.append(row)
    return rows


async def commands(source: object, row_format: RowFormat = ENVELOPES) -> list[Any]:
    async with open_source(source, row_format) as reader:
        rows = await rest(reader)
    return [
        (place, to_command(raw, row_format, BATCH, number))
        for number, (place, raw) in enumerate(rows, 1)
    ]


async def test_json_lines_are_commands_with_their_lines_and_blank_lines_are_none(
    tmp_path: Path,
) -> None:
    known = uuid4()
    path = written(
        tmp_path, "a.jsonl",
        f'\ufeff{{"type": "A", "data": {{"n": 1}}, "command_id": "{known}"}}\r\n\n  \n'
        '{"command_type": "B"}',
    )  # fmt: skip
    assert await commands(path) == [
        (1, BatchCommand("A", str(known), {"n": 1})),  # type: ignore[arg-type]
        (4, BatchCommand("B", derived_id(BATCH, 2), {})),
    ]
    async with open_source(str(path), RowFormat()) as reader:
        assert (reader.total, reader.unit) == (2, "line")


async def test_with_a_command_type_the_whole_object_is_the_data(tmp_path: Path) -> None:
    path = written(tmp_path, "a.ndjson", '{"type": "gold", "data": 1}\n')
    [(_, command)] = await commands(path, WORK)
    assert (command.command_type, command.data) == ("Work", {"type": "gold", "data": 1})


async def test_csv_columns_become_data_and_a_record_has_the_line_where_it_begins(
    tmp_path: Path,
) -> None:
    one, two = uuid4(), uuid4()
    path = written(
        tmp_path, "a.CSV",
        f'id,kind,note\r\n{one},Pay,"two\nlines"\r\n\r\n{two},Ship,"say ""hé"""\r\n',
    )  # fmt: skip
    found = await commands(path, RowFormat(id_column="id", type_column="kind"))
    assert [(place, c.command_type, c.command_id, c.data) for place, c in found] == [
        (2, "Pay", str(one), {"note": "two\nlines"}),
        (5, "Ship", str(two), {"note": 'say "hé"'}),
    ]
    async with open_source(path, WORK) as reader:
        assert reader.total == 2


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b\n1,2\n3\n", 3, "line 3: 1 fields where the header has 2"),
        ('a,b\n1,"2\n', 2, "not CSV"),
        ("a,a\n1,2\n", 1, "column"),
        (b"a\nfine\n\xff\n", 3, "line 3: not UTF-8"),
    ],
)
async def test_a_broken_csv_says_where(
    tmp_path: Path, content: str | bytes, line: int, reason: str
) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        await commands(written(tmp_path, "a.csv", content), WORK)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": ', "not JSON"),
        ("[1]", "must be an object, not list"),
        ('{"data": {}}', "no command_type"),
        ('{"type": "A", "comand_id": 1}', "unknown keys comand_id"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5_000, "not JSON"),
    ],
)
def test_a_row_that_is_no_command_says_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        to_command(text, RowFormat(), BATCH, 1)


def test_a_declared_column_must_be_filled() -> None:
    with pytest.raises(InvalidInputError, match="nothing in column 'id'"):
        to_command({"id": "", "n": 1}, RowFormat("Work", id_column="id"), BATCH, 1)


def test_large_integers_are_kept_as_they_are_and_not_rounded() -> None:
    command = to_command('{"n": 123456789012345678901234567890}', WORK, BATCH, 1)
    assert command.data == {"n": 123456789012345678901234567890}


def test_a_derived_id_depends_on_batch_and_position_only() -> None:
    assert derived_id(BATCH, 7) == derived_id(BATCH, 7)
    assert len({derived_id(BATCH, n) for n in range(1_000)} | {derived_id(uuid4(), 7)}) == 1_001


async def test_iterables_and_async_iterables_are_read_lazily() -> None:
    taken: list[int] = []

    def endless() -> Iterator[dict[str, int]]:
        for n in range(10**9):
            taken.append(n)
            yield {"n": n}

    async def slowly() -> AsyncIterator[BatchCommand]:
        for _ in range(3):
            yield BatchCommand("A", BATCH, {})

    async with open_source(endless(), WORK) as reader:
        assert await reader.skip(5) == 5
        assert await reader.read() == (6, {"n": 5})
        assert reader.total is None
        assert len(taken) <= 6 + 2 * reading.MAX_ROWS + 1
    assert len(await commands(slowly())) == 3
    async with open_source([{}, {}], WORK) as reader:
        assert (reader.total, await reader.skip(9), await reader.is_at_end()) == (2, 2, True)


async def test_a_source_that_raises_says_after_which_row() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise RuntimeError("the other end hung up")

    async with open_source(failing(), WORK) as reader:
        assert await reader.read() is not None
        with pytest.raises(
            SourceError, match="after item 1: RuntimeError: the other end"
        ) as caught:
            await reader.read()
    assert caught.value.line == 1


@pytest.mark.parametrize("source", [5, b"bytes", {"a": 1}, None])
async def test_what_is_no_source_is_refused(source: object) -> None:
    with pytest.raises(SourceError, match="is not a source"):
        await commands(source)


async def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        await commands(tmp_path / "none.jsonl")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SourceError, match="directory"):
        await commands(tmp_path / "folder.csv", WORK)
    with pytest.raises(SourceError, match=r"use \.jsonl"):
        await commands(written(tmp_path, "a.xlsx", ""))
    with pytest.raises(InvalidInputError, match="needs command_type"):
        await commands(written(tmp_path, "a.csv", "a\n1\n"))


async def test_a_line_without_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1_000)
    path = written(tmp_path, "a.jsonl", "{}\n" + "x" * 5_000)
    with pytest.raises(SourceError, match="line 2: longer than 1,000 bytes"):
        await commands(path, WORK)


async def test_a_pipe_is_read_once_and_has_no_length(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    other_end = threading.Thread(target=path.write_text, args=('{"n": 1}\n{"n": 2}\n',))
    other_end.start()
    async with open_source(path, WORK) as reader:
        assert reader.total is None
        assert len(await rest(reader)) == 2
    other_end.join()


async def test_without_pyarrow_a_table_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(SourceError, match="needs pyarrow"):
            await commands(written(tmp_path, name, b""), WORK)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
async def test_with_pyarrow_tables_are_rows(tmp_path: Path) -> None:
    from datetime import date
    from decimal import Decimal

    import pyarrow as pa  # type: ignore[import-not-found,unused-ignore]
    import pyarrow.parquet as pq  # type: ignore[import-not-found,unused-ignore]

    count = 1_203
    table = pa.table(
        {
            "n": range(count),
            "day": [date(2026, 1, 2)] * count,
            "price": [Decimal("1.50")] * count,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=400)
    with (
        pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    for source in (
        tmp_path / "a.parquet", tmp_path / "a.arrow", tmp_path / "stream.arrow", table,
        table.to_reader(), table.to_batches()[0],
    ):  # fmt: skip
        found = await commands(source, WORK)
        assert len(found) == count
        assert found[-1][0] == count
        assert found[-1][1].data == {"n": count - 1, "day": "2026-01-02", "price": "1.50"}
    with pytest.raises(SourceError, match="cannot read"):
        await commands(written(tmp_path, "bad.parquet", b"nonsense"), WORK)
    with pytest.raises(SourceError, match="cannot read"):
        await commands(written(tmp_path, "bad.arrow", b"nonsense"), WORK)


def test_the_pace_adapts_between_its_bounds_and_a_fixed_one_does_not() -> None:
    pace = Pace(None)
    for _ in range(20):
        pace.learn(pace.size, 0.001)
    assert pace.size == LARGEST_SIZE
    for _ in range(20):
        pace.learn(pace.size, 60.0)
    assert pace.size == SMALLEST_SIZE
    pace.learn(1, 0.001)
    assert pace.size == SMALLEST_SIZE, "a last, short chunk says nothing"
    fixed = Pace(50)
    fixed.learn(50, 0.001)
    assert fixed.size == 50


def test_a_digest_knows_type_id_and_data() -> None:
    def digest(*rows: tuple[str, UUID, bytes]) -> bytes:
        return Chunk([NewCommand(t, i, d, "", uuid4(), 3) for t, i, d in rows]).digest()

    one, two = ("A", BATCH, b"{}"), ("A", BATCH, b'{"n":1}')
    assert digest(one, two) == digest(one, two)
    assert len({digest(one), digest(two), digest(one, two), digest(("B", BATCH, b"{}"))}) == 4


def test_a_duplicate_is_explained_by_its_line() -> None:
    ids = [uuid4(), uuid4()]
    chunk = Chunk([NewCommand("A", i, b"{}", "", uuid4(), 3) for i in (*ids, ids[1])], [1, 2, 9])
    seen = chunk.explain(DuplicateCommandError("shop", [ids[0]]), "line")
    assert (seen.line, str(seen)) == (1, f"line 1: command id {ids[0]} was sent before")
    twice = chunk.explain(DuplicateCommandError("shop", [ids[1]]), "line")
    assert (twice.line, str(twice)) == (9, f"line 9: command id {ids[1]} stands on line 2 already")

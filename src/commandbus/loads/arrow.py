"""Parquet files and Arrow tables as rows; needs pyarrow, which commandbus does not bring."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from commandbus.errors import SourceError

#: Rows that are converted to Python values at a time.
SLICE_ROWS = 500

#: Rows with their position, and how many there are, if that is known.
Rows = tuple[Iterator[tuple[int, Any]], int | None]


def is_table(source: object) -> bool:
    """Whether this is a table, a batch or a stream of batches of pyarrow."""
    return type(source).__module__.partition(".")[0] == "pyarrow"


def open_table(source: Any) -> Rows:
    """Rows of a pyarrow Table, RecordBatch or RecordBatchReader."""
    if hasattr(source, "to_batches"):
        return _rows(source.to_batches()), source.num_rows
    if hasattr(source, "to_pylist"):
        return _rows([source]), getattr(source, "num_rows", None)
    return _rows(source), None


def open_file(path: Path, suffix: str) -> Rows:
    """Rows of a .parquet or .arrow file."""
    try:
        if suffix == ".parquet":
            parquet = importlib.import_module("pyarrow.parquet").ParquetFile(path)
            return _rows(parquet.iter_batches(batch_size=SLICE_ROWS)), parquet.metadata.num_rows
        pyarrow = importlib.import_module("pyarrow")
        ipc = importlib.import_module("pyarrow.ipc")
        # Mapped, not read: a batch may be as large as the file.
        mapped = pyarrow.memory_map(str(path))
        try:
            file = ipc.open_file(mapped)
        except pyarrow.ArrowInvalid:
            return _rows(ipc.open_stream(pyarrow.memory_map(str(path)))), None
        return _rows(file.get_batch(n) for n in range(file.num_record_batches)), None
    except ImportError:
        raise SourceError(
            f"reading {path.name!r} needs pyarrow; install it, or export the table to .jsonl "
            "or .csv"
        ) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {str(path)!r}: {error}") from error


def _rows(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    place = 0
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            for row in batch.slice(start, SLICE_ROWS).to_pylist():
                place += 1
                yield place, plain(row)


def plain(value: Any) -> Any:
    """A column's value as JSON has it: dates, decimals and ids as text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value

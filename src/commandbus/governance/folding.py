"""Items of a request as a table: what is equal in all of them is told once, extremes are marked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from commandbus.governance.model import ReviewedChild
from commandbus.privacy.values import MASK

#: Levels of objects that become columns of their own, named by their path.
MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Extremes:
    """The numbers of the items with the smallest and with the largest value of a column."""

    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class FoldedItems:
    """Items with the same columns. Paths are dotted; a list is one value."""

    #: Path and value of what is the same in all items. What is masked is never among them:
    #: whether two masked values are equal is not told.
    equal: dict[str, Any]
    #: The other paths, in the order in which they appear.
    columns: tuple[str, ...]
    #: For each item its number, and its values by path; a path that it lacks is not in it.
    rows: tuple[tuple[int, dict[str, Any]], ...]
    #: Of the columns that have numbers, if not all are the same.
    extremes: dict[str, Extremes]


def fold_items(children: Sequence[ReviewedChild]) -> FoldedItems:
    """Fold what is equal in all of these children; what is shown of them must be masked already."""
    rows = [(child.sequence_no, dict(_cells(child.payload))) for child in children]
    paths = list(dict.fromkeys(path for _, cells in rows for path in cells))
    equal = {path: rows[0][1][path] for path in paths if len(rows) > 1 and _is_equal(rows, path)}
    columns = tuple(path for path in paths if path not in equal)
    kept = tuple(
        (number, {path: value for path, value in cells.items() if path not in equal})
        for number, cells in rows
    )
    found = {path: _extremes(kept, path) for path in columns}
    return FoldedItems(equal, columns, kept, {path: it for path, it in found.items() if it})


def _cells(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and depth < MAX_DEPTH:
        for key, each in value.items():
            yield from _cells(each, f"{path}.{key}" if path else key, depth + 1)
    elif path or value is not None:
        yield path, value


def _is_equal(rows: Sequence[tuple[int, dict[str, Any]]], path: str) -> bool:
    if any(path not in cells for _, cells in rows):
        return False
    # As JSON: true is not 1.
    texts = {json.dumps(cells[path], sort_keys=True) for _, cells in rows}
    return len(texts) == 1 and MASK not in next(iter(texts))


def _extremes(rows: Sequence[tuple[int, dict[str, Any]]], path: str) -> Extremes | None:
    found = [(cells[path], number) for number, cells in rows if path in cells]
    numbers = [each for each in found if type(each[0]) in {int, float}]
    if len(numbers) < 2 or len(numbers) != len(found):
        return None
    smallest, largest = min(numbers), max(numbers, key=lambda each: (each[0], -each[1]))
    return None if smallest[0] == largest[0] else Extremes(smallest[1], largest[1])

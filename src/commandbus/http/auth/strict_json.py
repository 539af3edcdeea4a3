"""JSON of tokens and key sets: one object, each key once, numbers only."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_object(text: bytes) -> dict[str, Any]:
    """The object; ValueError if it is none, or two readers could understand it differently."""
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004  (of a text, not of a type)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")

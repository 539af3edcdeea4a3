"""Encoding: dataclasses, models and their parts as plain JSON values."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from commandbus.typed.foreign import foreign_plain, is_foreign

_AS_IT_IS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """A value as JSON has it. What is not known stays, and is refused where JSON is written."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is dict:
        return {_key(key): plain(each) for key, each in value.items()}
    if kind in {list, tuple, set, frozenset}:
        return [plain(each) for each in value]
    if is_foreign(kind):
        return foreign_plain(value, plain)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if dataclasses.is_dataclass(kind):
        # What __init__ does not take is made from the rest, and would be refused when it is read.
        return {
            spec.name: plain(getattr(value, spec.name))
            for spec in dataclasses.fields(value)
            if spec.init
        }
    if isinstance(value, Mapping):
        return {_key(key): plain(each) for key, each in value.items()}
    return value


def _key(key: Any) -> Any:
    if isinstance(key, enum.Enum):
        key = key.value
    return str(key) if isinstance(key, UUID) else key

"""What reads over shards give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from commandbus.errors import DatabaseUnavailableError

Answer = TypeVar("Answer")
Item = TypeVar("Item")

#: How long a read over all shards waits for each of them, in seconds.
DEADLINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Everywhere(Generic[Answer]):
    """What the shards answered, by name; and why the others did not."""

    found: dict[str, Answer]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class OnShard(Generic[Item]):
    """An item of a page, and the shard that has it."""

    shard: str
    item: Item


def not_found(what: str, missing: Mapping[str, str]) -> DatabaseUnavailableError:
    """The error about what no shard that answered has, while others did not answer."""
    whys = "; ".join(missing.values())
    error = DatabaseUnavailableError(
        f"{what} is not on the shards that answered, and others did not: {whys}"
    )
    error.shard = ", ".join(missing)
    return error

"""What reads over shards give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

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

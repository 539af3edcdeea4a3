"""Pages over all shards: one order, one cursor, and the names of shards that did not answer.

Each shard gives a page of its own. The heads of these are compared, so each shard keeps its order.
The cursor has the place behind the last item of each shard that was taken, and so nothing is
left out or doubled, whatever is added meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from commandbus.bus import CommandBus
from commandbus.models import AuditEvent, BatchMetadata, CommandMetadata, TroubleshootingItem
from commandbus.paging import SIGN, Page, check_page, cursor_of, position_of
from commandbus.shards.model import OnShard

if TYPE_CHECKING:
    from commandbus.shards.bus import ShardedBus

Item = TypeVar("Item")
#: In the cursor, of a shard that has no more.
_DONE = ""


@dataclass(frozen=True, slots=True)
class MergedPage(Generic[Item]):
    """Some items of all shards; with a `next_cursor` there may be more."""

    items: list[OnShard[Item]]
    next_cursor: str | None
    #: Why shards are not in it. The cursor keeps their place: what they have comes later.
    missing: dict[str, str]


@dataclass(slots=True)
class _Line(Generic[Item]):
    """The page of one shard, and how much of it was taken."""

    page: Page[Item]
    start: str | None
    taken: int = 0

    @property
    def is_empty(self) -> bool:
        return self.taken == len(self.page.items)

    @property
    def cursor(self) -> str | None:
        if self.is_empty:
            return self.page.next_cursor or _DONE
        if not self.taken:
            return self.start
        token = SIGN.set(None)
        try:
            return cursor_of(self.page.places[self.taken - 1], self.page.bound)
        finally:
            SIGN.reset(token)


class MergedPages:
    """`sharded.pages`: listings of all shards in one order."""

    def __init__(self, sharded: ShardedBus) -> None:
        self._sharded = sharded

    async def commands(
        self, *, limit: int = 100, cursor: str | None = None, **criteria: Any
    ) -> MergedPage[CommandMetadata]:
        """`search.commands` of all shards, newest first."""

        def read(bus: CommandBus, at: str | None) -> Awaitable[Page[CommandMetadata]]:
            return bus.search.commands(**criteria, limit=limit, cursor=at)

        def key(page: Page[CommandMetadata], number: int) -> tuple[Any, ...]:
            at, command_id = page.places[number]
            return newest(at), command_id

        return await self.merged("commands", read, key, newest, limit, cursor)

    async def audit(
        self, *, limit: int = 100, cursor: str | None = None, newest_first: bool = True,
        **criteria: Any,
    ) -> MergedPage[AuditEvent]:  # fmt: skip
        """`search.audit` of all shards by time; each shard keeps its own order of events."""
        order = newest if newest_first else oldest

        def read(bus: CommandBus, at: str | None) -> Awaitable[Page[AuditEvent]]:
            return bus.search.audit(
                **criteria, newest_first=newest_first, limit=limit, cursor=at
            )  # fmt: skip

        def key(page: Page[AuditEvent], number: int) -> tuple[Any, ...]:
            return (order(page.items[number].ts),)

        return await self.merged("audit", read, key, order, limit, cursor)

    async def parked(
        self, domain: str | None = None, *, limit: int = 100, cursor: str | None = None,
        **criteria: Any,
    ) -> MergedPage[TroubleshootingItem]:  # fmt: skip
        """`troubleshooting.page` of all shards, what waits longest first."""

        def read(bus: CommandBus, at: str | None) -> Awaitable[Page[TroubleshootingItem]]:
            return bus.troubleshooting.page(domain, **criteria, limit=limit, cursor=at)

        def key(page: Page[TroubleshootingItem], number: int) -> tuple[Any, ...]:
            return tuple(page.places[number])

        return await self.merged("parked", read, key, oldest, limit, cursor)

    async def batches(
        self, domain: str, *, limit: int = 100, cursor: str | None = None, **criteria: Any
    ) -> MergedPage[BatchMetadata]:
        """`batches.page` of a domain on all shards, newest first: also what it left behind."""

        def read(bus: CommandBus, at: str | None) -> Awaitable[Page[BatchMetadata]]:
            return bus.batches.page(domain, **criteria, limit=limit, cursor=at)

        def key(page: Page[BatchMetadata], number: int) -> tuple[Any, ...]:
            at, batch_id = page.places[number]
            return newest(at), -batch_id.int

        return await self.merged("batches", read, key, newest, limit, cursor)

    async def merged(
        self,
        what: str,
        read: Callable[[CommandBus, str | None], Awaitable[Page[Item]]],
        key: Callable[[Page[Item], int], tuple[Any, ...]],
        order: Callable[[datetime], float],
        limit: int,
        cursor: str | None,
    ) -> MergedPage[Item]:
        """A page of any listing that tells the places of its items.

        `key` orders the items of all shards, and agrees with the order of each; `order` does so for
        the time that a search has come to.
        """
        check_page(limit)
        names = list(self._sharded.map.shards)
        bound = ("merged", what, names)
        starts: dict[str, str | None] = position_of(cursor, bound, _read_starts) or {}

        async def ask(bus: CommandBus) -> Page[Item]:
            # The cursors of the shards are inside ours, which is signed as a whole.
            SIGN.set(None)
            start = starts.get(self._sharded.name_of(bus))
            return Page([], None) if start == _DONE else await read(bus, start)

        seen = await self._sharded.everywhere(ask)
        lines = {name: _Line(page, starts.get(name)) for name, page in seen.found.items()}
        items: list[OnShard[Item]] = []
        while len(items) < limit:
            heads = [
                (key(line.page, line.taken), name)
                for name, line in lines.items()
                if not line.is_empty
            ]
            if not heads:
                break
            first, name = min(heads)
            # Behind the place where the search of a shard stopped early it may have more.
            if any(
                line.is_empty and line.page.searched_to is not None
                and first[0] > order(line.page.searched_to)
                for line in lines.values()
            ):  # fmt: skip
                break
            line = lines[name]
            items.append(OnShard(name, line.page.items[line.taken]))
            line.taken += 1
        ends = {name: starts.get(name) for name in names}
        ends |= {name: line.cursor for name, line in lines.items()}
        is_over = all(end == _DONE for name, end in ends.items() if name not in seen.missing)
        missing = {name: why for name, why in seen.missing.items() if ends.get(name) != _DONE}
        more = None if is_over else cursor_of([list(ends.items())], bound)
        return MergedPage(items, more, missing)


def _read_starts(pairs: list[tuple[str, str | None]]) -> dict[str, str | None]:
    starts = dict(pairs)
    if not all(isinstance(each, str | None) for each in starts.values()):
        raise ValueError("not the places of shards")
    return starts


def newest(at: datetime) -> float:
    """For listings whose newest item comes first."""
    return -oldest(at)


def oldest(at: datetime) -> float:
    """For listings whose oldest item comes first."""
    # Exact: seconds of our time with microseconds fit into a double.
    return at.timestamp()

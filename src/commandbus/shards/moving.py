"""Moving a domain with its history to another shard (docs/adr/0091).

The two databases have a record of the move. What was done is told by the records and by comparing
the databases, never by this process: after any end of it the same call goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.names import check_domain
from commandbus.settings import Settings, check_number
from commandbus.shards import moves
from commandbus.shards.applying import open_all, refuse_forgotten
from commandbus.shards.copying import Copy
from commandbus.shards.map import ShardMap
from commandbus.shards.moves import Move
from commandbus.shards.record import ShardRecord, adopt, record_of

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

#: Walks over the history while traffic goes on; fewer, if one found little that was new.
WALKS_AHEAD = 3
LITTLE_ROWS = 5_000
#: Pause before a lock that others have is asked for again, in seconds.
AGAIN_SECONDS = 0.5
#: How often it is asked for where it only tidies up.
TIDY_TIMES = 10

_LOCK_MAP: LiteralString = "select {schema}.lock_map()"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MoveReport:
    """A move that is over."""

    domain: str
    from_shard: str
    to_shard: str
    #: The version of the map that all shards know now; write it into the file of the map.
    map_version: int
    #: Rows by part, as they were verified.
    counts: dict[str, int]
    seconds: float
    #: How long sends were refused and nothing was leased; None: an earlier call has closed it.
    closed_seconds: float | None


@dataclass(slots=True)
class _Shards:
    """All shards, opened, and the newest map that their databases know."""

    known: ShardMap
    gateways: dict[str, Gateway]
    newest: ShardRecord
    are_alike: bool

    @classmethod
    async def opened(
        cls, stack: AsyncExitStack, known: ShardMap, settings: Settings | None
    ) -> _Shards:
        gateways = await open_all(stack, known, settings)
        await refuse_forgotten(known, gateways)
        records = []
        for name, gateway in gateways.items():
            record = await record_of(gateway)
            if record is None or record.version < known.version:
                raise InvalidSettingError(
                    f"shard {name!r} does not know version {known.version} of the map; run "
                    "`commandbus shards apply` first"
                )
            if said := record.contradiction(name, known):
                raise InvalidSettingError(said)
            records.append(record)
        newest = max(records, key=lambda each: each.version)
        alike = all(each.version == newest.version for each in records)
        return cls(known, gateways, newest, alike)

    async def newest_now(self) -> ShardRecord:
        """The newest map that a shard knows at this moment."""
        for gateway in self.gateways.values():
            record = await record_of(gateway)
            if record is not None and record.version > self.newest.version:
                self.newest = record
        return self.newest

    async def open_move(self, domain: str) -> Move | None:
        """The move of a domain that is going on, as the shard that it leaves has it."""
        for gateway in self.gateways.values():
            for move in await moves.of_domain(gateway, domain):
                if move.is_open and move.is_leaving:
                    return move
        return None


async def move_domain(
    shards: ShardMap,
    domain: str,
    to: str,
    *,
    settings: Settings | None = None,
    wait_seconds: float = 60.0,
    tell: Tell | None = None,
) -> MoveReport:
    """Move a domain with all that belongs to it to the shard `to`, while its senders go on.

    History is copied first. Then the domain is closed: sends are refused with DomainMovingError and
    may be repeated, nothing is leased, and commands that run are waited for, `wait_seconds` at
    most; if they do not end it is open again, and the same call later goes on. What is left is
    copied, everything is compared, and the map says where it is now. All shards must be up.
    """
    check_domain(domain)
    check_number(wait_seconds, "wait_seconds", 0, 86_400)
    said = tell or (lambda _: None)
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        found = await _Shards.opened(stack, shards, settings)
        if to not in found.gateways:
            known = ", ".join(sorted(found.gateways))
            raise InvalidSettingError(f"there is no shard {to!r}; there are: {known}")
        move = await found.open_move(domain)
        if move is not None and await _was_canceled(found, move):
            move = None  # the cancel was cut off at its last step
        if move is None:
            move = await _begin(found, domain, to)
        if move.to_shard != to:
            raise InvalidOperationError(
                f"domain {domain!r} is on its way to shard {move.to_shard!r}; end that move first, "
                "or cancel it"
            )
        run = _Run(found, move, said)
        closed = None
        if move.phase in {"copying", "closing"}:
            closed = await run.copy(wait_seconds)
        try:
            version = await run.switch()
        except InvalidOperationError:
            await run.open_again()  # if the map has not let it go
            raise
        if closed is not None:
            closed = run.opened_at - closed
        counts = await run.clear()
        seconds = time.monotonic() - began
        return MoveReport(domain, move.from_shard, to, version, counts, seconds, closed)


async def cancel_move(
    shards: ShardMap, domain: str, *, settings: Settings | None = None, tell: Tell | None = None
) -> bool:
    """Give up the move of a domain: it stays where it is, and its copies are removed.

    False: none is going on. InvalidOperationError: the map has let it go; run the move to its end.
    """
    async with AsyncExitStack() as stack:
        found = await _Shards.opened(stack, shards, settings)
        move = await found.open_move(check_domain(domain))
        if move is None:
            return False
        await _Run(found, move, tell or (lambda _: None)).cancel()
        return True


async def _begin(found: _Shards, domain: str, to: str) -> Move:
    home = found.newest.find(domain)
    if home == to:
        raise InvalidOperationError(f"domain {domain!r} is on shard {to!r} already")
    if home is None:
        raise InvalidOperationError(f"the map puts domain {domain!r} on no shard")
    if not found.are_alike:
        raise InvalidSettingError(
            "the shards know different versions of the map; run `commandbus shards apply` first"
        )
    gateway = found.gateways[home]
    if f"{domain}.commands" not in await moves.queues_of(gateway, domain):
        raise InvalidOperationError(
            f"domain {domain!r} has nothing on shard {home!r}; change its shard in the map, and "
            "apply that"
        )
    await moves.begin_leaving(gateway, domain, to)
    begun = await found.open_move(domain)
    if begun is None:
        raise InvalidOperationError(f"the move of domain {domain!r} was ended by somebody else")
    return begun


async def _was_canceled(found: _Shards, move: Move) -> bool:
    """Whether it is canceled where the domain was to come to; then it is so here too."""
    there = await moves.of_domain(found.gateways[move.to_shard], move.domain)
    if not any(each.move_id == move.move_id and each.phase == "canceled" for each in there):
        return False
    await _Run(found, move, lambda _: None).cancel()
    return True


@dataclass(slots=True)
class _Run:
    """One run of a move, from wherever it stands to its end."""

    shards: _Shards
    move: Move
    tell: Tell
    #: When it was open on the other shard, by the monotonic clock.
    opened_at: float = 0.0
    source: Gateway = field(init=False)
    target: Gateway = field(init=False)
    pages: Copy = field(init=False)

    def __post_init__(self) -> None:
        self.source = self.shards.gateways[self.move.from_shard]
        self.target = self.shards.gateways[self.move.to_shard]
        self.pages = Copy(self.source, self.target, self._id, self._domain, self.tell)

    @property
    def _id(self) -> UUID:
        return self.move.move_id

    @property
    def _domain(self) -> str:
        return self.move.domain

    async def copy(self, wait_seconds: float) -> float:
        """Until both have the same and nobody changes it; since when it is closed."""
        if self.move.phase == "copying":
            await self._refuse_calls()
        await moves.begin_arriving(self.target, self.move, await self._queues())
        await self.pages.require_layout()
        # From the beginning: what arrives is nobody's work until the map says that it is here.
        await self._freeze(self.target, time.monotonic() + wait_seconds)
        if self.move.phase == "copying":
            await moves.note(self.target, self._id, "copying")  # it may have been further
            for _ in range(WALKS_AHEAD):
                if await self.pages.ahead() < LITTLE_ROWS:
                    break
        try:
            closed_at = time.monotonic()
            frozen_at = await self._close(closed_at + wait_seconds)
            self.tell("closed: the rest is copied")
            await self._refuse_calls()
            counts = await self.pages.all()
            await moves.carry_numbers(self.source, self.target, self._domain)
            await moves.note(self.target, self._id, "verified", counts)
            await moves.note_verified(self.source, self._id, counts, frozen_at)
        except BaseException:
            await self.open_again()
            raise
        return closed_at

    async def _queues(self) -> list[str]:
        return await moves.queues_of(self.source, self._domain)

    async def _refuse_calls(self) -> None:
        """A batch sends its last command in the transaction that ends it: both on one shard."""
        if calls := await moves.callbacks_across(self.source, self._domain, self.move.to_shard):
            raise InvalidOperationError(
                f"open batches would call another shard at their end: {calls}; wait for the end of "
                "these batches, or let both domains be on one shard"
            )

    async def _close(self, end: float) -> datetime:
        """Until nothing runs and nothing changes; since when that is so where it leaves."""
        for gateway in (self.target, self.source):
            await moves.note(gateway, self._id, "closing")
        await self._insist(partial(moves.close_leases, self.source, self._domain), end)
        while running := await moves.running(self.source, self._domain):
            if time.monotonic() >= end:
                raise InvalidOperationError(
                    f"{running} commands of domain {self._domain!r} still run; it is open again, "
                    "and what was copied stays: run the move again, or with a longer wait"
                )
            self.tell(f"closed: {running} commands run")
            await asyncio.sleep(AGAIN_SECONDS)
        await self._freeze(self.target, end)  # for queues that are new
        return await self._freeze(self.source, end)

    async def _freeze(self, gateway: Gateway, end: float) -> datetime:
        since = await moves.mark_frozen(gateway, self._id)
        for table, parent in await moves.frozen_tables(gateway, self._domain):
            freeze = partial(moves.freeze, gateway, self._domain, table, parent)
            await self._insist(freeze, end)
        return since

    async def _insist(self, act: Callable[[], Awaitable[Any]], end: float) -> None:
        """Ask for a lock again and again: who has it must not make all others wait behind us."""
        while True:
            try:
                await act()
            except DatabaseUnavailableError:
                if time.monotonic() >= end:
                    raise
            else:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def open_again(self) -> None:
        """Nothing has changed for anybody; what was copied stays for the next run."""
        try:
            await moves.note(self.source, self._id, "copying")
            await moves.open_leases(self.source, self._domain)
            await moves.note(self.target, self._id, "copying")
        except CommandBusError as error:
            self.tell(f"the domain is closed still; run the move again, or cancel it: {error}")
            return
        await self._thaw(self.source)

    async def switch(self) -> int:
        """Let all shards know of it: the one that it leaves first. The version of the map."""
        # One new map at a time: the lock is on the same shard for all.
        first = self.shards.gateways[min(self.shards.gateways)]
        async with first.transaction() as session:
            await session.rows(_LOCK_MAP)
            version = await self._switch(await self.shards.newest_now())
        await moves.note(self.source, self._id, "switched")
        self.tell(f"switched: domain {self._domain} is on shard {self.move.to_shard}")
        return version

    async def _switch(self, newest: ShardRecord) -> int:
        version = newest.version
        if newest.find(self._domain) != self.move.to_shard:
            version += 1
        known = ShardMap(
            self.shards.known.shards, {**newest.domains, self._domain: self.move.to_shard},
            newest.default, version,
        )  # fmt: skip
        first = [self.move.from_shard, self.move.to_shard]
        for name in [*first, *(each for each in self.shards.gateways if each not in first)]:
            gateway = self.shards.gateways[name]
            tell = partial(adopt, gateway, name, known)
            if name == self.move.from_shard:
                tell = partial(moves.adopt_moved, gateway, self._id, name, known)
            await self._insist(tell, time.monotonic() + TIDY_TIMES * AGAIN_SECONDS)
            if name == self.move.to_shard:
                await moves.note(self.target, self._id, "switched")
                self.opened_at = time.monotonic()
        return version

    async def clear(self) -> dict[str, int]:
        """Remove what is left where it was; the rows that were moved, by part."""
        await self._thaw(self.target)
        await self.pages.forget(self.source)
        await self.pages.forget_events()
        found = await moves.of_domain(self.source, self._domain)
        counts = next(each.counts for each in found if each.move_id == self._id)
        await moves.note(self.target, self._id, "finished")
        # Last: as long as it is open here, the same call goes on.
        await self._tidy(partial(moves.open_leases, self.source, self._domain))
        await self._thaw(self.source)
        await moves.note(self.source, self._id, "finished")
        return counts

    async def cancel(self) -> None:
        """Back to where it was. The record here is ended last: until then the same call goes on."""
        await moves.note(self.source, self._id, "copying")
        await moves.open_leases(self.source, self._domain)
        await self._thaw(self.source)
        there = await moves.of_domain(self.target, self._domain)
        if any(each.move_id == self._id and each.is_open for each in there):
            await moves.note(self.target, self._id, "copying")
            await self.pages.drop_chunks(1)
            await self.pages.forget(self.target)
            await moves.note(self.target, self._id, "canceled")
        await self._thaw(self.target)
        await moves.note(self.source, self._id, "canceled")

    async def _thaw(self, gateway: Gateway) -> None:
        """Take the triggers away, which refuse nothing any more."""
        for table in await moves.frozen_still(gateway, self._domain):
            await self._tidy(partial(moves.thaw, gateway, self._domain, table))

    async def _tidy(self, act: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(TIDY_TIMES):
            try:
                await act()
            except DatabaseUnavailableError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return
        self.tell(
            "a trigger of the move is left behind, because its table is locked; it does no harm"
        )

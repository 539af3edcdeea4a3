"""One bus over several databases: each domain on its shard, reads over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial

from commandbus.bus import CommandBus
from commandbus.errors import (
    CommandBusError,
    DatabaseError,
    DatabaseUnavailableError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.handlers.router import Handlers
from commandbus.middleware.base import Middleware
from commandbus.names import check_domain
from commandbus.opening import Opening
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings, check_timeout
from commandbus.shards.doors import Doors
from commandbus.shards.leaving import Leaving
from commandbus.shards.map import ShardMap
from commandbus.shards.model import DEADLINE_SECONDS, Answer, Everywhere, not_found
from commandbus.shards.pages import MergedPages
from commandbus.shards.reads import MergedReads
from commandbus.shards.record import ShardRecord, record_of, require_agreement
from commandbus.shards.silence import Silence


class ShardedBus(MergedReads):
    """Gives each domain the bus of its shard: `(await bus.on("payments")).send(…)`.

    A shard is opened when it is first needed, so that one that is down leaves the others alone.
    """

    def __init__(
        self,
        shards: ShardMap,
        connect: Callable[[str], AbstractAsyncContextManager[CommandBus]],
        *,
        follows: bool = False,
    ) -> None:
        self.map = shards
        #: Whether domains are where the newest map that a database knows puts them.
        self._follows = follows
        self._newest: ShardRecord | None = None
        #: Called when a newer map was found.
        self.on_newer_map: Callable[[], None] = lambda: None
        #: Listings of all shards in one order.
        self.pages = MergedPages(self)
        self._connect = connect
        self._doors = Doors(lambda name: Opening(partial(self._begin, name)))
        #: Shards that do not answer, and are left out of reads over all.
        #: Reads that took too long.
        self.leaving = Leaving()
        self.silence = Silence(self._look, self.leaving)
        #: What the databases were told, as it was when it was read last.
        self._records: dict[str, ShardRecord] = {}
        self._is_closed = False

    @classmethod
    def connect(
        cls,
        shards: ShardMap,
        *,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
        handlers: Handlers | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> AbstractAsyncContextManager[ShardedBus]:
        """Open a bus over these shards; the arguments are those of `CommandBus.connect`."""

        def connect(address: str) -> AbstractAsyncContextManager[CommandBus]:
            return CommandBus.connect(
                address, settings=settings, retry_policy=retry_policy, handlers=handlers,
                middleware=middleware,
            )  # fmt: skip

        async def begin(stack: AsyncExitStack) -> ShardedBus:
            bus = cls(shards, connect)
            stack.push_async_callback(bus.close)
            return bus

        return Opening(begin)

    async def on(self, domain: str) -> CommandBus:
        """The bus of the shard that a domain is on, with every verb and part of a bus.

        InvalidSettingError: by the map that the database knows the domain is elsewhere.
        """
        name = self.shard_of(domain)
        bus = await self.shard(name)
        if self._follows:
            return bus  # the database refuses it, if it is not there
        record = self._records[name]
        if record.version != self.map.version and record.find(domain) != name:
            await self._require_here(domain, name, bus)
        return bus

    def find(self, domain: str) -> str | None:
        """The shard that a domain is on; None: on none that is known."""
        with suppress(InvalidSettingError):
            return self.shard_of(domain)
        return None

    def shard_of(self, domain: str) -> str:
        """The shard that a domain is on."""
        newest = self._newest
        if newest is None or newest.version <= self.map.version:
            return self.map.shard_of(domain)
        found = newest.find(check_domain(domain))
        if found is None or found not in self.map.shards:
            raise InvalidSettingError(
                f"version {newest.version} of the map, which shard {newest.shard!r} knows, puts "
                f"domain {domain!r} on a shard that this process does not know; start it with the "
                "newer map"
            )
        return found

    async def look_at_maps(self) -> None:
        """Ask the open shards which map they know; where it is newer, domains are where it says."""

        async def look(name: str, bus: CommandBus) -> None:
            if self.silence.why(name) is None:
                with suppress(CommandBusError):
                    self._take(await record_of(bus._store.gateway))

        await asyncio.gather(*(look(name, bus) for name, bus in list(self.open.items())))

    def _take(self, record: ShardRecord | None) -> None:
        if not self._follows or record is None:
            return
        self._records[record.shard] = record
        if self._newest is None or record.version > self._newest.version:
            self._newest = record
            self.on_newer_map()

    async def shard(self, name: str) -> CommandBus:
        """The bus of one shard; DatabaseUnavailableError names the shard if it is down.

        InvalidSettingError: its database is another shard, or knows another map of the same
        version. A `conn=` must lead to this database.
        """
        if self._is_closed:
            raise InvalidOperationError("this bus is closed; open another one")
        if name not in self.map.shards:
            known = ", ".join(sorted(self.map.shards))
            raise InvalidOperationError(f"there is no shard {name!r}; there are: {known}")
        return await self._doors.get(name)

    async def _require_here(self, domain: str, name: str, bus: CommandBus) -> None:
        # The database may have been told of our map since.
        record = await record_of(bus._store.gateway)
        if record is not None:
            self._records[name] = record
            if said := record.refusal(domain, self.map):
                raise InvalidSettingError(said)

    async def _begin(self, name: str, stack: AsyncExitStack) -> CommandBus:
        try:
            bus = await stack.enter_async_context(self._connect(self.map.shards[name]))
            gateway = bus._store.gateway
            self._records[name] = await require_agreement(gateway, name, self.map)
            self._take(self._records[name])
        except DatabaseUnavailableError as error:
            named = DatabaseUnavailableError(f"shard {name!r}: {error}")
            named.is_temporary, named.shard = error.is_temporary, name
            raise named from None
        gateway.require_conn_here(f"shard {name!r}")
        return bus

    @property
    def open(self) -> Mapping[str, CommandBus]:
        """The buses of the shards that are open, by name."""
        return self._doors.open

    def name_of(self, bus: CommandBus) -> str:
        """The name of the shard whose bus this is."""
        return next(name for name, each in self._doors.open.items() if each is bus)

    async def everywhere(
        self,
        read: Callable[[CommandBus], Awaitable[Answer]],
        *,
        deadline: float = DEADLINE_SECONDS,
        names: Collection[str] | None = None,
    ) -> Everywhere[Answer]:
        """Ask all shards at once. One that is down, or silent for `deadline` seconds, is missing.

        So is one that cannot be opened, or whose database refuses: without a grant, or with the
        schema of another version. A wrong argument raises. `names`: ask these shards alone.
        """
        check_timeout(deadline)
        if self._is_closed:
            raise InvalidOperationError("this bus is closed; open another one")
        found: dict[str, Answer] = {}
        missing: dict[str, str] = {}

        async def answer(name: str) -> Answer:
            try:
                shard = await self.shard(name)
            except DatabaseError:
                raise
            except CommandBusError as error:
                raise DatabaseError(str(error)) from error
            return await read(shard)

        async def ask(name: str) -> None:
            if why := self.silence.why(name):
                missing[name] = why
                return
            try:
                found[name] = await self.leaving.within(deadline, answer(name))
            except DatabaseError as error:
                missing[name] = str(error)
                self._note_silence(name, error)
            except TimeoutError as error:
                if isinstance(error, CommandBusError):
                    raise
                missing[name] = f"shard {name!r}: no answer within {deadline:g} s"
                self.silence.begin(name, missing[name])

        order = [name for name in self.map.shards if names is None or name in names]
        results = await asyncio.gather(*map(ask, order), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if names is None:
            missing |= self._unknown()
        return Everywhere({name: found[name] for name in order if name in found}, missing)

    async def answering(self, name: str) -> CommandBus:
        """The bus of a shard; DatabaseUnavailableError at once if it is known to be silent."""
        if why := self.silence.why(name):
            error = DatabaseUnavailableError(why)
            error.shard = name
            raise error
        return await self.shard(name)

    async def trying(self, name: str) -> CommandBus:
        """The same, and an error at once only if it did not answer when it was looked at either.

        A single read that took too long is no reason to refuse a send.
        """
        return await (self.answering if self.silence.is_sure(name) else self.shard)(name)

    async def first(self, read: Callable[[CommandBus], Awaitable[object]], what: str) -> str | None:
        """The shard on which `read` finds something, as soon as one has; None: on none of them.

        DatabaseUnavailableError: none of those that answered, and others did not. `what` is said
        to be looked for.
        """
        seen: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

        async def look(bus: CommandBus) -> bool:
            found = await read(bus)
            await seen.put((self.name_of(bus), found))
            return found is not None

        asking = asyncio.create_task(self.everywhere(look))
        try:
            while not asking.done() or not seen.empty():
                taking = asyncio.create_task(seen.get())
                await asyncio.wait([asking, taking], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    continue
                name, found = taking.result()
                if found is not None:
                    return name
            missing = (await asking).missing
        finally:
            asking.cancel()
        if missing:
            raise not_found(what, missing)
        return None

    async def _look(self, name: str) -> None:
        await (await self.shard(name)).check()

    def _note_silence(self, name: str, error: CommandBusError) -> None:
        if isinstance(error, DatabaseUnavailableError) and error.is_temporary:
            self.silence.begin(name, str(error))

    def _unknown(self) -> dict[str, str]:
        """Shards that newer maps have, and ours has not."""
        return {
            unknown: f"version {record.version} of the map, which shard {name!r} knows, has it; "
            f"this process has version {self.map.version}"
            for name, record in self._records.items()
            if record.version > self.map.version
            for unknown in sorted(record.named - self.map.shards.keys())
        }

    async def stop(self) -> None:
        """Stop the workers on all shards gracefully."""
        await asyncio.gather(*(bus.stop() for bus in self._doors.open.values()))

    async def close(self) -> None:
        """Stop the workers, and let go of all shards."""
        self._is_closed = True
        await self.silence.close()
        await self._doors.close()
        await self.leaving.close()

"""One bus over several databases: each domain on its shard, reads over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from commandbus.bus import CommandBus
from commandbus.errors import CommandBusError, DatabaseUnavailableError, InvalidOperationError
from commandbus.handlers.router import Handlers
from commandbus.middleware.base import Middleware
from commandbus.opening import Opening
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings, check_timeout
from commandbus.shards.map import ShardMap
from commandbus.shards.pages import MergedPages
from commandbus.shards.record import require_agreement

Answer = TypeVar("Answer")

#: How long a read over all shards waits for each of them, in seconds.
DEADLINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Everywhere(Generic[Answer]):
    """What the shards answered, by name; and why the others did not."""

    found: dict[str, Answer]
    missing: dict[str, str]


class ShardedBus:
    """Gives each domain the bus of its shard: `(await bus.on("payments")).send(…)`.

    A shard is opened when it is first needed, so that one that is down leaves the others alone.
    """

    def __init__(
        self, shards: ShardMap, connect: Callable[[str], AbstractAsyncContextManager[CommandBus]]
    ) -> None:
        self.map = shards
        #: Listings of all shards in one order.
        self.pages = MergedPages(self)
        self._connect = connect
        self._locks = {name: asyncio.Lock() for name in shards.shards}
        self._open: dict[str, CommandBus] = {}
        self._openings: list[Opening[CommandBus]] = []
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
        """The bus of the shard that a domain is on, with every verb and part of a bus."""
        return await self.shard(self.map.shard_of(domain))

    async def shard(self, name: str) -> CommandBus:
        """The bus of one shard; DatabaseUnavailableError names the shard if it is down.

        InvalidSettingError: its database knows another map. A `conn=` must lead to this database.
        """
        if self._is_closed:
            raise InvalidOperationError("this bus is closed; open another one")
        if name not in self._locks:
            known = ", ".join(sorted(self._locks))
            raise InvalidOperationError(f"there is no shard {name!r}; there are: {known}")
        async with self._locks[name]:
            if name not in self._open:
                opening = Opening(partial(self._begin, name))
                self._open[name] = await opening.__aenter__()
                self._openings.append(opening)
            return self._open[name]

    async def _begin(self, name: str, stack: AsyncExitStack) -> CommandBus:
        try:
            bus = await stack.enter_async_context(self._connect(self.map.shards[name]))
            gateway = bus._store.gateway
            await require_agreement(gateway, name, self.map)
        except DatabaseUnavailableError as error:
            named = DatabaseUnavailableError(f"shard {name!r}: {error}")
            named.is_temporary = error.is_temporary
            raise named from None
        gateway.require_conn_here(f"shard {name!r}")
        return bus

    def name_of(self, bus: CommandBus) -> str:
        """The name of the shard whose bus this is."""
        return next(name for name, each in self._open.items() if each is bus)

    async def everywhere(
        self,
        read: Callable[[CommandBus], Awaitable[Answer]],
        *,
        deadline: float = DEADLINE_SECONDS,
    ) -> Everywhere[Answer]:
        """Ask all shards at once. One that is down, or silent for `deadline` seconds, is missing.

        Only what the database is to blame for makes a shard missing: a wrong argument raises.
        """
        check_timeout(deadline)
        found: dict[str, Answer] = {}
        missing: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                async with asyncio.timeout(deadline):
                    found[name] = await read(await self.shard(name))
            except DatabaseUnavailableError as error:
                missing[name] = str(error)
            except TimeoutError as error:
                if isinstance(error, CommandBusError):
                    raise
                missing[name] = f"shard {name!r}: no answer within {deadline:g} s"

        results = await asyncio.gather(*map(ask, self._locks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        order = list(self._locks)
        return Everywhere({name: found[name] for name in order if name in found}, missing)

    async def stop(self) -> None:
        """Stop the workers on all shards gracefully."""
        await asyncio.gather(*(bus.stop() for bus in self._open.values()))

    async def close(self) -> None:
        """Stop the workers, and let go of all shards."""
        self._is_closed = True
        async with AsyncExitStack() as stack:
            while self._openings:
                stack.push_async_exit(self._openings.pop(0))
            self._open.clear()

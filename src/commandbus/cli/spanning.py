"""The bus of a command over several databases, by the map of shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from commandbus.bus import CommandBus
from commandbus.errors import DatabaseUnavailableError, SchemaMissingError
from commandbus.handlers.router import Handlers
from commandbus.opening import Opening
from commandbus.settings import Settings
from commandbus.shards.map import ShardMap
from commandbus.shards.spanning import AGAIN_SECONDS, SpanningBus


def open_shards(
    shards: ShardMap,
    settings: Settings,
    through: Callable[[str], str] | None = None,
    *,
    handlers: Handlers | None = None,
    creates: bool = False,
) -> AbstractAsyncContextManager[SpanningBus]:
    """A bus over these shards; each is opened when it is needed. `through` changes addresses.

    Unless it `creates`, a database without our schema is refused, not set up.
    """
    from commandbus.wiring import database_status

    def connect(address: str) -> Opening[CommandBus]:
        wanted = address if through is None else through(address)

        async def begin(stack: AsyncExitStack) -> CommandBus:
            if not creates:
                status = await database_status(wanted, settings)
                if status.installed_version is None:
                    raise SchemaMissingError(
                        f"a shard has no schema {settings.schema!r}; run `commandbus db init` for "
                        "its address, or `commandbus shards status`, which sets up empty ones"
                    )
            opening = CommandBus.connect(wanted, settings=settings)
            return await stack.enter_async_context(opening)

        return Opening(begin)

    return SpanningBus.over(shards, settings=settings, handlers=handlers, connect=connect)


def schedulers(bus: CommandBus, settings: Settings) -> list[Coroutine[Any, Any, None]]:
    """What fires the schedules of each shard, for ever; one that is down is waited for."""
    from commandbus.worker.scheduler import Scheduler

    if not isinstance(bus, SpanningBus):
        raise TypeError("only a bus over shards has several")
    sharded = bus.sharded

    async def serve(name: str) -> None:
        while True:
            with suppress(DatabaseUnavailableError):
                shard = await sharded.shard(name)
                await Scheduler(shard._store, settings).serve()
            await asyncio.sleep(AGAIN_SECONDS)

    return [serve(name) for name in sharded.map.shards]

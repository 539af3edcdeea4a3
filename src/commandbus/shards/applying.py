"""Applying a map: all shards are told of it, those that lose a domain first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from commandbus.bus import CommandBus
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.settings import Settings, check_number
from commandbus.shards.map import ShardMap
from commandbus.shards.record import (
    adopt,
    close_domains,
    domains_here,
    open_domains,
    record_of,
)

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

#: Pause between two looks whether a domain can leave, in seconds.
AGAIN_SECONDS = 0.5


async def apply_map(
    shards: ShardMap,
    *,
    settings: Settings | None = None,
    wait_seconds: float = 0.0,
    closes: bool = False,
    tell: Callable[[str], None] | None = None,
) -> dict[str, bool]:
    """Tell all shards of this map; by name, whether it was new to them.

    `closes`: nothing new is let into the domains that leave while they are waited for; senders get
    DomainMovingError, and repeat the call. If the map is not taken in time they are open again.

    All must be up. A domain that the map takes from a shard must have nothing to do there any more;
    that is waited for. Shards that lose domains are told first, so that no domain is on two. After
    an error the same call goes on where it stopped.
    """
    check_number(wait_seconds, "wait_seconds", 0, 86_400)
    end = time.monotonic() + wait_seconds
    async with AsyncExitStack() as stack:
        gateways = await open_all(stack, shards, settings)
        await refuse_forgotten(shards, gateways)
        losing = {name: await _leaving(shards, name, gateways[name]) for name in gateways}
        done: dict[str, bool] = {}
        try:
            if closes:
                for name in filter(losing.get, gateways):
                    await _close(gateways[name], losing[name], end)
            for name in sorted(gateways, key=lambda name: not losing[name]):
                done[name] = await _adopt(shards, name, gateways[name], end, tell)
        finally:
            # Those that stay, also after a move that was given up; one that has left stays closed.
            for gateway in gateways.values():
                with suppress(CommandBusError):  # `shards status` shows what is closed
                    await open_domains(gateway)
        return {name: done[name] for name in shards.shards}


async def open_all(
    stack: AsyncExitStack, shards: ShardMap, settings: Settings | None
) -> dict[str, Gateway]:
    """The gateways of all shards, which must be up."""
    return {
        name: await _gateway(stack, name, address, settings)
        for name, address in shards.shards.items()
    }


async def _gateway(
    stack: AsyncExitStack, name: str, address: str, settings: Settings | None
) -> Gateway:
    try:
        bus = await stack.enter_async_context(CommandBus.connect(address, settings=settings))
    except DatabaseUnavailableError as error:
        raise DatabaseUnavailableError(
            f"shard {name!r}: {error}; nothing was changed on any shard"
        ) from None
    return bus._store.gateway


async def refuse_forgotten(shards: ShardMap, gateways: dict[str, Gateway]) -> None:
    """Refuse a map without a shard that has domains by the map that the databases know."""
    for name, gateway in gateways.items():
        record = await record_of(gateway)
        if record is not None and (forgotten := sorted(record.named - shards.shards.keys())):
            raise InvalidSettingError(
                f"by version {record.version} of the map, which shard {name!r} knows, "
                f"{forgotten[0]!r} has domains, and the map has no such shard; keep it "
                "without domains, apply that, and take it away with the next version"
            )


async def _leaving(shards: ShardMap, name: str, gateway: Gateway) -> list[str]:
    here = await domains_here(gateway)
    return [each for each, has_left in here.items() if not has_left and shards.find(each) != name]


async def _close(gateway: Gateway, domains: list[str], end: float) -> None:
    while True:
        try:
            await close_domains(gateway, domains)
        except DatabaseUnavailableError:
            # A transaction that has sent is open for long: senders must not wait behind us.
            if time.monotonic() >= end:
                raise
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return


async def _adopt(
    shards: ShardMap,
    name: str,
    gateway: Gateway,
    end: float,
    tell: Callable[[str], None] | None,
) -> bool:
    while True:
        try:
            return await adopt(gateway, name, shards)
        except InvalidOperationError as error:
            if time.monotonic() >= end:
                raise InvalidOperationError(f"shard {name!r}: {error}") from error
            if tell is not None:
                tell(f"shard {name!r}: {error}")
        except InvalidSettingError as error:
            raise InvalidSettingError(f"shard {name!r}: {error}") from error
        await asyncio.sleep(AGAIN_SECONDS)

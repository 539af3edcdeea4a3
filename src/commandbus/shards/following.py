"""What takes long while the domain may move: it goes on where the domain is then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.errors import DomainMovedError, DomainMovingError
from commandbus.models import Reply
from commandbus.names import check_domain, check_uuid, new_id
from commandbus.settings import check_timeout
from commandbus.shards.call import Call, named

if TYPE_CHECKING:
    from commandbus.shards.spanning import SpanningBus

#: Between two attempts to take a reply of a domain that is on its way, in seconds.
AGAIN_SECONDS = 0.5


async def wait_reply(bus: SpanningBus, domain: str, command_id: UUID, timeout: float) -> Reply:
    """The reply, from the shard that has it by then.

    No reply is lost by the change: one that was taken was given out before the domain was closed,
    and a closed domain gives out none.
    """
    check_timeout(timeout)
    end = time.monotonic() + timeout
    while True:
        name = bus.sharded.shard_of(domain)
        shard = await bus.sharded.shard(name)
        left = max(end - time.monotonic(), 0.001)
        waiting = asyncio.create_task(shard.wait_reply(domain, command_id, timeout=left))
        moving = asyncio.create_task(bus._moved(domain, name))
        try:
            await asyncio.wait([waiting, moving], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                with named(bus.sharded, name):
                    return waiting.result()
        except DomainMovingError:
            if time.monotonic() >= end:
                raise
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            waiting.cancel()
            moving.cancel()
            await asyncio.gather(waiting, moving, return_exceptions=True)


async def load(call: Call) -> Any:
    """A load whose domain moves meanwhile goes on where it is then, after its last checkpoint: if
    its source can be read once more from the beginning.
    """
    domain, kwargs = check_domain(call.given["domain"]), dict(call.kwargs)
    if call.path == "loads.load" and call.given["batch_id"] is None:
        kwargs["batch_id"] = new_id()  # so that the second call is about the same load
    again = replace(call, kwargs=kwargs)
    source = call.given["source"]
    if not any(hasattr(source, name) for name in ("__next__", "__anext__", "read")):
        return await again.in_domain(domain)
    try:
        return await again.at(call.sharded.shard_of(domain))
    except DomainMovedError as error:
        await call.sharded.look_at_maps()  # so that `resume` finds it
        batch_id = kwargs.get("batch_id", call.given["batch_id"])
        raise DomainMovedError(
            f"{error}; its source cannot be read twice: open it again, and go on with "
            f"loads.resume({domain!r}, {str(batch_id)!r}, source)"
        ) from error


def found_by(
    name: str, what: str, read: Callable[[Any, Any], Awaitable[Any]]
) -> Callable[[Call], Awaitable[Any]]:
    """On the shard that has the thing of this id; all are asked for it, by its key."""

    async def rule(call: Call) -> Any:
        wanted = check_uuid(call.given[name], name)
        seen: dict[str, Any] = {}

        async def look(bus: Any) -> Any:
            found = await read(bus, wanted)
            if found is not None:
                seen[call.sharded.name_of(bus)] = found
            return found

        place = await call.first(look, f"{what} {wanted}")
        if place is None:
            # One that is nowhere: any shard says so in its own words.
            return await call.at(call.sharded.map.home_shard)
        return await call.at(await _of_two(call, place, seen[place].domain, look))

    return rule


async def _of_two(
    call: Call, place: str, domain: str, look: Callable[[Any], Awaitable[Any]]
) -> str:
    """Where a thing is that was found on one shard: while its domain moves it may be on two, and
    the copy is not the one that counts. What a domain left behind is on the other alone.
    """
    home = call.sharded.find(domain)
    if home is None or home == place:
        return place
    with named(call.sharded, home):
        is_there = await look(await call.sharded.answering(home)) is not None
    return home if is_there else place

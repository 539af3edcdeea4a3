"""Waiting for a reply while the domain may move: it comes where the domain is then."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from uuid import UUID

from commandbus.errors import DomainMovingError
from commandbus.models import Reply
from commandbus.settings import check_timeout
from commandbus.shards.call import named

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

"""What the forked processes are: a worker, and the kinds of producers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from faults.producing import cross, produce, send_identical
from faults.working import work

Role = Callable[[dict[str, Any]], None]


def _running(main: Callable[[dict[str, Any]], Awaitable[None]]) -> Role:
    def role(config: dict[str, Any]) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")

        async def entry() -> None:
            await main(config)

        asyncio.run(entry())

    return role


ROLES: dict[str, Role] = {
    "worker": _running(work),
    "producer": _running(produce),
    "crossing": _running(cross),
    "identical": _running(send_identical),
}

"""The option `--http` of `worker`: metrics and health on a port of the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from commandbus.bus import CommandBus
from commandbus.cli.declared import option

if TYPE_CHECKING:
    import socket

_log = logging.getLogger("commandbus.cli")

Http = Annotated[
    str | None,
    option(
        "--http",
        metavar="HOST:PORT",
        help="Serve /metrics, /livez, /readyz and /startupz there. Default: not at all.",
    ),
]


def bound(address: str | None) -> socket.socket | None:
    """Take the address before anything is started: if it is taken, nothing is."""
    if address is None:
        return None
    from commandbus.monitoring.server import Address

    return Address.parse(address).bind()


@asynccontextmanager
async def monitored(bus: CommandBus, sock: socket.socket | None) -> AsyncIterator[None]:
    """Measure the bus, and serve that, while a block runs."""
    if sock is None:
        yield
        return
    from commandbus.monitoring.server import MonitorServer

    monitor = bus.monitor()
    watching = asyncio.create_task(monitor.watch_loop())
    server = MonitorServer(sock, monitor.pages())
    server.start()
    _log.info("metrics and health are at %s", server.url)
    try:
        yield
    finally:
        watching.cancel()
        server.stop()

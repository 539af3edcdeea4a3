"""Where a worker shows its metrics and its health: on a port (`--http`), in a file
(`--health-file`), or to the parent that started several of them (`--processes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from commandbus.bus import CommandBus
from commandbus.cli.declared import option

if TYPE_CHECKING:
    import socket

    from commandbus.monitoring.server import Pages

_log = logging.getLogger("commandbus.cli")

Http = Annotated[
    str | None,
    option(
        "--http",
        metavar="HOST:PORT",
        help="Serve /metrics, /livez, /readyz and /startupz there. Default: not at all.",
    ),
]
HealthFilePath = Annotated[
    Path | None,
    option(
        "--health-file",
        metavar="FILE",
        help="Write the health there every two seconds, for `commandbus health --file`.",
    ),
]
Counted = Annotated[
    bool,
    option(
        "--counts",
        help="Add what was counted to the database every five seconds, for metrics of the service.",
    ),
]


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a worker shows how it is."""

    http: Http = None
    health_file: HealthFilePath = None
    counts: Counted = False

    @property
    def is_here(self) -> bool:
        """Whether on this machine."""
        return self.http is not None or self.health_file is not None

    @contextmanager
    def of(self, pages: Pages, sock: socket.socket | None) -> Iterator[None]:
        """Show these pages while a block runs."""
        from commandbus.monitoring.health_file import HealthFile
        from commandbus.monitoring.server import MonitorServer

        server = None if sock is None else MonitorServer(sock, pages)
        file = None if self.health_file is None else HealthFile(self.health_file, pages)
        if file is not None:
            file.start()
        if server is not None:
            server.start()
            _log.info("metrics and health are at %s", server.url)
        try:
            yield
        finally:
            if server is not None:
                server.stop()
            if file is not None:
                file.stop()


def bound(address: str | None) -> socket.socket | None:
    """Take the address before anything is started: if it is taken, nothing is."""
    if address is None:
        return None
    from commandbus.monitoring.server import Address

    return Address.parse(address).bind()


@asynccontextmanager
async def monitored(
    bus: CommandBus, shown: Shown, sock: socket.socket | None, reports_to: int | None = None
) -> AsyncIterator[None]:
    """Measure the bus, and show that, while a block runs; `reports_to`: a pipe of the parent."""
    if not shown.is_here and not shown.counts and reports_to is None:
        yield
        return
    monitor = bus.monitor(counts=shown.counts)
    watching = asyncio.create_task(monitor.watch_loop())
    try:
        if reports_to is None:
            with shown.of(monitor.pages(), sock):
                yield
            return
        from commandbus.monitoring.reports import Reporter

        reporter = Reporter(reports_to, monitor)
        reporter.start()
        try:
            yield
        finally:
            reporter.stop()
    finally:
        watching.cancel()

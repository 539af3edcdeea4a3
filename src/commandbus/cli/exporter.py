"""`exporter`: the metrics of a database, where there is no HTTP service that shows them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated

from commandbus.cli.declared import option
from commandbus.cli.frame import WAIT_SECONDS, Frame, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.worker import run_until_signal, run_until_stopped
from commandbus.errors import CommandBusError
from commandbus.monitoring.exposition import exposition
from commandbus.monitoring.server import Address, MonitorServer, Pages
from commandbus.privacy.redaction import redact_text
from commandbus.upkeep.figures import Figures
from commandbus.upkeep.gauges import gauges, no_database

#: The answer of the database is kept for so long, however many ask.
CACHE_SECONDS = 5.0
#: How long a scrape waits for the database.
SCRAPE_SECONDS = 8.0

_log = logging.getLogger("commandbus.exporter")


class DatabaseText:
    """The gauges of a database, asked for at most every few seconds."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._read_at = float("-inf")
        self._text = b""

    def text(self) -> bytes:
        """From the thread of the server; the statements run on the loop of the pool."""
        if time.monotonic() - self._read_at >= CACHE_SECONDS:
            asking = asyncio.run_coroutine_threadsafe(self.read(), self._loop)
            try:
                self._text = asking.result(SCRAPE_SECONDS)
            except TimeoutError:
                asking.cancel()
                self._text = exposition(no_database())
            self._read_at = time.monotonic()
        return self._text

    async def read(self) -> bytes:
        """Ask the database now."""
        figures = self._figures
        try:
            domains, limits = await figures.domains(), await figures.limits()
            counts, shards = await figures.worker_counts(), await figures.shards()
        except CommandBusError as error:
            _log.warning("the database does not answer: %s", redact_text(str(error)))
            return exposition(no_database())
        return exposition(gauges(domains, limits, figures.pool(), counts, shards))


def exporter(
    *,
    http: Annotated[
        str, option("--http", metavar="HOST:PORT", help="Where to serve /metrics and /livez.")
    ] = "127.0.0.1:8082",
    wait: WaitForServer = WAIT_SECONDS,
    logs: Logs,
    place: Place,
) -> None:
    """Serve what the database knows of its domains as metrics, until Ctrl-C or SIGTERM.

    `commandbus serve` shows the same: one of the two is enough for a database.
    """
    logs.start()
    sock = Address.parse(http).bind()

    async def work() -> bool:
        async with Frame(place=place).open(wait_seconds=wait) as session:
            source = DatabaseText(session.bus.upkeep.figures)
            server = MonitorServer(sock, Pages(source.text, {"/livez": list}))
            server.start()
            _log.info("metrics of the database are at %s/metrics", server.url)
            try:
                return await run_until_signal(session.bus, [_for_ever()], None, lambda: None)
            finally:
                server.stop()

    run_until_stopped(work)


async def _for_ever() -> None:
    await asyncio.Event().wait()

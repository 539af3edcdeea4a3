"""What open pages cost, and how quick they are, while 500 commands a second go through:
`make console-load`.

First fifty streams of ten distinct views, as browsers hold them, for a minute. Then, with Chromium,
the time to the first paint, from a change in the database to the pixel, and how far a page moves
while it is live. The service and those who send and work are processes of their own, so that their
shares of a core can be read.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, Settings, new_id
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database
from tests.console.browser import eyes
from tests.console.browser.seeded import World, full

PAGES = 50
SECONDS = float(os.environ.get("CONSOLE_SECONDS", "60"))
#: Commands a second that are sent and done meanwhile.
RATE = int(os.environ.get("CONSOLE_RATE", "500"))
VIEWS = (
    "/", "/workers", "/domains/payments", "/batches", "/approvals", "/commands?domain=email",
    "/troubleshooting", "/bulk", "/loads", "/commands/payments/{command_id}",
)  # fmt: skip
#: Of one core, and kilobytes for each page: of memory, and a second.
MOST_PERCENT, MOST_MEMORY, MOST_SENT = 2.0, 50.0, 1.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


async def watch(client: httpx2.AsyncClient, path: str, got: list[int]) -> None:
    async with client.stream("GET", f"/console/live{path}", timeout=None) as answer:
        assert answer.status_code == 200, answer.status_code
        async for chunk in answer.aiter_bytes():
            got[0] += len(chunk)


async def measure(url: str, pid: int, world: World) -> bool:
    """What the pages cost beside what the service does anyway; whether that is little."""
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {world.tokens['ada']}"}
    views = [each.format_map(world.ids) for each in VIEWS]
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits) as client:
        for view in views:  # what the first look makes is there for all that follow
            answer = await client.get(f"/console{view}", headers={"Accept": "text/html"})
            assert answer.status_code == 200, (view, answer.status_code)
        await asyncio.sleep(3)
        idle_began, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(min(SECONDS, 15))
        idle = (cpu_seconds(pid) - idle_began) / (time.monotonic() - at) * 100
        before, got = memory_kb(pid), [0]
        tasks = [
            asyncio.create_task(watch(client, views[n % len(views)], got)) for n in range(PAGES)
        ]
        await asyncio.sleep(5)
        got[0] = 0
        began, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(SECONDS)
        took = time.monotonic() - at
        share = (cpu_seconds(pid) - began) / took * 100
        memory = (memory_kb(pid) - before) / PAGES
        sent = got[0] / took / PAGES / 1024
        ended = [each for each in tasks if each.done()]
        for each in tasks:
            each.cancel()
        print(
            f"{PAGES} open pages of {len(views)} views for {took:.0f} s: {share:.1f} % of a core "
            f"({idle:.1f} % without them), {memory:.0f} kB and {sent:.2f} kB/s each; "
            f"{len(ended)} ended early"
        )
        little = share - idle <= MOST_PERCENT and memory <= MOST_MEMORY and sent <= MOST_SENT
        return little and not ended


async def prepare(dsn: str) -> World:
    async with CommandBus.connect(dsn) as bus:
        return await full(bus, World())


async def work(dsn: str) -> None:
    """Send so many commands a second, and do them, until the process is ended."""
    async with CommandBus.connect(dsn) as bus:
        bus.register_handler("payments", "Tick", _nothing)
        worker = asyncio.create_task(bus.run_worker("payments", concurrency=20))
        while not worker.done():
            began = time.monotonic()
            ticks = [BatchCommand("Tick", new_id(), {}) for _ in range(max(1, RATE // 10))]
            await bus.send_many("payments", ticks)
            await asyncio.sleep(max(0, 0.1 - (time.monotonic() - began)))


async def _nothing(command: Command, ctx: HandlerContext) -> None:
    return None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def process(*words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended at the end of the block."""
    found = subprocess.Popen(
        words, env=os.environ | more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield found
    finally:
        found.send_signal(signal.SIGTERM)
        try:
            found.wait(30)
        except subprocess.TimeoutExpired:
            found.kill()


def answers(url: str) -> None:
    """Wait until the service does."""
    for _ in range(300):
        try:
            if httpx2.get(f"{url}/livez").status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError("the service does not answer")


def run(dsn: str) -> bool:
    port, service = free_port(), str(Path(sys.executable).parent / "commandbus")
    world = asyncio.run(prepare(dsn))
    url, loose = f"http://127.0.0.1:{port}", {
        f"COMMANDBUS_HTTP_{name}": "1000000"
        for name in ("MAX_USER_REQUESTS", "MAX_ADDRESS_REQUESTS")
    }  # fmt: skip
    shares = {"COMMANDBUS_HTTP_USER_SHARE": "1", "COMMANDBUS_HTTP_TOKEN_SHARE": "1"}
    with process(
        service, "serve", "--port", str(port), COMMANDBUS_DSN=dsn, **loose, **shares
    ) as served:
        answers(url)
        is_quick = eyes.paints(url, world)
        with process(sys.executable, "-m", "tests.console.browser.load", "work", dsn):
            is_little = asyncio.run(measure(url, served.pid, world))
            return eyes.follows(url, world, dsn) and is_little and is_quick


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(sys.argv[2]))
        return
    data = Path(tempfile.mkdtemp(prefix="commandbus-load-"))
    try:
        with EmbeddedPostgres(data) as database:
            asyncio.run(migrate_database(database.dsn, Settings()))
            sys.exit(0 if run(database.dsn) else 1)
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()

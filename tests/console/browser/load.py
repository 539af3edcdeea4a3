"""What fifty open pages of the console cost the service, for a minute: `make console-load`.

Fifty streams of ten distinct views, as browsers hold them; the service is a process of its own, so
that its share of a core can be read.
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
from pathlib import Path

import httpx2

from commandbus import CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database
from tests.console.browser.seeded import World, full

PAGES = 50
SECONDS = float(os.environ.get("CONSOLE_SECONDS", "60"))
VIEWS = ("/", "/workers", "/domains/payments", "/batches", "/approvals")
#: Of one core.
MOST_PERCENT = 2.0


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


async def measure(dsn: str, url: str, pid: int, token: str) -> int:
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits) as client:
        for _ in range(100):
            try:
                await client.get("/healthz")
                break
            except httpx2.HTTPError:
                await asyncio.sleep(0.1)
        await client.get("/console/", headers={"Accept": "text/html"})
        await asyncio.sleep(3)
        idle_began, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(min(SECONDS, 15))
        idle = (cpu_seconds(pid) - idle_began) / (time.monotonic() - at) * 100
        before, got = memory_kb(pid), [0]
        tasks = [
            asyncio.create_task(watch(client, VIEWS[n % len(VIEWS)], got)) for n in range(PAGES)
        ]
        await asyncio.sleep(5)
        got[0] = 0
        began, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(SECONDS)
        took = time.monotonic() - at
        share = (cpu_seconds(pid) - began) / took * 100
        memory = (memory_kb(pid) - before) / PAGES
        ended = [each for each in tasks if each.done()]
        for each in tasks:
            each.cancel()
        print(
            f"{PAGES} open pages of {len(VIEWS)} views for {took:.0f} s: {share:.1f} % of a core "
            f"({idle:.1f} % without them), {memory:.0f} kB and "
            f"{got[0] / took / PAGES / 1024:.2f} kB/s each; {len(ended)} ended early"
        )
        return int(share - idle > MOST_PERCENT or bool(ended))


async def prepare(dsn: str) -> World:
    async with CommandBus.connect(dsn) as bus:
        return await full(bus, World())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    data = Path(tempfile.mkdtemp(prefix="commandbus-load-"))
    try:
        with EmbeddedPostgres(data) as database:
            dsn, port = database.dsn, free_port()
            asyncio.run(migrate_database(dsn, Settings()))
            world = asyncio.run(prepare(dsn))
            program = [str(Path(sys.executable).parent / "commandbus"), "serve"]
            service = subprocess.Popen(
                [*program, "--port", str(port)],
                env=os.environ | {"COMMANDBUS_DSN": dsn, "COMMANDBUS_HTTP_USER_SHARE": "1",
                                  "COMMANDBUS_HTTP_TOKEN_SHARE": "1"},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                url = f"http://127.0.0.1:{port}"
                code = asyncio.run(measure(dsn, url, service.pid, world.tokens["ada"]))
            finally:
                service.send_signal(signal.SIGTERM)
                service.wait(30)
            sys.exit(code)
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()

"""`commandbus worker --http` as a process: busy port, blocked loop, stuck threads."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from commandbus import CommandBus
from commandbus.cli.probe import ask
from tests.acceptance.programs import Program, program
from tests.waiting import until, until_status

APP = """
import time, threading
from commandbus import RetryPolicy

def setup(bus):
    @bus.handler("shop", "Quick")
    async def quick(command, ctx):
        pass

    @bus.handler("shop", "Block")
    async def block(command, ctx):
        time.sleep(14)

    @bus.handler("shop", "Stuck", timeout_seconds=0.05, retry_policy=RetryPolicy(max_attempts=1))
    def stuck(command, ctx):
        threading.Event().wait()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="commandbus-monitoring-"))
    (made / "shop_app.py").write_text(APP)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def port_of(worker: Program) -> int:
    found = await until(
        lambda: re.search(r"health are at http://127\.0\.0\.1:(\d+)", worker.logged), "its port"
    )
    return int(found[1])


async def page(port: int, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(ask, "127.0.0.1", port, path)


async def is_at(port: int, path: str, status: int) -> bool:
    return (await page(port, path))[0] == status


async def test_a_busy_port_ends_the_start_with_exit_code_2(dsn: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "commandbus", "worker", "shop_app:setup", "--dsn", dsn,
            "--http", address, cwd=folder, stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
        )  # fmt: skip
        _, errors = await run.communicate()

    assert run.returncode == 2
    assert b"cannot listen on 127.0.0.1" in errors


async def test_a_worker_serves_its_metrics_and_health(
    dsn: str, bus: CommandBus, folder: Path
) -> None:
    arguments = ("worker", "shop_app:setup", "-c", "1", "--http", "127.0.0.1:0")
    async with program(folder, *arguments, dsn=dsn) as worker:
        port = await port_of(worker)
        await until(lambda: is_at(port, "/startupz", 200), "the start")
        await until(lambda: is_at(port, "/readyz", 200), "a ready worker")
        sent = await bus.send("shop", "Quick", uuid4(), {})
        await until_status(bus, "shop", sent, "COMPLETED")

        async def is_counted() -> bool:
            text = (await page(port, "/metrics"))[1]
            series = 'commandbus_commands_total{domain="shop",type="Quick",outcome="completed"} 1'
            return series in text

        await until(is_counted, "the metric")
        await bus.send("shop", "Stuck", uuid4(), {})
        await until(lambda: is_at(port, "/readyz", 503), "a stuck worker")
        assert "handlers that hang" in (await page(port, "/readyz"))[1]
        assert (await page(port, "/livez"))[0] == 200
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0


@pytest.mark.long
async def test_a_blocked_loop_is_not_live(dsn: str, bus: CommandBus, folder: Path) -> None:
    arguments = ("worker", "shop_app:setup", "--http", "127.0.0.1:0")
    async with program(folder, *arguments, dsn=dsn) as worker:
        port = await port_of(worker)
        await until(lambda: is_at(port, "/readyz", 200), "a ready worker")
        await bus.send("shop", "Block", uuid4(), {})
        await until(lambda: is_at(port, "/livez", 503), "a blocked loop")
        assert "event loop has been blocked" in (await page(port, "/livez"))[1]
        await until(lambda: is_at(port, "/livez", 200), "a loop that turns again")

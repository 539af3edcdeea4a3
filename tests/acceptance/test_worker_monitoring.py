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
from commandbus.cli.probe import run as probe
from tests.acceptance.programs import Program, program
from tests.waiting import until, until_status

APP = """
import os, pathlib, threading, time
from commandbus import RetryPolicy

def setup(bus):
    bus.monitor().health.live_seconds = float(os.environ.get("LIVE_SECONDS", "10"))

    @bus.handler("shop", "Quick")
    async def quick(command, ctx):
        pass

    @bus.handler("shop", "Block")
    async def block(command, ctx):
        while not pathlib.Path("go-on").exists():
            time.sleep(0.01)

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
async def test_a_worker_whose_threads_are_all_stuck_gives_up_if_it_is_told_to(
    dsn: str, bus: CommandBus, folder: Path
) -> None:
    options = ("-c", "1", "--http", "127.0.0.1:0", "--exit-when-stuck", "0.5")
    async with program(folder, "worker", "shop_app:setup", *options, dsn=dsn) as worker:
        await port_of(worker)
        sent = await bus.send("shop", "Stuck", uuid4(), {})
        assert await worker.ended() == 1
    assert "all places of shop for 0.5 s" in worker.logged
    found = await bus.get_command("shop", sent)
    assert found is not None
    assert found.leased_by is None


@pytest.mark.long
async def test_processes_of_one_parent_share_a_port_a_file_and_an_exit_code(
    dsn: str, bus: CommandBus, folder: Path
) -> None:
    """Two processes: one is killed and started again, nothing is counted away; a stop ends all."""
    options = ("--processes", "2", "--http", "127.0.0.1:0", "--health-file", "health")
    async with program(folder, "worker", "shop_app:setup", *options, dsn=dsn) as worker:
        port = await port_of(worker)
        await until(lambda: is_at(port, "/readyz", 200), "both to be ready")
        for _ in range(20):
            await bus.send("shop", "Quick", uuid4(), {})
        completed = 'commandbus_commands_total{domain="shop",type="Quick",outcome="completed"} 20'

        async def has_counted() -> bool:
            return completed in (await page(port, "/metrics"))[1]

        await until(has_counted, "20 commands in the sum of both")
        first = re.search(r"worker process 1 is (\d+)", worker.logged)
        assert first is not None
        os.kill(int(first[1]), signal.SIGKILL)
        await worker.until_logged("killed by SIGKILL; it is started again")
        await until(lambda: is_at(port, "/readyz", 200), "both to be ready again")
        assert await has_counted()
        assert "commandbus_process_restarts_total 1" in (await page(port, "/metrics"))[1]
        asked = await asyncio.to_thread(probe, ["--file", str(folder / "health")])
        assert asked == 0
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert not (folder / "health").exists()


async def test_a_process_does_not_outlive_its_parent(dsn: str, folder: Path) -> None:
    async with program(
        folder, "worker", "shop_app:setup", "--processes", "2", dsn=dsn
    ) as worker:  # fmt: skip
        await until(lambda: worker.logged.count("serves shop") == 2, "two workers")
        worker.signal(signal.SIGKILL)
        # Both hold the pipes of the program's output: it ends with the last of them.
        await worker.ended()
    assert worker.logged.count("has stopped") == 2


async def test_an_app_that_is_none_ends_all_processes_with_exit_code_2(
    dsn: str, folder: Path
) -> None:
    async with program(
        folder, "worker", "shop_app:nothing", "--processes", "2", dsn=dsn
    ) as worker:  # fmt: skip
        assert await worker.ended() == 2
    assert "has no attribute" in worker.logged
    assert "started again" not in worker.logged


async def test_a_blocked_loop_is_not_live(
    dsn: str, bus: CommandBus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVE_SECONDS", "1")  # two turns of the loop that are watched
    arguments = ("worker", "shop_app:setup", "--http", "127.0.0.1:0")
    async with program(folder, *arguments, dsn=dsn) as worker:
        port = await port_of(worker)
        await until(lambda: is_at(port, "/readyz", 200), "a ready worker")
        await bus.send("shop", "Block", uuid4(), {})
        await until(lambda: is_at(port, "/livez", 503), "a blocked loop")
        assert "event loop has been blocked" in (await page(port, "/livez"))[1]
        (folder / "go-on").touch()
        await until(lambda: is_at(port, "/livez", 200), "a loop that turns again")

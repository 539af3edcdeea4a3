"""`commandbus worker` and `commandbus up` as processes, stopped as an operating system does it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from commandbus import CommandBus
from tests.acceptance.programs import program
from tests.waiting import PATIENCE, until, until_status

APP = """
import asyncio, os, threading, time
from contextlib import asynccontextmanager
from pathlib import Path
from commandbus import CommandBus

def setup(bus):
    @bus.handler("shop", "Quick")
    async def quick(command, ctx):
        return {"pid": os.getpid()}

    @bus.handler("shop", "Gated")
    async def gated(command, ctx):
        while not Path("gate").exists():
            await asyncio.sleep(0.01)

    @bus.handler("shop", "Stuck")
    def stuck(command, ctx):
        Path("stuck").touch()
        threading.Event().wait()

@asynccontextmanager
async def own_bus():
    async with CommandBus.connect() as bus:
        setup(bus)
        yield bus
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the application lives; readable by the account of an embedded server."""
    made = Path(tempfile.mkdtemp(prefix="commandbus-worker-"))
    made.chmod(0o755)
    (made / "shop_app.py").write_text(APP)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def send(bus: CommandBus, command_type: str) -> UUID:
    return await bus.send("shop", command_type, uuid4(), {})


async def test_sigterm_lets_a_running_handler_finish_and_takes_nothing_new(
    bus: CommandBus, dsn: str, folder: Path
) -> None:
    async with program(folder, "worker", "shop_app:setup", "-c", "1", dsn=dsn) as worker:
        running = await send(bus, "Gated")
        await until_status(bus, "shop", running, "IN_PROGRESS")
        waiting = await send(bus, "Quick")

        worker.signal(signal.SIGTERM)
        await worker.until_logged("a second signal stops at once")
        (folder / "gate").touch()

        assert await worker.ended() == 0
    finished = await bus.get_command("shop", running)
    left = await bus.get_command("shop", waiting)
    assert finished is not None
    assert finished.status == "COMPLETED"
    assert left is not None
    assert (left.status, left.leased_by) == ("PENDING", None)


async def test_what_runs_on_after_the_grace_goes_back_and_the_process_ends_in_time(
    bus: CommandBus, dsn: str, folder: Path
) -> None:
    grace = "0.5"
    async with program(
        folder, "worker", "shop_app:setup", dsn=dsn, shutdown_grace_seconds=grace
    ) as worker:
        running = await send(bus, "Gated")
        await until_status(bus, "shop", running, "IN_PROGRESS")

        began = time.monotonic()
        worker.signal(signal.SIGTERM)

        assert await worker.ended() == 0
        # What deploy/ allows beyond the grace before it kills.
        assert time.monotonic() - began < float(grace) + 15
    left = await bus.get_command("shop", running)
    assert left is not None
    assert (left.status, left.leased_by, left.attempts) == ("PENDING", None, 0)


async def test_a_second_sigterm_ends_it_at_once_and_gives_the_lease_back(
    bus: CommandBus, dsn: str, folder: Path
) -> None:
    async with program(folder, "worker", "shop_app:setup", dsn=dsn) as worker:
        running = await send(bus, "Gated")
        await until_status(bus, "shop", running, "IN_PROGRESS")
        worker.signal(signal.SIGTERM)
        await worker.until_logged("a second signal stops at once")

        began = time.monotonic()
        worker.signal(signal.SIGTERM)

        assert await worker.ended() == 130
        assert time.monotonic() - began < 10
    assert "error: stopped at once" in worker.logged
    left = await bus.get_command("shop", running)
    assert left is not None
    assert (left.status, left.leased_by, left.attempts) == ("PENDING", None, 0)


async def test_a_handler_that_hangs_in_a_thread_does_not_keep_the_process(
    bus: CommandBus, dsn: str, folder: Path
) -> None:
    async with program(folder, "worker", "shop_app:setup", dsn=dsn) as worker:
        await send(bus, "Stuck")
        await until((folder / "stuck").exists, "a handler that hangs")
        worker.signal(signal.SIGINT)
        await worker.until_logged("a second signal stops at once")

        worker.signal(signal.SIGINT)

        assert await worker.ended() == 130
    assert "the process ends without it" in worker.logged


async def test_a_worker_without_a_database_says_so_in_one_line(folder: Path) -> None:
    dsn = "host=127.0.0.1 port=1 password=geheim"

    async with program(folder, "worker", "shop_app:setup", "--wait", "0", dsn=dsn) as worker:
        assert await worker.ended() == 4

    assert worker.logged.startswith("error: cannot reach PostgreSQL")
    assert worker.logged.count("\n") == 1
    assert "geheim" not in worker.logged


async def test_an_app_that_is_not_there_is_a_usage_error(folder: Path) -> None:
    async with program(folder, "worker", "shop_ap:setup") as worker:
        assert await worker.ended() == 2

    assert worker.logged.startswith("error: no module 'shop_ap'")


@pytest.mark.long
@pytest.mark.parametrize("app", ["shop_app:setup", "shop_app:own_bus"])
async def test_up_brings_a_server_that_other_processes_can_use(folder: Path, app: str) -> None:
    arguments = ("up", app, "--data-dir", str(folder / "data"), "--log-level", "warning")
    async with program(folder, *arguments) as up:
        # A new server is made on the disk, which other tests keep busy.
        await until(lambda: "Stop with Ctrl-C" in up.printed, "an up that is up", 3 * PATIENCE)
        send_it = ("send", "shop", "Quick", "--wait", "20", "--data-dir", str(folder / "data"))
        async with program(folder, *send_it) as sender:
            assert await sender.ended() == 0
        assert f'"pid": {up.process.pid}' in sender.printed

        up.signal(signal.SIGINT)
        assert await up.ended() == 0
    assert up.logged == ""
    assert "password" not in up.printed
    assert not (folder / "data" / "postmaster.pid").exists()


async def test_up_on_a_database_that_was_given_shows_no_password(dsn: str, folder: Path) -> None:
    async with program(folder, "up", "shop_app:setup", "--dsn", dsn, "--no-notify") as up:
        await until(lambda: "Stop with Ctrl-C" in up.printed, "an up that is up")
        up.signal(signal.SIGTERM)
        assert await up.ended() == 0

    assert "database  as given" in up.printed
    assert "password" not in up.printed

"""What a service manager is told, received on a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from commandbus import CommandBus
from commandbus.cli.systemd import Manager
from commandbus.cli.worker import run_until_signal
from tests.waiting import until


class Receiver:
    """The manager's end; it never waits."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)
        self.heard: list[str] = []

    def hears(self, message: str) -> bool:
        try:
            while True:
                self.heard.append(self.socket.recv(1_000).decode())
        except BlockingIOError:
            return message in self.heard


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(str(tmp_path / "notify"))
    yield made
    made.socket.close()


class StandIn:
    async def stop(self) -> None: ...


async def test_the_manager_hears_of_the_start_of_life_and_of_the_end(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    is_started = False
    looks: list[bool] = []

    def is_ready() -> bool:
        looks.append(is_started)
        return is_started

    async def work() -> None:
        await asyncio.Event().wait()

    bus = cast("CommandBus", StandIn())
    running = asyncio.create_task(
        run_until_signal(bus, [work()], None, lambda: None, is_ready=is_ready)
    )
    await until(lambda: len(looks) > 1)
    assert not receiver.hears("READY=1")

    is_started = True
    await until(lambda: receiver.hears("READY=1"))
    await until(lambda: receiver.hears("") or receiver.heard.count("WATCHDOG=1") > 2)
    assert not receiver.hears("STOPPING=1")

    os.kill(os.getpid(), signal.SIGTERM)
    assert await running
    assert receiver.hears("STOPPING=1")
    assert receiver.heard[0] == "READY=1"


async def test_a_name_outside_the_file_system_is_found() -> None:
    name = f"commandbus-test-{os.getpid()}"
    made = Receiver(f"\0{name}")

    await Manager(f"@{name}", None).attend(lambda: True)

    assert made.hears("READY=1")
    made.socket.close()


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    Manager(str(tmp_path / "nobody"), None).tell("READY=1")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Manager(None, None)),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"}, Manager("/x", 15.0)),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}, Manager("/x", None)),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, Manager("/x", None)),
    ],
)
def test_what_the_manager_wants_is_read(environ: dict[str, str], expected: Manager) -> None:
    assert Manager.from_env(environ) == expected

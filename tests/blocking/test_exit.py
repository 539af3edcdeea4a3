"""The end of a process that forgot to close its clients."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from commandbus.blocking import bridge as module
from commandbus.blocking.bridge import Bridge

NUMBER = 5
SECONDS = 0.3


class Slow:
    """Buses whose closing waits for the test."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.bridges: list[Bridge] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        yield object()
        self.is_over.wait(30)  # a close that hangs, of a driver for instance

    def open(self) -> Bridge:
        bridge = Bridge(cast("Any", self.connect), cast("Any", None))
        bridge.open()
        self.bridges.append(bridge)
        return bridge


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(module, "EXIT_SECONDS", SECONDS)
    made = Slow()
    yield made
    made.is_over.set()
    for bridge in made.bridges:
        bridge.close()


def test_clients_that_nobody_closed_close_together_at_the_end(slow: Slow) -> None:
    threads = [slow.open()._opened for _ in range(NUMBER)]
    began = time.monotonic()
    module._close_all()
    assert SECONDS <= time.monotonic() - began < 2 * SECONDS
    slow.is_over.set()
    for opened in threads:
        assert opened is not None
        opened.thread.join(10)  # each was asked
        assert not opened.thread.is_alive()


def test_a_thread_that_opens_a_client_does_not_hold_the_end_up(slow: Slow) -> None:
    busy, other = slow.open(), slow.open()
    has_it, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with busy._lock:
            has_it.set()
            may_go.wait(30)

    opening = threading.Thread(target=hold)
    opening.start()
    assert has_it.wait(10)
    began = time.monotonic()
    module._close_all()
    assert time.monotonic() - began < 2 * SECONDS
    assert other._is_closed
    assert not busy._is_closed
    may_go.set()
    opening.join()

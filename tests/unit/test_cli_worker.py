"""Serving: which domains, and what signals do. The bus is a stand-in; no database is needed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from commandbus import CommandBus, DatabaseUnavailableError
from commandbus.cli.apps import AppError
from commandbus.cli.ending import exit_code_of
from commandbus.cli.worker import End, Workers, run_until_stopped, serve, shell_quoted
from commandbus.errors import DomainPausedError, InvalidInputError
from tests.unit.stubs import turns


class StandIn:
    """Works until stopped; a slow one only ends when it is cancelled."""

    def __init__(self, *, is_slow: bool = False, error: Exception | None = None) -> None:
        self.domains = ["returns", "shop"]
        self.served: list[str] = []
        self.cancelled: list[str] = []
        self.running = asyncio.Event()
        self._is_slow = is_slow
        self._error = error
        self._stopped = asyncio.Event()
        self.stopping = asyncio.Event()

    async def run_worker(self, domain: str, **options: object) -> None:
        self.served.append(domain)
        self.options = options
        self.running.set()
        if self._error is not None and domain == "shop":
            raise self._error
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            self.cancelled.append(domain)
            raise

    async def stop(self) -> None:
        self.stopping.set()
        if self._is_slow:
            await asyncio.Event().wait()
        self._stopped.set()


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Other tests look at what the collector finds."""
    yield
    gc.unfreeze()


def serving(bus: StandIn, *domains: str) -> asyncio.Task[bool]:
    workers = Workers(list(domains), concurrency=3, vt_seconds=20, no_notify=True)
    return asyncio.create_task(serve(cast("CommandBus", bus), "shop:setup", workers))


async def test_all_domains_are_served_with_the_options_given() -> None:
    bus = StandIn()
    task = serving(bus)
    await bus.running.wait()

    os.kill(os.getpid(), signal.SIGTERM)

    assert await task
    assert bus.served == ["returns", "shop"]
    assert bus.options == {
        "concurrency": 3,
        "vt_seconds": 20,
        "use_notify": False,
        "until_empty": False,
        "include_delayed": False,
    }
    assert bus.cancelled == []


async def test_what_is_there_when_workers_begin_is_kept_from_the_garbage_collector() -> None:
    bus = StandIn()
    before = gc.get_freeze_count()
    task = serving(bus)
    await bus.running.wait()
    frozen = gc.get_freeze_count()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert frozen > before + 10_000


async def test_a_domain_that_is_named_twice_is_served_once() -> None:
    bus = StandIn()
    task = serving(bus, "shop", "shop")
    await bus.running.wait()

    os.kill(os.getpid(), signal.SIGINT)

    assert await task
    assert bus.served == ["shop"]


async def test_a_second_signal_cancels() -> None:
    bus = StandIn(is_slow=True)
    task = serving(bus)
    await bus.running.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await bus.stopping.wait()

    os.kill(os.getpid(), signal.SIGTERM)

    try:
        assert not await task
        assert sorted(bus.cancelled) == ["returns", "shop"]
        # A third one would be the system's own.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def test_a_worker_that_fails_ends_the_others_and_its_error_is_raised() -> None:
    bus = StandIn(error=DatabaseUnavailableError("gone"))

    with pytest.raises(DatabaseUnavailableError, match="gone"):
        await serving(bus)

    assert bus.cancelled == ["returns"]


class Emptied(StandIn):
    """Its worker of the shop ends first, or fails; the other one once it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(error=error)
        self.may_end = asyncio.Event()

    async def run_worker(self, domain: str, **options: object) -> None:
        self.options = options
        if domain == "shop":
            self.running.set()
            if self._error is not None:
                raise self._error
            return
        try:
            await self.may_end.wait()
            self.served.append(domain)
        except asyncio.CancelledError:
            self.cancelled.append(domain)
            raise


def emptying(bus: StandIn, *, include_delayed: bool = False) -> asyncio.Task[bool]:
    end = End(until_empty=True, include_delayed=include_delayed)
    return asyncio.create_task(serve(cast("CommandBus", bus), "shop:setup", Workers(), end=end))


async def test_all_workers_that_end_by_themselves_are_waited_for() -> None:
    bus = Emptied()
    task = emptying(bus, include_delayed=True)
    await bus.running.wait()
    await turns()
    assert not task.done()

    bus.may_end.set()

    assert await task
    assert bus.served == ["returns"]
    assert bus.options["until_empty"] is bus.options["include_delayed"] is True


async def test_a_paused_domain_lets_the_others_finish() -> None:
    bus = Emptied(DomainPausedError("shop"))
    task = emptying(bus)
    await bus.running.wait()
    await turns()
    bus.may_end.set()

    with pytest.raises(DomainPausedError, match="'shop' is paused"):
        await task

    assert (bus.served, bus.cancelled) == (["returns"], [])
    assert exit_code_of(DomainPausedError("shop")) == 6


async def test_a_worker_that_fails_ends_those_that_would_end_by_themselves() -> None:
    bus = Emptied(DatabaseUnavailableError("gone"))

    with pytest.raises(DatabaseUnavailableError, match="gone"):
        await emptying(bus)

    assert bus.cancelled == ["returns"]


async def test_a_signal_ends_workers_that_would_end_by_themselves() -> None:
    bus = StandIn()
    task = emptying(bus)
    await bus.running.wait()

    os.kill(os.getpid(), signal.SIGTERM)

    assert await task
    assert bus.cancelled == []


def test_delayed_commands_without_an_end_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="--until-empty"):
        End(include_delayed=True)


async def test_an_app_without_handlers_is_refused() -> None:
    bus = StandIn()
    bus.domains = []

    with pytest.raises(AppError, match="registers no handlers"):
        await serving(bus)


async def test_a_domain_without_handlers_is_refused() -> None:
    with pytest.raises(AppError, match="no handlers for domain 'bank'; it has returns, shop"):
        await serving(StandIn(), "bank")


def test_an_address_is_quoted_for_the_shell() -> None:
    assert shell_quoted("host=/x hostaddr=''") == "\"host=/x hostaddr=''\""
    assert shell_quoted("password=a$b") == "'password=a$b'"


def test_a_handler_left_in_a_thread_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="commandbus-handler_0")
    thread.start()

    async def work() -> bool:
        return True

    try:
        run_until_stopped(work)
    finally:
        release.set()
        thread.join()

    assert ended == [0]

"""Hooks of handler threads: called in each thread, once, around all its handlers."""

from __future__ import annotations

import logging
import threading
from uuid import uuid4

import pytest

from commandbus import Command, HandlerContext, Handlers
from commandbus.errors import InvalidSettingError
from commandbus.testing import fake_bus
from tests.waiting import until


async def test_hooks_are_called_in_each_handler_thread_around_all_of_its_handlers() -> None:
    noted: dict[int, list[str]] = {}
    together = threading.Barrier(2, timeout=30)

    def note(what: str) -> None:
        noted.setdefault(threading.get_ident(), []).append(what)

    connections = Handlers()
    connections.on_thread_start(lambda: note("open"))
    connections.on_thread_end(lambda: note("close"))
    handlers = Handlers("shop")

    @handlers.on_thread_start
    def begin() -> None:
        note("begin")

    @handlers.on_thread_end
    def end() -> None:
        note("end")

    @handlers.handle("Work")
    def work(command: Command, ctx: HandlerContext) -> None:
        note("work")
        together.wait()

    app = Handlers()
    app.include(connections, handlers)
    app.include(connections)  # a second time it changes nothing
    bus = fake_bus(app)
    for _ in range(4):
        await bus.send("shop", "Work", uuid4(), {})
    await bus.run_worker("shop", concurrency=2, until_empty=True)
    await until(lambda: all(each[-1] == "close" for each in noted.values()), "the threads to end")
    await bus.close()
    assert list(noted.values()) == [["open", "begin", "work", "work", "end", "close"]] * 2
    assert threading.get_ident() not in noted


async def test_a_hook_that_fails_is_logged_and_keeps_no_handler_from_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = Handlers("shop")
    ran: list[int] = []

    @handlers.on_thread_start
    def open_it() -> None:
        raise OSError("password=hunter-two-4711")

    @handlers.handle("Work")
    def work(command: Command, ctx: HandlerContext) -> None:
        ran.append(1)

    bus = fake_bus(handlers)
    await bus.send("shop", "Work", uuid4(), {})
    with caplog.at_level(logging.ERROR):
        await bus.run_worker("shop", until_empty=True)
    await bus.close()
    assert ran == [1]
    assert "open_it, called in a handler thread, failed: OSError" in caplog.text
    assert "hunter" not in caplog.text


async def test_async_handlers_have_no_threads_and_no_hooks() -> None:
    handlers = Handlers("shop")
    called: list[int] = []
    handlers.on_thread_start(lambda: called.append(1))

    @handlers.handle("Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    bus = fake_bus(handlers)
    await bus.send("shop", "Work", uuid4(), {})
    await bus.run_worker("shop", until_empty=True)
    await bus.close()
    assert called == []


def test_a_hook_is_a_plain_function() -> None:
    async def hook() -> None:
        pass

    with pytest.raises(InvalidSettingError, match="on_thread_start takes a `def` function"):
        Handlers().on_thread_start(hook)
    with pytest.raises(InvalidSettingError, match="on_thread_end takes a `def` function"):
        Handlers().on_thread_end("close")  # type: ignore[type-var]

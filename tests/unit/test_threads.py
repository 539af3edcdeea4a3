"""HandlerThreads: calls in daemon threads, with the caller's context, however they end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator

import pytest

from commandbus.worker.threads import HandlerThreads
from tests.waiting import until

word: contextvars.ContextVar[str] = contextvars.ContextVar("word")


@pytest.fixture
async def threads() -> AsyncIterator[HandlerThreads]:
    made = HandlerThreads(2)
    yield made
    made.close()


async def test_a_call_returns_what_the_function_returns(threads: HandlerThreads) -> None:
    assert await threads.run(lambda a, b: a + b, 1, 2) == 3


async def test_a_call_runs_in_a_daemon_thread_with_the_context_of_the_caller(
    threads: HandlerThreads,
) -> None:
    word.set("outside")

    def look() -> tuple[bool, bool, str]:
        found = word.get()
        word.set("inside")
        thread = threading.current_thread()
        return thread.daemon, thread is threading.main_thread(), found

    assert await threads.run(look) == (True, False, "outside")
    assert word.get() == "outside"


@pytest.mark.parametrize(
    ("raised", "caught"),
    [(ValueError("x"), ValueError), (SystemExit(3), SystemExit), (StopIteration(), RuntimeError)],
)
async def test_a_call_raises_what_the_function_raises(
    threads: HandlerThreads, raised: BaseException, caught: type[BaseException]
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(caught) as info:  # noqa: PT012, RUF100
        await threads.run(fail)
    assert raised in (info.value, info.value.__cause__)
    assert await threads.run(lambda: "still there") == "still there"


async def test_no_more_threads_are_started_than_are_needed_or_allowed(
    threads: HandlerThreads,
) -> None:
    for _ in range(5):
        await threads.run(lambda: None)
    assert threads._threads == 1
    together = threading.Barrier(2)
    await asyncio.gather(*(threads.run(together.wait, 30) for _ in range(6)))
    assert threads._threads == 2


async def test_a_cancelled_call_that_has_not_begun_never_begins(threads: HandlerThreads) -> None:
    gate, calls = threading.Event(), list[str]()
    busy = [asyncio.create_task(threads.run(gate.wait, 30)) for _ in range(2)]
    waiting = asyncio.create_task(threads.run(calls.append, "never"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    gate.set()
    assert await asyncio.gather(*busy) == [True, True]
    await threads.run(calls.append, "next")
    assert calls == ["next"]


async def test_a_cancelled_call_that_has_begun_goes_on_and_its_result_is_dropped(
    threads: HandlerThreads,
) -> None:
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        gate.wait(30)
        ended.set()

    call = asyncio.create_task(threads.run(work))
    await until(started.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    await until(lambda: ended.is_set() and threads._unfinished == 0)


async def test_all_threads_end_when_they_are_closed_each_after_its_call() -> None:
    threads, together = HandlerThreads(2), threading.Barrier(2)
    found: list[threading.Thread] = []

    def work() -> None:
        found.append(threading.current_thread())
        together.wait(30)

    await asyncio.gather(threads.run(work), threads.run(work))
    assert len(set(found)) == 2
    assert {thread.name for thread in found} == {"commandbus-handler-1", "commandbus-handler-2"}
    threads.close()
    await until(lambda: not any(thread.is_alive() for thread in found))


def test_a_thread_ends_when_the_event_loop_has_ended_before_its_call() -> None:
    gate = threading.Event()
    found: list[threading.Thread] = []

    def work() -> None:
        found.append(threading.current_thread())
        gate.wait(30)

    async def leave() -> None:
        call = asyncio.create_task(HandlerThreads(1).run(work))
        await until(lambda: found)
        call.cancel()

    asyncio.run(leave())
    gate.set()
    found[0].join(30)
    assert not found[0].is_alive()

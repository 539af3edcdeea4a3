"""Executor: how much is leased ahead, and how long it may wait; by a clock of the test's."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from commandbus.database.model import OutcomeKind
from commandbus.errors import DuplicateCommandError
from commandbus.handler import HandlerContext
from commandbus.models import Command
from commandbus.worker.executor import Executor
from tests.unit.stubs import a_lease, soon, turns
from tests.unit.test_executor import Bench, suspects
from tests.waiting import until


@dataclass
class Clock:
    now: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


# -- the rate


async def test_a_short_look_moves_the_rate_by_its_share_of_a_tenth_of_a_second(
    clock: Clock,
) -> None:
    bench = Bench(concurrency=2, max_prefetch=30)
    bench.executor._finished = 17
    clock.now += 0.0625  # 272 a second, of which five eighths count: 170
    assert bench.executor.wanted() == 2 + 8
    clock.now += 0.0625  # none: three eighths are left
    assert bench.executor.wanted() == 2 + 3
    clock.now += 0.25
    assert bench.executor.wanted() == 2


async def test_a_look_after_less_than_ten_milliseconds_changes_nothing(clock: Clock) -> None:
    bench = Bench(concurrency=2, max_prefetch=30)
    bench.executor._finished = 100
    clock.now = 0.0099
    assert bench.executor.wanted() == 2
    clock.now = 0.01
    assert bench.executor.wanted() == 2 + 30


async def test_handlers_that_have_ended_make_the_rate(clock: Clock) -> None:
    bench = Bench(concurrency=16, max_prefetch=30)
    bench.gate.set()
    bench.submit(*(a_lease() for _ in range(16)))
    await soon(lambda: len(bench.outcomes) == 16)
    clock.now += 0.125
    assert bench.executor.wanted() == 16 + 6


async def test_nothing_is_leased_ahead_while_nothing_ends(clock: Clock) -> None:
    bench = Bench(concurrency=2, max_prefetch=30)
    for _ in range(100):
        clock.now += 0.0125
        assert bench.executor.wanted() == 2


# -- room


async def test_what_is_leased_ahead_may_wait_for_its_commit_too() -> None:
    bench = Bench(concurrency=2, max_prefetch=3)
    bench.backlog = 10
    assert bench.executor.wanted() == 2
    bench.backlog = 11
    assert bench.executor.wanted() == 0


@pytest.mark.parametrize(
    ("concurrency", "running", "waiting", "ahead", "wanted"),
    [
        (2, 2, 0, 10, 10),  # all slots are taken, and nothing waits behind them
        (2, 1, 1, 1, 0),  # what waits takes the last slot
        (3, 1, 1, 1, 2),  # there is a slot for another
    ],
)
async def test_room_is_left_for_what_waits(
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    running: int,
    waiting: int,
    ahead: int,
    wanted: int,
) -> None:
    bench = Bench(concurrency=concurrency, max_prefetch=30)
    monkeypatch.setattr(Executor, "_prefetch", lambda _: ahead)
    bench.submit(*(a_lease() for _ in range(running)))
    bench.executor._buffer.extend(a_lease() for _ in range(waiting))
    assert bench.executor.wanted() == wanted


async def test_what_runs_and_what_waits_is_in_flight() -> None:
    bench = Bench(concurrency=2)
    bench.submit(*(a_lease() for _ in range(3)))
    bench.submit(*suspects(1))
    assert bench.executor.in_flight == 4


# -- time in the buffer


async def test_what_waits_goes_back_after_two_seconds(clock: Clock) -> None:
    bench = Bench(concurrency=1)
    bench.submit(a_lease())
    clock.now += 10.0
    bench.submit(a_lease())
    clock.now += 1.0
    bench.submit(a_lease())  # does not make the other younger
    clock.now += 1.0
    bench.executor.release_aged()
    assert bench.outcomes == []
    clock.now += 0.25
    bench.executor.release_aged()
    assert [o.kind for o in bench.outcomes] == [OutcomeKind.RELEASE] * 2
    assert bench.executor.in_flight == 1


async def test_a_buffer_that_moves_is_not_old(clock: Clock) -> None:
    bench = Bench(concurrency=1)
    bench.submit(a_lease(), a_lease(), a_lease())
    await turns()
    clock.now += 1.5
    bench.gate.set()
    await soon(lambda: len(bench.started) >= 2)
    bench.gate.clear()
    clock.now += 1.5
    bench.executor._buffer.append(a_lease())
    bench.executor.release_aged()
    assert OutcomeKind.RELEASE not in {o.kind for o in bench.outcomes}


# -- ends


async def test_a_duplicate_that_an_ordinary_handler_raises_is_tried_again() -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise DuplicateCommandError("bank", [command.command_id])

    assert (await Bench().outcome_of(work)).kind is OutcomeKind.RETRY


async def test_the_threads_of_handlers_end_with_the_executor() -> None:
    found: list[threading.Thread] = []

    def work(command: Command, ctx: HandlerContext) -> Any:
        found.append(threading.current_thread())

    bench = Bench()
    await bench.outcome_of(work)
    bench.execution.close()
    await until(lambda: not found[0].is_alive())


async def test_what_a_closed_executor_gave_back_is_not_in_flight() -> None:
    bench = Bench(concurrency=2)
    bench.submit(*(a_lease() for _ in range(3)))
    bench.submit(*suspects(1))
    bench.executor.close()
    assert bench.executor.in_flight == 2


# -- suspects, by the clock


async def test_a_suspect_runs_beside_others_after_five_seconds_if_there_is_a_slot(
    clock: Clock,
) -> None:
    bench = Bench(concurrency=2)
    (suspect,) = suspects(1)
    slow = a_lease()
    bench.submit(slow)
    clock.now += 1.0
    bench.submit(suspect)
    clock.now += 4.75
    bench.executor._pump()
    await turns()
    assert bench.started == [slow]
    clock.now += 0.25
    bench.executor._pump()
    await turns()
    assert bench.started == [slow, suspect]


async def test_a_suspect_does_not_run_beside_others_when_all_slots_are_taken(clock: Clock) -> None:
    bench = Bench(concurrency=1)
    bench.submit(a_lease())
    bench.submit(*suspects(1))
    clock.now += 60.0
    bench.executor._pump()
    await turns()
    assert len(bench.started) == 1


@pytest.mark.parametrize(("waited", "delay"), [(0.0, 5.0), (2.0, 3.0), (4.9375, 0.1), (9.0, 0.1)])
async def test_a_suspect_that_waits_is_looked_at_again_when_its_patience_ends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, waited: float, delay: float
) -> None:
    bench = Bench(concurrency=1)
    bench.submit(a_lease())
    bench.submit(*suspects(1))
    delays: list[float] = []

    def call_later(seconds: float, *_: object) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    clock.now += waited
    bench.executor._pump()
    assert delays == [delay]


async def test_the_solitude_of_a_suspect_ends_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(concurrency=2)
    timers: list[tuple[float, Any]] = []

    def call_later(seconds: float, function: Any, *arguments: Any) -> None:
        timers.append((seconds, lambda: function(*arguments)))

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    (suspect,) = suspects(1)
    other = a_lease()
    bench.submit(suspect, other)
    ((seconds, end),) = timers
    assert seconds == 5.0
    await turns()
    assert (bench.started, bench.rooms) == ([suspect], 0)
    end()
    await turns()
    assert bench.started == [suspect, other]
    assert bench.rooms == 1, "the receiver is told that there is room again"

"""LeaseKeeper: extends in time, gives up in time, and tells whose lease is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from commandbus.database.model import Lease, Said
from commandbus.worker import lease as lease_module
from commandbus.worker.lease import LeaseKeeper, LeaseThread
from tests.unit.stubs import a_lease, turns
from tests.waiting import until


class StubExtender:
    def __init__(self) -> None:
        self.lost: set[UUID] = set()
        self.canceled: set[UUID] = set()
        self.told: list[list[Said]] = []
        self.errors: list[Exception] = []
        self.extended: list[UUID] = []
        self.closed = 0
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def extend(
        self, domain: str, leases: Sequence[Lease], seconds: int
    ) -> tuple[set[UUID], set[UUID]]:
        self.entered.set()
        if self.gate is not None:
            self.gate.wait(30)
        if self.errors:
            raise self.errors.pop(0)
        self.extended += [lease.command_id for lease in leases]
        asked = {lease.command_id for lease in leases}
        return self.lost & asked, self.canceled & asked

    def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.told.append(list(said))

    def close(self) -> None:
        self.closed += 1


class Bench:
    def __init__(self, vt_seconds: int = 1, deadline_seconds: float = 3_600.0) -> None:
        self.extender = StubExtender()
        self.lost: list[tuple[Lease, str]] = []
        self.thread = LeaseThread(self.extender)
        self.keeper = LeaseKeeper(
            self.thread,
            "shop",
            vt_seconds=vt_seconds,
            deadline_seconds=deadline_seconds,
            on_lost=lambda lease, why: self.lost.append((lease, why)),
            on_overdue=lambda lease: self.lost.append((lease, "overdue")),
            on_canceled=lambda lease: self.lost.append((lease, "canceled")),
        )


@asynccontextmanager
async def keeping(**options: Any) -> AsyncIterator[Bench]:
    bench = Bench(**options)
    bench.keeper.start()
    yield bench
    await bench.keeper.stop()


async def test_a_held_lease_is_extended_again_and_again() -> None:
    async with keeping() as bench:
        lease = a_lease()
        bench.keeper.add([lease])
        await until(lambda: len(bench.extender.extended) >= 3, "three extensions")
        assert set(bench.extender.extended) == {lease.command_id}
        assert bench.lost == []
    assert bench.extender.closed == 1


async def test_a_lease_is_left_alone_for_its_first_third() -> None:
    bench = Bench(vt_seconds=30)
    bench.keeper.add([a_lease()])
    bench.keeper._extend_due()
    assert bench.extender.extended == []


async def test_the_time_of_a_lease_runs_since_it_was_asked_for() -> None:
    bench = Bench(vt_seconds=30)
    lease = a_lease()
    bench.keeper.add([lease], time.monotonic() - 15)
    bench.keeper._extend_due()
    assert bench.extender.extended == [lease.command_id]


@dataclass
class Clock:
    """Time as the keeper sees it."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease_module, "time", made)
    return made


async def test_a_lease_is_extended_at_each_third_of_its_time(clock: Clock) -> None:
    bench = Bench(vt_seconds=30)
    lease = a_lease()
    bench.keeper.add([lease])
    for later, extensions in ((9.75, 0), (0.25, 1), (9.75, 1), (0.25, 2)):
        clock.now += later
        bench.keeper._extend_due()
        assert len(bench.extender.extended) == extensions, clock.now


async def test_a_lease_is_over_at_its_deadline_and_not_extended_then(clock: Clock) -> None:
    bench = Bench(vt_seconds=30, deadline_seconds=100)
    lease = a_lease()
    bench.keeper.add([lease])
    clock.now += 99.75
    bench.keeper._extend_due()
    assert bench.extender.extended == [lease.command_id]
    clock.now += 0.25
    bench.keeper.set_expiry(lease, 1)
    bench.keeper._extend_due()
    await turns()
    assert bench.lost == [(lease, "overdue")]
    assert bench.extender.extended == [lease.command_id]


async def test_a_lease_that_its_handler_extended_lasts_from_now(clock: Clock) -> None:
    bench = Bench(vt_seconds=30)
    lease = a_lease()
    bench.keeper.add([lease])
    clock.now += 5
    bench.keeper.set_expiry(lease, 60)
    for later, extensions in ((39.75, 0), (0.25, 1)):
        clock.now += later
        bench.keeper._extend_due()
        assert len(bench.extender.extended) == extensions


@pytest.mark.parametrize(("vt_seconds", "tick"), [(1, 1 / 6), (3, 0.5), (30, 0.5)])
async def test_the_keeper_looks_twice_in_each_third_and_twice_in_a_stall(
    vt_seconds: int, tick: float
) -> None:
    bench = Bench(vt_seconds=vt_seconds)
    pauses: list[float] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return True

    bench.thread._keepers = {bench.keeper}
    bench.thread._stop = Stopped()
    bench.thread._run()
    assert pauses == [tick]


async def test_a_lease_that_has_ended_is_not_extended() -> None:
    bench = Bench()
    ended, other = a_lease(), a_lease()
    bench.keeper.add([ended, other])
    bench.keeper.remove([ended])
    bench.keeper.remove([ended])
    _let_expire(bench)
    bench.keeper._extend_due()
    assert bench.extender.extended == [other.command_id]


async def test_the_end_of_an_older_lease_does_not_end_the_newer_one() -> None:
    bench = Bench()
    older = a_lease()
    newer = a_lease(command_id=older.command_id, lease_epoch=2)
    bench.keeper.add([newer])
    bench.keeper.remove([older])
    _let_expire(bench)
    bench.keeper._extend_due()
    assert bench.extender.extended == [newer.command_id]


async def test_a_command_that_is_leased_again_has_lost_its_older_lease() -> None:
    bench = Bench()
    older = a_lease()
    newer = a_lease(command_id=older.command_id, lease_epoch=2)
    bench.keeper.add([older])
    bench.keeper.add([newer])
    await until(lambda: bench.lost)
    assert bench.lost == [(older, "its lease was lost")]
    _let_expire(bench)
    bench.keeper._extend_due()
    assert bench.extender.extended == [newer.command_id]


async def test_a_lost_lease_is_told_once_and_not_extended_again() -> None:
    async with keeping() as bench:
        lost, kept = a_lease(), a_lease()
        bench.extender.lost = {lost.command_id}
        bench.keeper.add([lost, kept])
        await until(lambda: bench.lost)
        await until(lambda: bench.extender.extended.count(kept.command_id) >= 3)
    assert bench.lost == [(lost, "its lease was lost")]
    assert bench.extender.extended.count(lost.command_id) == 1


async def test_a_lease_that_ended_while_it_was_extended_is_not_told_as_lost() -> None:
    bench = Bench()
    lease = a_lease()
    bench.extender.lost = {lease.command_id}
    bench.extender.gate = threading.Event()
    bench.keeper.add([lease])
    _let_expire(bench)
    extending = asyncio.create_task(asyncio.to_thread(bench.keeper._extend_due))
    await until(bench.extender.entered.is_set)
    bench.keeper.remove([lease])
    bench.extender.gate.set()
    await extending
    await asyncio.sleep(0)
    assert bench.lost == []


async def test_a_lease_past_its_deadline_is_given_up() -> None:
    async with keeping(deadline_seconds=1.0) as bench:
        lease = a_lease()
        bench.keeper.add([lease])
        await until(lambda: bench.lost)
        assert bench.lost == [(lease, "overdue")]
        assert bench.keeper._kept == {}


async def test_an_extension_by_the_handler_moves_the_next_one() -> None:
    bench = Bench()
    lease = a_lease()
    bench.keeper.add([lease])
    bench.keeper.set_expiry(lease, 500)
    bench.keeper.set_expiry(a_lease(), 500)  # not held: nothing to move
    bench.keeper._extend_due()
    assert bench.extender.extended == []
    bench.keeper.set_expiry(lease, 0.1)
    bench.keeper._extend_due()
    assert bench.extender.extended == [lease.command_id]


async def test_an_error_is_logged_and_the_extension_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with keeping() as bench:
        bench.extender.errors = [RuntimeError("password=hunter2"), RuntimeError("gone")]
        bench.keeper.add([a_lease()])
        await until(lambda: bench.extender.extended)
    assert caplog.text.count("cannot extend leases") == 2
    assert "hunter2" not in caplog.text
    assert bench.extender.closed == 3


async def test_a_hung_extension_does_not_hold_up_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "STOP_SECONDS", 0.01)
    bench = Bench()
    gate = bench.extender.gate = threading.Event()
    bench.keeper.start()
    bench.keeper.add([a_lease()])
    await until(bench.extender.entered.is_set)
    thread = bench.thread._thread
    assert thread is not None
    await asyncio.wait_for(bench.keeper.stop(), 10)
    gate.set()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_the_stop_waits_two_seconds_for_an_extension_at_most(clock: Clock) -> None:
    class Hung:
        looks = 0

        def is_alive(self) -> bool:
            self.looks += 1
            clock.now += 0.5
            return True

    bench, hung = Bench(), Hung()
    bench.thread._thread = hung  # type: ignore[assignment]
    await bench.keeper.stop()
    assert hung.looks == 4


async def test_a_stall_is_reported_once_and_again_after_the_loop_has_moved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    monkeypatch.setattr(lease_module, "STALL_SECONDS", -1.0)
    bench.thread._watch_loop()
    bench.thread._watch_loop()
    assert caplog.text.count("has been blocked") == 1
    monkeypatch.setattr(lease_module, "STALL_SECONDS", 3_600.0)
    bench.thread._watch_loop()
    monkeypatch.setattr(lease_module, "STALL_SECONDS", -1.0)
    bench.thread._watch_loop()
    assert caplog.text.count("has been blocked") == 2
    assert "test_a_stall_is_reported_once" in caplog.text


async def test_a_loop_that_has_been_silent_for_a_second_is_not_blocked_yet(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    # The thread itself may be held up, by a server that does not answer: nobody asked the loop.
    clock.now += 5.0
    bench.thread._watch_loop()
    clock.now += 1.0
    bench.thread._watch_loop()
    assert "has been blocked" not in caplog.text
    clock.now += 0.25
    bench.thread._watch_loop()
    assert "has been blocked for 1.2 s" in caplog.text


async def test_a_loop_that_takes_its_turns_is_not_blocked(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    for _ in range(4):
        clock.now += 0.75
        bench.thread._watch_loop()
        await turns()
    assert caplog.text == ""


async def test_a_stall_of_a_thread_that_is_gone_is_reported_without_a_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.thread._loop_thread = -1
    monkeypatch.setattr(lease_module, "STALL_SECONDS", -1.0)
    bench.thread._watch_loop()
    assert "It is here:\nunknown" in caplog.text


def test_the_thread_ends_with_its_event_loop() -> None:
    benches: list[Bench] = []

    async def forget_to_stop() -> None:
        bench = Bench()
        bench.keeper.start()
        benches.append(bench)

    asyncio.run(forget_to_stop())
    thread = benches[0].thread._thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
    assert benches[0].extender.closed == 1


def _let_expire(bench: Bench) -> None:
    """As if nearly all of the lease were over."""
    for held in bench.keeper._kept.values():
        held.expires_at -= bench.keeper.vt_seconds * 0.9


async def test_a_lease_whose_handler_began_late_is_extended_for_the_same_time_again(
    clock: Clock,
) -> None:
    bench = Bench(vt_seconds=30, deadline_seconds=100)
    lease = a_lease()
    bench.keeper.add([lease])
    clock.now += 100
    bench.keeper._extend_due()
    await turns()
    assert (bench.lost, bench.extender.extended) == ([(lease, "overdue")], [])
    bench.keeper.keep_on(lease)
    bench.keeper._extend_due()
    assert bench.extender.extended == [lease.command_id]
    clock.now += 100
    bench.keeper._extend_due()
    await turns()
    assert bench.lost == [(lease, "overdue")] * 2


# -- cancels and progress


async def test_an_extension_tells_which_commands_are_to_be_canceled() -> None:
    bench = Bench(vt_seconds=30)
    asked, other = a_lease(), a_lease()
    bench.keeper.add([asked, other], time.monotonic() - 15)
    bench.extender.canceled = {asked.command_id}
    bench.keeper._extend_due()
    await turns()
    assert bench.lost == [(asked, "canceled")]
    bench.keeper.remove([asked])
    bench.keeper._extend_due()
    assert bench.extender.extended == [asked.command_id, other.command_id]


async def test_the_last_word_of_each_command_is_written_once_a_second_in_one_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, clock = Bench(vt_seconds=30), Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    first, second = a_lease(), a_lease()
    bench.keeper.add([first, second])
    bench.keeper._tell()
    assert bench.extender.told == []
    for number in range(100):
        bench.keeper.say(first, None, number / 100, f"{number}")
    bench.keeper.say(second, None, 0.5, None)
    bench.keeper._tell()
    [said] = bench.extender.told
    assert {each.lease: (each.fraction, each.message) for each in said} == {
        first: (0.99, "99"),
        second: (0.5, None),
    }

    bench.keeper.say(first, None, 1.0, None)
    clock.now += 0.9
    bench.keeper._tell()
    assert len(bench.extender.told) == 1
    clock.now += 0.2
    bench.keeper._tell()
    assert [each.fraction for each in bench.extender.told[1]] == [1.0]


async def test_what_a_command_said_that_has_ended_is_not_written() -> None:
    bench = Bench(vt_seconds=30)
    lease = a_lease()
    bench.keeper.add([lease])
    bench.keeper.say(lease, None, 0.5, None)
    bench.keeper.remove([lease])
    bench.keeper._tell()
    assert bench.extender.told == []


async def test_a_word_that_could_not_be_written_is_tried_again_unless_a_newer_one_came() -> None:
    bench = Bench(vt_seconds=30)
    first, second = a_lease(), a_lease()
    bench.keeper.say(first, None, 0.1, None)
    bench.keeper.say(second, None, 0.2, None)
    bench.extender.errors = [RuntimeError("no server")]
    with pytest.raises(RuntimeError, match="no server"):
        bench.keeper._tell()
    bench.keeper.say(first, None, 0.9, None)
    bench.keeper._told_at = -1e9
    bench.keeper._tell()
    [said] = bench.extender.told
    assert sorted(each.fraction for each in said) == [0.2, 0.9]


async def test_words_come_from_many_threads_at_once() -> None:
    leases = [a_lease() for _ in range(8)]
    async with keeping() as bench:

        def talk(lease: Lease) -> None:
            for number in range(2_000):
                bench.keeper.say(lease, None, number / 2_000, None)
            bench.keeper.say(lease, None, 1.0, "done")

        threads = [threading.Thread(target=talk, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()

        def last() -> dict[UUID, float]:
            told = [each for group in bench.extender.told for each in group]
            return {each.lease.command_id: each.fraction for each in told}

        await until(lambda: last() == {lease.command_id: 1.0 for lease in leases})
        for thread in threads:
            thread.join()

"""Receiver: asks for what there is room for, and knows when to look again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from commandbus.database.model import Lease
from commandbus.errors import DatabaseUnavailableError
from commandbus.worker import receiver as receiver_module
from commandbus.worker.receiver import FIRST_POLL_SECONDS, Receiver
from tests.unit.stubs import StubStore, a_lease, soon

LONGEST = 3_600.0


class StubRoom:
    def __init__(self, room: int = 5) -> None:
        self.room = room
        self.submitted: list[Lease] = []
        self.released: list[Lease] = []
        self.asked_at = 0.0
        self.types_left_out: list[str] = []
        self.is_small = False

    def left_out(self) -> Sequence[str]:
        return self.types_left_out

    def wanted(self) -> int:
        return self.room

    def has_few(self) -> bool:
        return self.is_small

    def places(self) -> int:
        return self.room

    def submit(self, leases: Sequence[Lease], asked_at: float) -> None:
        self.submitted.extend(leases)
        self.asked_at = asked_at

    def release(self, leases: Sequence[Lease]) -> None:
        self.released.extend(leases)


class Bench:
    def __init__(self, room: int = 5, *, announces: bool = True) -> None:
        self.store, self.room = StubStore(), StubRoom(room)
        self.announced: list[bool] = []
        self.receiver = Receiver(
            self.store.as_store,
            self.room,
            "shop",
            worker="w1",
            vt_seconds=30,
            limits=lambda: {"Work": 7},
            count_every=lambda: ["Work"],
            mark_in_progress=False,
            poll_max_seconds=LONGEST,
            announce_idle=self._announce if announces else None,
            due_in=self._due_in,
        )
        self.due: float | None = 0.0
        self.looks = 0

    async def _announce(self) -> None:
        self.announced.append(self.receiver.is_idle)

    async def _due_in(self, domain: str) -> float | None:
        self.looks += 1
        return self.due


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle and busy are told without delay."""
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", -1.0)
    monkeypatch.setattr(receiver_module, "BUSY_AFTER_SECONDS", -1.0)


async def test_a_step_asks_for_as_many_as_there_is_room_for(bench: Bench) -> None:
    await bench.receiver.step()
    assert bench.store.asked_for == [
        {
            "vt_seconds": 30,
            "quantity": 5,
            "worker": "w1",
            "limits": {"Work": 7},
            "count_every": ["Work"],
            "mark_in_progress": False,
            "from_head": False,
            "except_types": [],
            "places": 5,
            "with_due": False,
        }
    ]


async def test_the_head_of_the_queue_is_looked_at_once_a_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for seconds in (0.9, 1.1, 1.2, 2.2):
        monkeypatch.setattr(time, "monotonic", lambda moment=now + seconds: moment)
        await bench.receiver.step()
    assert [asked["from_head"] for asked in bench.store.asked_for] == [False, True, False, True]


async def test_the_head_is_looked_at_again_as_long_as_leases_have_lapsed_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    bench.store.receives = [[a_lease(lease_epoch=2)], [], [a_lease()], []]
    for seconds in (1.1, 1.14, 1.16, 1.3):
        monkeypatch.setattr(time, "monotonic", lambda moment=began + seconds: moment)
        await bench.receiver.step()
    assert [asked["from_head"] for asked in bench.store.asked_for] == [True, False, True, False]


async def test_a_full_group_is_followed_by_another_at_once(bench: Bench) -> None:
    leases = [a_lease() for _ in range(5)]
    bench.store.receives = [leases]
    assert await bench.receiver.step() is None
    assert bench.room.submitted == leases


async def test_a_smaller_group_gives_new_commands_a_moment(bench: Bench) -> None:
    bench.store.receives = [[a_lease()]]
    assert await bench.receiver.step() == FIRST_POLL_SECONDS == 0.002


async def test_without_room_nothing_is_asked_for_until_some_is_freed() -> None:
    bench = Bench(room=0)
    running = asyncio.create_task(bench.receiver.run())
    await soon(lambda: bench.receiver._is_full)
    bench.receiver.room_freed()  # too early: there is still none
    assert not bench.receiver._woken.is_set()
    bench.room.room = 2
    bench.receiver.room_freed()
    await soon(lambda: bench.store.asked_for)
    assert bench.store.asked_for[0]["quantity"] == 2
    bench.receiver.stop()
    await running


async def test_room_for_a_single_command_is_room(bench: Bench) -> None:
    bench.room.room = 0
    assert await bench.receiver.step() == LONGEST
    bench.room.room = 1
    bench.receiver.room_freed()
    assert bench.receiver._woken.is_set()
    await bench.receiver.step()
    assert bench.store.asked_for[0]["quantity"] == 1


async def test_freed_room_wakes_nobody_when_there_was_room_before(bench: Bench) -> None:
    await bench.receiver.step()
    bench.receiver.room_freed()
    assert not bench.receiver._woken.is_set()


async def test_looks_into_an_empty_queue_become_rarer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", LONGEST)
    pauses = [await bench.receiver.step() for _ in range(4)]
    for pause, most in zip(pauses, [1, 2, 4, 8], strict=True):
        assert pause is not None
        assert 0.8 * most * FIRST_POLL_SECONDS <= pause <= most * FIRST_POLL_SECONDS
    bench.store.receives = [[a_lease()]]
    await bench.receiver.step()
    pause = await bench.receiver.step()
    assert pause is not None
    assert pause <= FIRST_POLL_SECONDS


async def test_an_idle_receiver_says_so_and_looks_once_more(bench: Bench, at_once: None) -> None:
    assert await bench.receiver.step() is None
    assert (bench.receiver.is_idle, bench.announced) == (True, [True])
    assert await bench.receiver.step() is not None
    assert bench.announced == [True]


async def test_a_busy_receiver_says_so_when_the_work_goes_on(bench: Bench, at_once: None) -> None:
    bench.store.receives = [[], [a_lease()], [a_lease()], [a_lease()], []]
    for _ in range(4):
        await bench.receiver.step()
    assert (bench.receiver.is_idle, bench.announced) == (False, [True, False])
    await bench.receiver.step()
    assert bench.announced == [True, False, True]


@pytest.mark.parametrize(("seconds", "is_idle"), [(0.04, False), (0.06, True), (0.5, True)])
async def test_a_receiver_is_idle_after_fifty_milliseconds_without_work(
    monkeypatch: pytest.MonkeyPatch, seconds: float, is_idle: bool
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    bench = Bench()
    now += 10
    bench.store.receives = [[a_lease()]]
    await bench.receiver.step()
    now += seconds
    await bench.receiver.step()
    assert bench.receiver.is_idle is is_idle


@pytest.mark.parametrize(("seconds", "is_idle"), [(0.24, True), (0.26, False), (0.5, False)])
async def test_an_idle_receiver_is_busy_after_a_quarter_of_a_second_of_work(
    monkeypatch: pytest.MonkeyPatch, seconds: float, is_idle: bool
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    bench = Bench()
    now += 10
    bench.store.receives = [[], [a_lease()], [a_lease()]]
    for pause in (0.0, seconds, 0.0):
        await bench.receiver.step()
        now += pause
    assert bench.receiver.is_idle is is_idle


async def test_idle_and_busy_begin_after_their_time_not_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", 0.5)
    monkeypatch.setattr(receiver_module, "BUSY_AFTER_SECONDS", 0.5)
    bench = Bench()
    bench.store.receives = [[], [], [a_lease()], [a_lease()]]
    for pause, is_idle in ((0.5, False), (0.25, True), (0.25, True), (0.5, True)):
        now += pause
        await bench.receiver.step()
        assert bench.receiver.is_idle is is_idle
    assert bench.announced == [True]


async def supplied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, group: int, every: float
) -> list[bool]:
    """What is announced in half a second of groups, with a look in vain after each."""
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", LONGEST)
    bench.receiver.is_idle = True
    now = time.monotonic()
    clock = iter(now + n * every / 2 for n in range(10_000))
    current = now

    def monotonic() -> float:
        return current

    monkeypatch.setattr(time, "monotonic", monotonic)
    while current < now + 0.5:
        bench.store.receives = [[a_lease() for _ in range(group)], []]
        for _ in range(2):
            current = next(clock)
            await bench.receiver.step()
    return bench.announced


async def test_looks_in_vain_between_many_commands_are_no_idleness(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await supplied(bench, monkeypatch, group=8, every=0.004) == [False]


async def test_commands_that_come_one_by_one_still_want_hints(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await supplied(bench, monkeypatch, group=1, every=0.004) == []


async def test_large_groups_with_long_gaps_still_want_hints(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await supplied(bench, monkeypatch, group=500, every=0.04) == []


@pytest.mark.parametrize(
    ("found", "gap", "stays_busy"),
    [
        (1_000, 1.0, False),  # a thousand a second is not more than that
        (1_001, 1.0, True),
        (1_001, 0.875, False),  # the last work was too long ago
    ],
)
async def test_a_look_in_vain_is_no_matter_at_more_than_a_thousand_a_second(
    monkeypatch: pytest.MonkeyPatch, found: int, gap: float, stays_busy: bool
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(receiver_module, "BUSY_GAP_SECONDS", gap)
    bench = Bench()
    bench.store.receives = [[a_lease()] * found, []]
    await bench.receiver.step()
    now += 1.0
    await bench.receiver.step()
    assert (bench.receiver._busy_since is not None) is stays_busy


async def test_the_head_is_looked_at_when_a_second_is_over_and_not_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    bench = Bench()
    for _ in range(5):
        now += 0.5
        await bench.receiver.step()
    assert [asked["from_head"] for asked in bench.store.asked_for] == [
        False, True, False, True, False,
    ]  # fmt: skip


async def test_a_receiver_whose_worker_sends_no_hints_tells_nobody(at_once: None) -> None:
    bench = Bench(announces=False)
    await bench.receiver.step()
    assert bench.receiver.is_idle
    assert bench.announced == []


async def test_leases_that_come_after_the_stop_are_given_back(bench: Bench) -> None:
    class Slow(StubStore):
        async def receive(self, domain: str, **options: Any) -> list[Lease]:
            bench.receiver.stop()
            return await super().receive(domain, **options)

    late = a_lease()
    store = Slow()
    store.receives = [[late]]
    bench.receiver.store = store.as_store
    await bench.receiver.run()
    assert (bench.room.released, bench.room.submitted) == ([late], [])


async def test_leases_whose_time_is_over_when_the_answer_is_read_are_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by F2 and F8: a paused process, or a blocked event loop, reads its answer late."""
    now = 1_000.0
    waits = [29.0, 30.0]
    clock = SimpleNamespace(monotonic=lambda: now)

    class Paused(StubStore):
        async def receive(self, domain: str, **options: Any) -> list[Lease]:
            nonlocal now
            now += waits.pop()
            return await super().receive(domain, **options)

    late, in_time = a_lease(), a_lease()
    store = Paused()
    store.receives = [[late], [in_time]]
    bench.receiver.store = store.as_store
    monkeypatch.setattr(receiver_module, "time", clock)
    await bench.receiver.step()
    await bench.receiver.step()
    assert (bench.room.released, bench.room.submitted) == ([late], [in_time])
    assert bench.room.asked_at == 1_030.0, "the time of a lease runs since it was asked for"


async def test_an_error_of_the_database_does_not_end_the_receiver(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.receives = [DatabaseUnavailableError("away"), [a_lease()]]
    running = asyncio.create_task(bench.receiver.run())
    await soon(lambda: bench.room.submitted)
    bench.receiver.stop()
    await running
    assert "receiver failed" in caplog.text


async def test_types_that_the_room_leaves_out_are_not_asked_for(bench: Bench) -> None:
    await bench.receiver.step()
    bench.room.types_left_out = ["Slow"]
    await bench.receiver.step()
    assert [asked["except_types"] for asked in bench.store.asked_for] == [[], ["Slow"]]


async def test_an_idle_receiver_asks_before_it_leases_unless_it_was_woken(
    bench: Bench, at_once: None
) -> None:
    bench.due = None
    await bench.receiver.step()
    await bench.receiver.step()  # idle now, and one more look at once
    assert (bench.receiver.is_idle, bench.looks) == (True, 0)
    received = len(bench.store.asked_for)
    await bench.receiver.step()
    assert (bench.looks, len(bench.store.asked_for)) == (1, received)
    bench.receiver.wake()
    await bench.receiver.step()
    assert (bench.looks, len(bench.store.asked_for)) == (1, received + 1)
    bench.due = 0.0
    await bench.receiver.step()
    assert (bench.looks, len(bench.store.asked_for)) == (2, received + 2)


async def idle(bench: Bench) -> None:
    bench.receiver.is_idle = True
    bench.receiver._polls._pause = LONGEST


async def test_an_idle_receiver_sleeps_until_the_next_command_is_due(bench: Bench) -> None:
    await idle(bench)
    bench.due = 0.25
    assert await bench.receiver.step() == 0.25
    assert bench.store.asked_for == []


async def test_a_due_time_beyond_the_next_poll_changes_nothing(bench: Bench) -> None:
    await idle(bench)
    bench.due = LONGEST * 2
    pause = await bench.receiver.step()
    assert pause is not None
    assert 0.8 * LONGEST <= pause <= LONGEST


async def test_at_the_due_time_it_leases_without_asking_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(receiver_module, "time", SimpleNamespace(monotonic=lambda: now))
    bench = Bench()
    await idle(bench)
    bench.due = 0.25
    await bench.receiver.step()
    now += 0.25
    bench.store.receives = [[a_lease()]]
    await bench.receiver.step()
    assert (bench.looks, len(bench.room.submitted)) == (1, 1)


async def test_a_hint_for_a_delayed_command_makes_it_ask_when_that_is_due(bench: Bench) -> None:
    await idle(bench)
    bench.receiver.wake()
    assert await bench.receiver.step() == receiver_module.ASK_AGAIN_SECONDS
    bench.due = 0.07
    assert await bench.receiver.step() == 0.07
    assert (bench.looks, len(bench.store.asked_for)) == (1, 1)


async def test_what_is_due_but_another_worker_has_is_not_asked_for_without_a_pause(
    bench: Bench,
) -> None:
    await idle(bench)
    pause = await bench.receiver.step()
    assert pause is not None
    assert pause >= 0.8 * LONGEST
    assert len(bench.store.asked_for) == 1


async def test_places_are_asked_for_with_an_end_and_not_at_the_same_time_by_a_step(
    bench: Bench,
) -> None:
    options = bench.receiver.refill(is_limited=True)
    assert options is not None
    assert (options["quantity"], options["places"], options["from_head"]) == (5, 5, False)
    assert bench.receiver.refill(is_limited=True) is None
    assert await bench.receiver.step() == LONGEST
    assert bench.store.asked_for == []
    leases = [a_lease() for _ in range(5)]
    bench.receiver.refilled(options, leases, time.monotonic())
    assert bench.room.submitted == leases
    assert bench.receiver._woken.is_set()  # the step that was held back comes now
    bench.store.receives = [[]]
    await bench.receiver.step()
    assert len(bench.store.asked_for) == 1


async def test_nothing_is_asked_for_with_an_end_while_a_step_asks(bench: Bench) -> None:
    found = []

    async def receive(*_: Any, **__: Any) -> list[Lease]:
        found.append(bench.receiver.refill(is_limited=True))
        return []

    bench.store.receive = receive  # type: ignore[method-assign]
    await bench.receiver.step()
    assert found == [None]
    assert bench.receiver.refill(is_limited=True) is not None


@pytest.mark.parametrize(("room", "came"), [(5, 5), (5, 4), (5, 0), (0, 0)])
async def test_an_end_is_followed_by_a_look_unless_its_places_are_filled(
    room: int, came: int
) -> None:
    bench = Bench(room)
    options = bench.receiver.refill(is_limited=True)
    assert (options is None) is (room == 0)
    if options is not None:
        bench.receiver.refilled(options, [a_lease() for _ in range(came)], time.monotonic())
    bench.receiver.places_freed()
    assert bench.receiver._woken.is_set()


async def test_places_that_were_filled_need_no_look_but_the_next_ones_do(bench: Bench) -> None:
    options = bench.receiver.refill(is_limited=True)
    assert options is not None
    options["places"] = 3  # of five that it has room for
    bench.receiver.refilled(options, [a_lease() for _ in range(3)], time.monotonic())
    bench.receiver.places_freed()
    assert not bench.receiver._woken.is_set()
    bench.receiver.places_freed()
    assert bench.receiver._woken.is_set()


async def test_while_groups_are_full_ends_lease_nothing_and_the_receiver_does(bench: Bench) -> None:
    bench.store.receives = [[a_lease() for _ in range(5)], [a_lease()]]
    await bench.receiver.step()
    assert bench.receiver.refill(is_limited=True) is None
    bench.receiver.places_freed()
    assert bench.receiver._woken.is_set()
    await bench.receiver.step()  # one, where five were asked for: it waits for places, or for work
    options = bench.receiver.refill(is_limited=True)
    assert options is not None
    bench.receiver.refilled(options, [a_lease() for _ in range(5)], time.monotonic())
    assert bench.receiver.refill(is_limited=True) is None


async def test_leases_that_come_with_an_end_after_the_stop_are_given_back(bench: Bench) -> None:
    options = bench.receiver.refill(is_limited=True)
    assert options is not None
    bench.receiver.stop()
    leases = [a_lease()]
    bench.receiver.refilled(options, leases, time.monotonic())
    assert (bench.room.released, bench.room.submitted) == (leases, [])
    assert bench.receiver.refill(is_limited=True) is None


async def test_with_few_places_the_next_is_leased_with_the_end_also_without_limits(
    bench: Bench,
) -> None:
    bench.room.is_small = True
    # Nothing is known to wait: an end does not look.
    assert bench.receiver.refill(is_limited=False) is None
    bench.store.receives = [[a_lease() for _ in range(5)]]
    await bench.receiver.step()
    bench.room.is_small = False
    assert bench.receiver.refill(is_limited=False) is None
    bench.room.is_small = True
    options = bench.receiver.refill(is_limited=False)
    assert options is not None
    bench.receiver.refilled(options, [a_lease() for _ in range(5)], time.monotonic())
    assert bench.receiver.refill(is_limited=True) is None
    options = bench.receiver.refill(is_limited=False)
    assert options is not None
    bench.receiver.refilled(options, [a_lease()], time.monotonic())
    assert bench.receiver.refill(is_limited=False) is None


async def test_with_few_places_a_look_at_the_head_is_a_receive_of_its_own(bench: Bench) -> None:
    bench.room.is_small = True
    bench.receiver._has_plenty = True
    bench.receiver._head_at -= receiver_module.HEAD_SECONDS
    assert bench.receiver.refill(is_limited=False) is None
    bench.store.receives = [[a_lease() for _ in range(5)]]
    await bench.receiver.step()
    assert bench.store.asked_for[0]["from_head"] is True
    assert bench.receiver.refill(is_limited=False) is not None


async def test_a_place_that_stays_free_after_an_end_is_asked_for_by_the_receiver(
    bench: Bench,
) -> None:
    bench.room.is_small = bench.receiver._has_plenty = True
    bench.room.room = 0
    await bench.receiver.step()  # it waits for room
    bench.room.room = 2
    options = bench.receiver.refill(is_limited=False)
    assert options is not None
    bench.receiver.refilled(options, [], time.monotonic())
    bench.receiver.room_freed()
    assert bench.receiver._woken.is_set()


async def test_leases_that_come_with_ends_make_the_worker_busy_like_others(bench: Bench) -> None:
    bench.room.is_small = bench.receiver._has_plenty = True
    bench.receiver.is_idle = True
    bench.receiver._busy_since = time.monotonic() - 2 * receiver_module.BUSY_AFTER_SECONDS
    options = bench.receiver.refill(is_limited=False)
    assert options is not None
    bench.receiver.refilled(options, [a_lease()], time.monotonic())
    bench.receiver.wake()
    bench.store.receives = [[a_lease()]]
    await bench.receiver.step()
    assert bench.announced == [False]

"""Completions: each closing of a batch calls back once, also when a notification is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from commandbus import BatchMetadata
from commandbus.batches import callbacks as completion_module
from commandbus.batches.callbacks import Completions
from commandbus.errors import InvalidInputError, ReplyTimeoutError
from tests.unit.stubs import soon, turns
from tests.unit.test_batches import START, a_batch


class Bench:
    """A store and a listener that say what they were told to."""

    def __init__(self) -> None:
        self.closed: list[BatchMetadata] = []
        self.settled: dict[UUID, bool] = {}
        self.asked: list[list[UUID]] = []
        self.asked_settled: list[dict[UUID, str]] = []
        self.subscribed: list[tuple[str, Callable[[], None]]] = []
        self.found: list[BatchMetadata | None] = []
        self.called: list[BatchMetadata] = []
        self.completions = Completions(cast("Any", self), lambda: cast("Any", self))

    async def closed_batches(self, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        self.asked.append(list(batch_ids))
        return self.closed

    @property
    def gateway(self) -> Bench:
        return self

    async def rows(
        self, text: str, params: tuple[list[UUID], list[str]]
    ) -> list[tuple[UUID, bool]]:
        assert "pg_visible_in_snapshot" in text
        self.asked_settled.append(dict(zip(*params, strict=True)))
        return list(self.settled.items())

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        return self.found.pop(0)

    def subscribe(self, channel: str, wake: Callable[[], None]) -> None:
        self.subscribed.append((channel, wake))

    async def note(self, batch: BatchMetadata) -> None:
        self.called.append(batch)

    def hold(self, *batches: BatchMetadata) -> None:
        """Register without the task that would look by itself."""
        for batch in batches:
            self.completions._batch_callbacks[batch.domain, batch.batch_id] = self.note


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.completions.close()


async def test_a_registered_callback_is_called_once_by_a_task_of_its_own(bench: Bench) -> None:
    batch = a_batch()
    bench.closed = [batch]
    bench.completions.register("shop", batch.batch_id, bench.note)
    task = bench.completions._task
    assert task is not None
    bench.completions.register("shop", uuid4(), bench.note)
    assert bench.completions._task is task
    await soon(lambda: bench.called)
    await turns()
    assert bench.called == [batch]


async def test_a_domain_is_listened_to_once_and_a_hint_wakes(bench: Bench) -> None:
    for domain in ("shop", "shop", "bank"):
        bench.completions.register(domain, uuid4(), bench.note)
    channels = [channel for channel, _ in bench.subscribed]
    assert channels == ["commandbus.shop.batches", "commandbus.bank.batches"]
    bench.completions._woken.clear()
    bench.subscribed[0][1]()
    assert bench.completions._woken.is_set()


async def test_a_new_callback_is_looked_for_at_once(bench: Bench) -> None:
    for _ in range(10):
        bench.completions._polls.next()
    bench.completions.register("shop", uuid4(), bench.note)
    assert bench.completions._woken.is_set()
    assert bench.completions._polls.next() <= 0.02


async def test_looks_become_rarer_from_a_fiftieth_of_a_second_to_one(bench: Bench) -> None:
    pauses = [await bench.completions.step() for _ in range(10)]
    assert pauses[0] is not None
    assert 0.016 <= pauses[0] <= 0.02
    assert pauses[-1] is not None
    assert 0.8 <= pauses[-1] <= 1.0


async def test_only_batches_with_a_callback_are_asked_for(bench: Bench) -> None:
    await bench.completions.step()
    assert bench.asked == []
    batch, stranger = a_batch(), a_batch()
    bench.hold(batch)
    bench.closed = [stranger, batch]
    await bench.completions.step()
    assert bench.asked == [[batch.batch_id]]
    await soon(lambda: bench.called == [batch])


async def test_a_callback_is_armed_again_by_a_retry_if_this_process_has_it(bench: Bench) -> None:
    batch = a_batch()
    bench.hold(batch)
    bench.closed = [batch]
    await bench.completions.step()
    bench.completions.rearm("shop", uuid4())
    assert bench.completions._batch_callbacks == {}
    bench.completions.rearm("shop", batch.batch_id)
    await bench.completions.step()
    await soon(lambda: bench.called == [batch, batch])


async def test_a_thousand_callbacks_that_have_fired_are_remembered(bench: Bench) -> None:
    batches = [a_batch() for _ in range(1_001)]
    bench.hold(*batches)
    bench.closed = batches[:1_000]
    await bench.completions.step()
    assert len(bench.completions._fired) == 1_000
    bench.closed = batches[1_000:]
    await bench.completions.step()
    assert len(bench.completions._fired) == 1_000
    assert ("shop", batches[0].batch_id) not in bench.completions._fired
    assert ("shop", batches[1_000].batch_id) in bench.completions._fired


async def test_a_callback_that_fails_is_logged_and_not_called_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    batch, other = a_batch(), a_batch()
    bench.hold(batch, other)

    async def fail(ended: BatchMetadata) -> None:
        bench.called.append(ended)
        raise ValueError("password=hunter2")

    bench.completions._batch_callbacks["shop", batch.batch_id] = fail
    bench.closed = [batch, other]
    await bench.completions.step()
    await bench.completions.step()
    await soon(lambda: bench.called == [batch, other])
    await soon(lambda: f"fail of batch {batch.batch_id} failed: ValueError" in caplog.text)
    assert "hunter2" not in caplog.text


async def test_a_batch_whose_transaction_rolled_back_is_forgotten(bench: Bench) -> None:
    there, gone, open_still = a_batch(), a_batch(), a_batch()
    bench.hold(there, gone, open_still)
    for batch in (there, gone, open_still):
        bench.completions.depends_on("shop", batch.batch_id, "tx")
    bench.settled = {there.batch_id: True, gone.batch_id: False}
    await bench.completions.step()
    assert bench.asked_settled == [
        {batch.batch_id: "tx" for batch in (there, gone, open_still)}
    ]  # fmt: skip
    assert bench.asked == [[there.batch_id, open_still.batch_id]]
    bench.settled = {}
    await bench.completions.step()
    assert bench.asked_settled[1:] == [{open_still.batch_id: "tx"}]


async def test_without_open_transactions_none_is_asked_for(bench: Bench) -> None:
    bench.hold(a_batch())
    await bench.completions.step()
    assert bench.asked_settled == []


async def test_a_closed_one_looks_no_more_and_can_be_closed_twice(bench: Bench) -> None:
    bench.completions.register("shop", uuid4(), bench.note)
    task = bench.completions._task
    assert task is not None
    await bench.completions.close()
    assert task.done()
    assert bench.completions._task is None
    assert bench.completions.is_stopping
    await bench.completions.close()


async def test_a_look_that_hangs_does_not_hold_up_the_close(bench: Bench) -> None:
    entered = asyncio.Event()

    async def hang(batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    bench.closed_batches = hang  # type: ignore[method-assign]
    bench.completions.register("shop", uuid4(), bench.note)
    await entered.wait()
    await asyncio.wait_for(bench.completions.close(), 10)


# -- isolation


async def raise_cancelled(batch: BatchMetadata) -> None:
    raise asyncio.CancelledError


class Unusual(BaseException):
    """Neither an Exception nor something that ends a process."""


async def raise_unusual(batch: BatchMetadata) -> None:
    raise Unusual


async def hang(batch: BatchMetadata) -> None:
    await asyncio.Event().wait()


async def hang_and_heed_nothing(batch: BatchMetadata) -> None:
    while not batch.custom_data:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


def exit_thread(batch: BatchMetadata) -> None:
    raise SystemExit


def stop_iteration(batch: BatchMetadata) -> None:
    raise StopIteration


@pytest.mark.parametrize(
    "bad",
    [raise_cancelled, raise_unusual, hang, exit_thread, stop_iteration, hang_and_heed_nothing],
)
async def test_whatever_one_callback_does_the_later_ones_fire(
    bad: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_module, "CLOSE_SECONDS", 0.01)
    bench = Bench()
    bench.completions._timeout_seconds = 0.01
    data: dict[str, Any] = {}
    first, *later = [a_batch(custom_data=data), *(a_batch() for _ in range(5))]
    bench.hold(first, *later)
    bench.completions._batch_callbacks["shop", first.batch_id] = bad
    bench.closed = [first, *later]
    await bench.completions.step()
    await soon(lambda: bench.called == later)
    await soon(lambda: f"the callback {bad.__name__} of batch {first.batch_id}" in caplog.text)
    await bench.completions.close()
    data["ended"] = True


async def test_more_that_hang_than_may_run_at_once_delay_the_others_only_for_their_time(
    bench: Bench,
) -> None:
    bench.completions._timeout_seconds = 0.01
    batches = [a_batch() for _ in range(2 * completion_module.MAX_RUNNING + 1)]
    bench.hold(*batches)
    for batch in batches[:-1]:
        bench.completions._batch_callbacks["shop", batch.batch_id] = hang
    bench.closed = batches
    await bench.completions.step()
    await soon(lambda: bench.called == batches[-1:])


async def test_a_plain_function_runs_in_a_thread_and_may_block_there(bench: Bench) -> None:
    released, threads = threading.Event(), []

    def plain(batch: BatchMetadata) -> None:
        threads.append(threading.current_thread())
        released.wait(30)

    batch, other = a_batch(), a_batch()
    bench.hold(batch, other)
    bench.completions._batch_callbacks["shop", batch.batch_id] = plain
    bench.closed = [batch, other]
    await bench.completions.step()
    await soon(lambda: bench.called == [other])
    await soon(lambda: threads)
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon
    released.set()


async def test_what_a_plain_function_returns_is_awaited_and_an_object_may_be_called(
    bench: Bench,
) -> None:
    class Noting:
        async def __call__(self, batch: BatchMetadata) -> None:
            bench.called.append(batch)

    def plain(batch: BatchMetadata) -> Awaitable[None]:
        return bench.note(batch)

    batch, other = a_batch(), a_batch()
    bench.hold(batch, other)
    bench.completions._batch_callbacks["shop", batch.batch_id] = plain
    bench.completions._batch_callbacks["shop", other.batch_id] = Noting()
    bench.closed = [batch, other]
    await bench.completions.step()
    await soon(lambda: len(bench.called) == 2)


async def test_a_close_cancels_what_runs_and_waits_for_it(bench: Bench) -> None:
    begun, ended = asyncio.Event(), []

    async def slow(batch: BatchMetadata) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(batch)

    batch = a_batch()
    bench.completions._batch_callbacks["shop", batch.batch_id] = slow
    bench.closed = [batch]
    await bench.completions.step()
    await begun.wait()
    await bench.completions.close()
    assert ended == [batch]


async def yielding(batch: BatchMetadata) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("notify", "on_complete is str, which cannot be called"),
        (lambda: None, "is called with the batch and nothing else"),
        (lambda batch, more: None, "missing a required argument: 'more'"),
        (yielding, "is a generator"),
    ],
)
def test_what_cannot_be_called_back_is_refused_at_once(wrong: Any, says: str, bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match=says):
        bench.completions.register("shop", uuid4(), wrong)
    assert bench.completions._batch_callbacks == {}


def test_what_does_not_tell_its_parameters_is_taken_as_it_is() -> None:
    completion_module.check_callback(int)


# -- waiting


async def test_a_wait_ends_with_the_batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    stub = SimpleNamespace(sleep=sleep, timeout=asyncio.timeout)
    monkeypatch.setattr(completion_module, "asyncio", stub)
    ended = a_batch(completed_at=START)
    bench.found = [None, *[a_batch()] * 9, ended]
    assert await bench.completions.wait("shop", ended.batch_id, 10) is ended
    assert len(pauses) == 10
    assert pauses[0] <= 0.02
    assert 0.8 <= pauses[-1] <= 1.0
    monkeypatch.undo()


async def test_a_wait_has_an_end_of_its_own(bench: Bench) -> None:
    bench.found = [a_batch()] * 1_000
    with pytest.raises(ReplyTimeoutError, match=r"has not ended within 0.01 s; it goes on"):
        await bench.completions.wait("shop", uuid4(), 0.01)

"""Loop and Backoff: repeated until stopped, woken early, never ended by an error."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from commandbus.loops import ERROR_PAUSE_SECONDS, Backoff, Loop

FOR_EVER = 3_600.0


class Steps(Loop):
    """A loop whose steps are told in advance: a pause, None, or an error."""

    name = "steps"

    def __init__(self, *script: float | Exception | None) -> None:
        super().__init__()
        self.script = list(script)
        self.done = 0
        self.stepped = asyncio.Event()

    async def step(self) -> float | None:
        self.done += 1
        self.stepped.set()
        if not self.script:
            self.stop()
            return None
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def test_pauses_double_up_to_the_longest_and_start_over_after_a_reset() -> None:
    backoff = Backoff(1.0, 5.0)
    pauses = [backoff.next() for _ in range(5)]
    for pause, most in zip(pauses, [1, 2, 4, 5, 5], strict=True):
        assert 0.8 * most <= pause <= most
    backoff.reset()
    assert backoff.next() <= 1.0


def test_pauses_are_spread_by_chance() -> None:
    assert len({Backoff(1.0, 1.0).next() for _ in range(20)}) > 1


async def test_a_loop_repeats_its_step_until_it_is_stopped() -> None:
    loop = Steps(None, None, 0.0)
    assert not loop.is_stopping
    await loop.run()
    assert loop.done == 4
    assert loop.is_stopping


async def test_a_loop_that_was_stopped_does_not_step() -> None:
    loop = Steps(None)
    loop.stop()
    await loop.run()
    assert loop.done == 0


async def test_a_wake_up_cuts_a_pause_short() -> None:
    loop = Steps(FOR_EVER)
    running = asyncio.create_task(loop.run())
    await loop.stepped.wait()
    loop.wake()
    await running
    assert loop.done == 2


async def test_a_stop_cuts_a_pause_short() -> None:
    loop = Steps(FOR_EVER, FOR_EVER)
    running = asyncio.create_task(loop.run())
    await loop.stepped.wait()
    loop.stop()
    await running
    assert loop.done == 1


async def test_a_wake_up_during_a_step_is_not_lost() -> None:
    class Woken(Steps):
        async def step(self) -> float | None:
            pause = await super().step()
            self.wake()
            return pause

    loop = Woken(FOR_EVER)
    await loop.run()
    assert loop.done == 2


async def test_a_wake_up_counts_once() -> None:
    loop = Steps()
    loop.wake()
    await loop.pause(FOR_EVER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.pause(FOR_EVER), 0.01)


async def test_a_loop_outlives_errors_and_logs_them_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Steps(RuntimeError("password=hunter2"), None)
    with caplog.at_level(logging.WARNING, logger="commandbus.steps"):
        await loop.run()
    assert loop.done == 3
    assert "steps failed" in caplog.text
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


async def test_pauses_after_errors_grow_and_start_over_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = []

    async def note(self: Loop, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(Loop, "pause", note)
    boom = RuntimeError("x")
    await Steps(boom, boom, boom, None, boom).run()
    first = ERROR_PAUSE_SECONDS[0]
    for pause, most in zip(pauses, [first, 2 * first, 4 * first, first], strict=True):
        assert 0.8 * most <= pause <= most


async def test_a_loop_ends_when_it_is_cancelled() -> None:
    loop = Steps(FOR_EVER)
    running = asyncio.create_task(loop.run())
    await loop.stepped.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_loop_without_a_step_is_only_a_base() -> None:
    with pytest.raises(NotImplementedError):
        await Loop().step()


async def test_a_loop_ends_when_a_step_has_caught_its_cancel() -> None:
    class Deaf(Loop):
        """As a pool of connections, which may catch a cancel that comes with a connection."""

        async def step(self) -> float | None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return FOR_EVER

    running = asyncio.create_task(Deaf().run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait_for(running, 10)

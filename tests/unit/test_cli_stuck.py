"""A worker that gives up: when, how, and with which exit code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from commandbus.cli.ending import exit_code_of
from commandbus.cli.stuck import GivingUp, StuckError
from commandbus.cli.worker import End, run_until_stopped
from commandbus.errors import InvalidInputError


@dataclass
class Watched:
    """A process whose stuck domains and clock are the test's."""

    stuck: list[str] = field(default_factory=list)
    now: float = 0.0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def giving_up(self, seconds: float) -> GivingUp:
        return GivingUp(lambda: self.stuck, seconds, self.stopped.set, lambda: self.now)


def test_a_domain_must_be_stuck_for_the_whole_time() -> None:
    watched = Watched()
    giving_up = watched.giving_up(10)
    assert not giving_up.is_over()
    watched.stuck = ["shop"]
    assert not giving_up.is_over()
    watched.now = 9.9
    assert not giving_up.is_over()
    watched.stuck = []  # a thread came back
    assert not giving_up.is_over()
    watched.stuck = ["shop"]
    watched.now = 12
    assert not giving_up.is_over()
    giving_up.check()
    watched.now = 22
    assert giving_up.is_over()
    with pytest.raises(StuckError, match="all places of shop for 10 s"):
        giving_up.check()


async def test_it_stops_the_process_once() -> None:
    watched = Watched(stuck=["shop"])
    giving_up = watched.giving_up(0.01)
    async with giving_up.watched():
        await asyncio.sleep(0)
        watched.now = 1
        await asyncio.wait_for(watched.stopped.wait(), 10)


async def test_without_seconds_nobody_looks() -> None:
    watched = Watched(stuck=["shop"])
    before = len(asyncio.all_tasks())
    async with watched.giving_up(0).watched():
        assert len(asyncio.all_tasks()) == before


def test_the_exit_code_says_that_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> bool:
        raise StuckError("handlers that hang have taken all places of shop for 5 s")

    with pytest.raises(SystemExit) as ended:
        run_until_stopped(work)
    assert ended.value.code == exit_code_of(StuckError("x")) == 1
    assert "all places of shop" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="--exit-when-stuck"):
        End(exit_when_stuck=seconds)

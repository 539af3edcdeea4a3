"""`commandbus top`: what is drawn for which room, rates from look to look, a database away."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from dataclasses import replace
from typing import Any, cast

import pytest
from rich.console import Console

from commandbus.cli import top as module
from commandbus.cli.top import Seen
from commandbus.cli.top_view import Size, age_text, count_text, draw, rate_cell
from commandbus.errors import DatabaseUnavailableError
from commandbus.upkeep.activity import (
    Activity,
    DomainActivity,
    LimitActivity,
    Watch,
    WorkerActivity,
)
from tests.waiting import until

SHOP = DomainActivity(
    domain="shop", ready=12_345_678, delayed=40, is_estimate=True, oldest_seconds=75.0,
    queued_total=100, left_total=50, workers=2, concurrency=20, in_flight=13, parked=4,
    is_paused=False, in_per_second=1_234.5, out_per_second=2.25,
)  # fmt: skip
WORKER = WorkerActivity("host:1:abc", "shop", 10, 7, 1, False, 45.0, 7_300.0)
LIMIT = LimitActivity("shop", "Pack", True, 3, 10.0, 1.0, 2.0, True, 2, 10_000, 61.0)
NARROW, BROAD = Size(80), Size(160)


def drawn(activity: Activity, size: Size, *, domain: str | None = None) -> str:
    target = Console(file=io.StringIO(), width=size.width, highlight=False)
    target.print(draw(activity, "top", size, domain=domain))
    return cast("io.StringIO", target.file).getvalue()


@pytest.mark.parametrize("size", [NARROW, BROAD])
def test_the_picture_fits_the_terminal_and_shows_all_columns(size: Size) -> None:
    long = replace(SHOP, domain="d" * 39)
    text = drawn(Activity([SHOP, long], [replace(WORKER, domain="d" * 39)], [LIMIT]), size)

    assert max(map(len, text.splitlines())) <= size.width
    for title in ("READY", "LATER", "OLDEST", "IN/S", "OUT/S", "BUSY", "PARKED", "HEARTBEAT"):
        assert title in text
    assert "host:1:abc" in text
    (row,) = [line for line in text.splitlines() if line.startswith("shop ") and "13/20" in line]
    number, rate = ("~12,345,678", "1,234") if size is BROAD else ("~12.3M", "1,234")
    assert number in row.split()
    assert rate in row.split()
    assert {"75s", "2.2", "4"} <= set(row.split())
    assert "10,000+" in text if size is BROAD else "10k+" in text


def test_an_empty_database_says_what_is_missing_and_names_the_domain_that_was_asked_for() -> None:
    assert "No domain here yet" in drawn(Activity([], [], []), NARROW)
    text = drawn(Activity([], [], []), NARROW, domain="shop")
    assert "No domain shop here yet" in text
    assert "No workers." in text
    assert "LIMIT OF" not in text


def test_a_domain_that_is_paused_or_has_no_worker_says_so() -> None:
    alone = replace(SHOP, workers=0, concurrency=0, in_flight=0)
    assert "no worker" in drawn(Activity([alone], [], []), NARROW)
    assert "paused" in drawn(Activity([replace(alone, is_paused=True)], [], []), NARROW)
    quiet = drawn(Activity([replace(alone, ready=0)], [], []), NARROW)
    assert "no worker" not in quiet


def test_what_does_not_fit_is_left_out_and_counted_and_the_busiest_stay() -> None:
    domains = [replace(SHOP, domain=f"d{n:02}", ready=n) for n in range(40)]
    workers = [replace(WORKER, worker_id=f"w{n:02}") for n in range(40)]
    limits = [replace(LIMIT, type=f"T{n:02}", waiting=n) for n in range(40)]
    size = Size(80, 24)
    text = drawn(Activity(domains, workers, limits), size)

    assert len(text.splitlines()) <= 24
    assert "d39 " in text
    assert "d00 " not in text
    assert "T39 " in text
    assert "w00 " in text
    assert text.count(" more ") == 3
    assert Size(80, 5).rows(3, 3, 3) == [1, 1, 1]
    assert Size(80, 24).rows(1, 40, 0) == [1, 13, 0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10k"), (999_499, "999k"), (999_600, "1.0M"),
     (2_500_000_000, "2.5G")],
)  # fmt: skip
def test_a_number_is_short_where_there_is_little_room(value: int, text: str) -> None:
    assert count_text(value, NARROW) == text
    assert count_text(value, BROAD) == f"{value:,}"


def test_rates_and_ages_are_short() -> None:
    assert [rate_cell(each, NARROW) for each in (None, 0.0, 0.25, 9.96, 12_000.0)] == [
        "-", "0", "0.2", "10", "12k",
    ]  # fmt: skip
    assert [age_text(each) for each in (-1, 3, 119, 120, 7_200, 200_000)] == [
        "0s", "3s", "119s", "2m", "2h", "2d",
    ]  # fmt: skip


def test_rates_are_of_the_last_seconds_and_begin_anew_when_the_server_forgot() -> None:
    now = 0.0
    watch = Watch(cast("Any", None), None, clock=lambda: now)
    first = replace(SHOP, in_per_second=None, out_per_second=None)

    def look(at: float, queued: int, left: int) -> tuple[float | None, float | None]:
        nonlocal now
        now = at
        found = watch.with_rates(replace(first, queued_total=queued, left_total=left))
        return found.in_per_second, found.out_per_second

    assert look(0, 100, 50) == (None, None)
    assert look(2, 120, 60) == (10, 5)
    assert look(10, 120, 60) == (2, 1)
    assert look(20, 120, 60) == (0, 0)  # what came before the window counts no more
    assert look(21, 5, 0) == (None, None)
    assert look(22, 6, 3) == (1, 3)
    assert look(100, 84, 3) == (1, 0)  # an interval that is longer than the window


class Away(Watch):
    """A database that is away when it is told to be."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), None)
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def look(self) -> Activity:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Activity([SHOP], [WORKER], [])


def told(seen: Seen) -> str:
    target = Console(file=io.StringIO(), width=200, highlight=False)
    target.print(seen.picture(Size(200)))
    return cast("io.StringIO", target.file).getvalue()


async def test_a_database_that_is_away_is_said_and_what_was_seen_stays_until_it_is_back() -> None:
    watch = Away()
    seen = Seen(watch, None, 1.0)
    watch.error = DatabaseUnavailableError("connection refused [x]")
    await seen.look()
    assert "The database is away: connection refused [x]" in told(seen)
    assert seen.document() == {"at": None, "domains": [], "workers": [], "limits": []}

    watch.error = None
    await seen.look()
    assert "away" not in told(seen)
    assert "host:1:abc" in told(seen)
    watch.error = DatabaseUnavailableError("gone")
    await seen.look()
    assert "The database is away, this is of" in told(seen)
    assert "host:1:abc" in told(seen)
    with pytest.raises(DatabaseUnavailableError, match="gone"):
        await seen.look_now()


async def test_a_database_that_hangs_is_away_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    watch = Away()
    watch.gate = asyncio.Event()
    seen = Seen(watch, "shop", 1.0)
    await seen.look()
    assert "did not answer" in told(seen)
    first = seen.looking
    await seen.look()
    assert seen.looking is first  # looks do not pile up

    watch.gate.set()
    monkeypatch.setattr(module, "LOOK_SECONDS", 30.0)
    await seen.look()
    assert "host:1:abc" in told(seen)
    assert "did not answer" not in told(seen)


async def test_a_single_look_gives_up_on_a_database_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    watch = Away()
    watch.gate = asyncio.Event()
    seen = Seen(watch, None, 1.0)
    with pytest.raises(DatabaseUnavailableError, match="did not answer"):
        await seen.look_now()
    assert seen.looking is not None
    with pytest.raises(asyncio.CancelledError):
        await seen.looking


async def test_a_signal_ends_it_while_the_database_hangs() -> None:
    watch = Away()
    watch.gate = asyncio.Event()
    seen = Seen(watch, None, 1.0)
    living = asyncio.create_task(module._live(seen, Console(file=io.StringIO())))
    await until(lambda: seen.looking is not None, "the first look")
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(living, 10)
    assert seen.activity is None


async def test_other_failures_end_it() -> None:
    watch = Away()
    watch.error = RuntimeError("a defect")
    target = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(RuntimeError, match="a defect"):
        await module._live(Seen(watch, None, 1.0), target)

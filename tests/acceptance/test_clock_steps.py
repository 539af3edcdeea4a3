"""Schedules while the clock of the database is really set, forwards and back, and over the nights
in which clocks change: the server alone runs under libfaketime, whose offset is read from a file at
each look at the clock."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres, account
from commandbus.schedules.firing import Firing, tick_id
from commandbus.wiring import migrate_database
from faults.nemeses_schedules import CRONS, NIGHTS, ticks_of_night
from tests.waiting import until

LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
pytestmark = [
    pytest.mark.long,
    pytest.mark.postgres,
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed (Debian: faketime)"),
]
HOUR = 3_600
SETTINGS = Settings(maintenance=False)  # only what the test lets fire does


class Clock:
    """The clock of the server: so many seconds beside ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: float) -> None:
        """Put it so far beside ours."""
        self.path.write_text(f"{seconds:+.0f}", encoding="ascii")

    def set_to(self, moment: datetime) -> None:
        """Put it to this moment; it goes on from there."""
        self.set(moment.timestamp() - time.time())


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that the account of the server can reach."""
    with tempfile.TemporaryDirectory(prefix="commandbus-clock-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def clock(folder: Path) -> Clock:
    return Clock(folder / "offset")


@pytest.fixture(scope="module")
def skewed(clock: Clock, folder: Path) -> Iterator[str]:
    """The DSN of a server that has this clock."""
    names = {
        "LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME_TIMESTAMP_FILE": str(clock.path),
        "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    server = EmbeddedPostgres(folder / "server", settings={"fsync": "off"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "INHERITED_VARIABLES", (*account.INHERITED_VARIABLES, *names))
        for name, value in names.items():
            patch.setenv(name, value)
        server.start()
    try:
        yield server.dsn
    finally:
        server.stop()


@pytest.fixture
async def bus(skewed: str) -> AsyncIterator[CommandBus]:
    await migrate_database(skewed, Settings())
    async with CommandBus.connect(skewed, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def domain(clock: Clock) -> str:
    """One for each test, which begins with a clock that goes right."""
    clock.set(0)
    return f"d{uuid4().hex[:12]}"


async def rows(dsn: str, query: str, *params: object) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        return await (await conn.execute(query.encode(), params)).fetchall()


async def sent(dsn: str, schedule_id: UUID) -> set[UUID]:
    query = "select command_id from commandbus.command_bus_command where correlation_id = %s"
    return {command_id for (command_id,) in await rows(dsn, query, schedule_id)}


async def test_each_tick_is_sent_once_while_the_clock_goes_an_hour_forwards_and_back(
    bus: CommandBus, skewed: str, clock: Clock, domain: str
) -> None:
    await bus.schedules.put(
        domain, "often", "Work", {}, every=timedelta(seconds=1), missed="all", missed_cap=50,
        overlap="allow",
    )  # fmt: skip
    schedule = await bus.schedules.require(domain, "often")

    def more_than(number: int) -> Callable[[], Awaitable[bool]]:
        async def is_so() -> bool:
            return len(await sent(skewed, schedule.schedule_id)) > number

        return is_so

    firers = [asyncio.create_task(Firing(bus._store).run()) for _ in range(3)]
    try:
        await until(more_than(0), "the first tick")
        clock.set(HOUR)
        await until(more_than(50), "the ticks that are made up for")
        clock.set(0)
        # Looks that began before the step are over; those after it find nothing for an hour.
        before = await sent(skewed, schedule.schedule_id)
        fired = Firing(bus._store)
        for _ in range(3):
            await fired.step()
        assert len(await sent(skewed, schedule.schedule_id)) <= len(before) + 3
    finally:
        for firer in firers:
            firer.cancel()
        await asyncio.gather(*firers, return_exceptions=True)
    [(begun, last)] = await rows(
        skewed,
        "select counted_from, last_tick_at from commandbus.command_bus_schedule where domain = %s",
        domain,
    )
    [(dropped,)] = await rows(
        skewed,
        "select sum((details_json ->> 'count')::int - (details_json ->> 'made_up')::int)"
        " from commandbus.command_bus_audit where event_type = 'SCHEDULE_MISSED' and domain = %s",
        domain,
    )
    planned = {
        tick_id(schedule.schedule_id, begun + timedelta(seconds=n))
        for n in range(1, int((last - begun).total_seconds()) + 1)
    }
    found = await sent(skewed, schedule.schedule_id)
    assert found <= planned
    assert len(found) + dropped == len(planned)


@pytest.mark.parametrize(("zone", "evening"), NIGHTS)
async def test_a_night_in_which_clocks_change_has_the_ticks_that_its_people_expect(
    bus: CommandBus, skewed: str, clock: Clock, domain: str, zone: str, evening: datetime
) -> None:
    clock.set_to(evening)
    schedules = {}
    for number, cron in enumerate(CRONS):
        name = f"night-{number}"
        await bus.schedules.put(
            domain, name, "Work", {}, cron=cron, timezone=zone, missed="all", overlap="allow"
        )
        schedules[cron] = (await bus.schedules.require(domain, name)).schedule_id
    firers = [Firing(bus._store) for _ in range(2)]
    moment = evening
    for _ in range(24):  # half an hour each, and a little back in between
        moment += timedelta(minutes=30)
        for seconds in (5, -600, 5):
            clock.set_to(moment + timedelta(seconds=seconds))
            await asyncio.gather(*(firer.step() for firer in firers))
    for cron, schedule_id in schedules.items():
        wanted = {
            tick_id(schedule_id, tick)
            for tick in ticks_of_night(cron, zone, evening, moment.astimezone(UTC))
        }
        assert wanted
        assert await sent(skewed, schedule_id) == wanted, cron

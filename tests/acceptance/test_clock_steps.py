"""Schedules, rates, expiry and pauses while the clock of the database is really set, forwards and
back, and over the nights in which clocks change: the server alone runs under libfaketime, whose
offset is read from a file at each look at the clock."""

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

from commandbus import BatchCommand, CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres, account
from commandbus.schedules.firing import Firing, tick_id
from commandbus.wiring import migrate_database
from faults.nemeses_schedules import CRONS, NIGHTS, ticks_of_night
from tests.waiting import until, until_status

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


async def test_a_rate_gives_one_burst_after_a_step_forwards_and_goes_on_after_one_back(
    bus: CommandBus, clock: Clock, domain: str
) -> None:
    """An hour that did not pass is worth one bucket, and an hour back stops nobody for an hour."""
    await bus.limits.set(domain, "Work", rate=0.5, burst=3)
    await bus.send_many(domain, [BatchCommand("Work", uuid4(), {}) for _ in range(12)])
    async with bus.consumer(domain) as consumer:

        async def leased() -> int:
            return len(await consumer.receive(12))

        assert await leased() == 3
        clock.set(HOUR)
        assert await leased() == 3, "one burst, and not the 1,800 of an hour"
        assert await leased() == 0
        clock.set(0)
        # The bucket is empty, and its last look lies an hour ahead.
        before = time.monotonic()
        await until(leased, "a lease after the step back", patience=30.0)
        # Two seconds for a token, and at most as long as the bucket takes to fill: 6 s.
        assert time.monotonic() - before < 20.0


async def test_what_expires_ends_when_the_clock_of_the_database_says_so(
    bus: CommandBus, skewed: str, clock: Clock, domain: str
) -> None:
    """Forwards it ends early, by that clock; what has ended stays so when the clock goes back."""
    early, late = uuid4(), uuid4()
    now = datetime.now(UTC)
    await bus.send(domain, "Work", early, {}, expires_at=now + timedelta(minutes=30))
    await bus.send(domain, "Work", late, {}, expires_at=now + timedelta(hours=2))
    clock.set(HOUR)
    async with bus.consumer(domain) as consumer:
        (lease,) = await consumer.receive(5)
        assert lease.command.command_id == late, "the other one must not begin any more"
    await until_status(bus, domain, early, "CANCELED")
    clock.set(0)
    await rows(skewed, "select commandbus.end_expired()")
    async with bus.consumer(domain) as consumer:
        assert await consumer.receive(5) == []
    found = await bus.get_command(domain, early)
    assert found is not None
    assert found.status == "CANCELED"
    [(ends,)] = await rows(
        skewed,
        "select count(*) from commandbus.command_bus_audit where domain = %s and command_id = %s"
        " and event_type in ('EXPIRED', 'CANCELED')", domain, early,
    )  # fmt: skip
    assert ends == 1


async def test_a_pause_is_over_when_the_clock_of_the_database_has_come_to_its_end(
    bus: CommandBus, clock: Clock, domain: str
) -> None:
    """Back again before its end, it stays over once somebody has written so down."""
    await bus.send_many(domain, [BatchCommand("Work", uuid4(), {}) for _ in range(2)])
    await bus.pause(domain, reason="the bank is closed", until=timedelta(minutes=30))
    async with bus.consumer(domain) as consumer:
        assert await consumer.receive(1) == []
        clock.set(HOUR)
        assert len(await consumer.receive(1)) == 1
        # Nothing was written down, so the same pause holds when the clock is put right.
        clock.set(0)
        assert await consumer.receive(1) == []
        clock.set(HOUR)
        await bus._store.gateway.rows("select {schema}.end_pauses()")
        clock.set(0)
        assert await bus.pauses(domain) == []
        assert len(await consumer.receive(1)) == 1

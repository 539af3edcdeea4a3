"""Schedules under faults (F32): each tick once, while processes die and the clock is set.

The clock of the database cannot be set from here. A step of it is made as in F10: everything that a
schedule keeps about time moves against the clock. The nights in which clocks change are made the
same way: a schedule is put back to before such a night, and has to make up for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from commandbus import CommandBus, Settings
from commandbus.schedules.firing import tick_id
from faults.arena import DOMAIN, Arena
from faults.facts_flow import Ticked

SECOND = timedelta(seconds=1)
#: A step of the clock: an hour, and so much that no tick after it has the time of one before it.
#: With a real clock none has; here what was fired before the step was fired at the same hours.
STEP = timedelta(seconds=3605)
#: All that happens in these nights happens at a quarter of an hour.
QUARTER = timedelta(minutes=15)
#: The interval of the schedules whose clock is set, and how many late ticks they make up for.
STEP_EVERY, STEP_CAP = timedelta(seconds=10), 20
#: Ticks of a night that are made up for; what came in the days after it is dropped.
NIGHT_CAP = 80
#: Days that such a schedule is due on, from that night on. Were it due until today, a look at some
#: months of quarters of an hour would end before all are counted.
NIGHT_DAYS = 3
#: One night in spring and one in autumn for each: (zone, the evening before, in UTC).
NIGHTS = (
    ("Europe/Berlin", datetime(2026, 3, 28, 18, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 18, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 7, 22, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 31, 22, tzinfo=UTC)),
    # Half an hour only, and in the other half of the year.
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 6, tzinfo=UTC)),
)
#: Half past two, and twice an hour.
CRONS = ("30 2 * * *", "15,45 * * * *")

MOVE = """
update commandbus.command_bus_schedule
   set next_tick_at = next_tick_at + make_interval(secs => %s),
       look_at = look_at + make_interval(secs => %s),
       counted_from = counted_from + make_interval(secs => %s),
       last_tick_at = last_tick_at + make_interval(secs => %s)
 where domain = %s and name like 'steps-%%'
"""
TOLD = """
select a.command_id, a.event_type, sum(case a.event_type
           when 'SCHEDULE_SKIPPED' then (a.details_json ->> 'ticks')::int
           else (a.details_json ->> 'count')::int - (a.details_json ->> 'made_up')::int end)
  from commandbus.command_bus_audit a
 where a.domain = %s and a.event_type in ('SCHEDULE_SKIPPED', 'SCHEDULE_MISSED')
 group by 1, 2
"""


@dataclass(frozen=True, slots=True)
class Schedules:
    """Many schedules with a tick each second, and some whose nights have to be made up for."""

    number: int
    seconds: float
    #: Steps of the clock, by an hour, forwards and then back.
    steps: int = 1
    name: str = "schedules"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Put them, and let them run while others kill the workers."""
        settings = Settings(maintenance=False)
        async with CommandBus.connect(arena.direct_dsn(), settings=settings) as bus:
            for number in range(self.number):
                # Every tenth has commands that outlast its interval: ticks are skipped.
                is_single = number % 10 == 0
                await bus.schedules.put(
                    DOMAIN, f"every-{number:04}", "Work",
                    {"ms": 1500 if is_single else 1, "fate": "fine"}, every=SECOND,
                    missed="all", missed_cap=10_000, overlap="skip" if is_single else "allow",
                )  # fmt: skip
            for number in range(self.steps):
                await bus.schedules.put(
                    DOMAIN, f"steps-{number}", "Work", {"ms": 1}, every=STEP_EVERY, missed="all",
                    missed_cap=STEP_CAP, overlap="allow",
                )  # fmt: skip
            await self._nights(arena, bus)
        if self.steps:
            await asyncio.sleep(self.seconds / 3)
            # The clock goes forward by an hour: 360 ticks are late, and 20 of them are made up for.
            await self._step(arena, -STEP.total_seconds())
            await asyncio.sleep(self.seconds / 3)
            # And back: nothing is due for an hour, and nothing is sent again.
            await self._step(arena, STEP.total_seconds())
            await asyncio.sleep(self.seconds / 3)
        else:
            await asyncio.sleep(self.seconds)

    async def _nights(self, arena: Arena, bus: CommandBus) -> None:
        for place, (zone, evening) in enumerate(NIGHTS):
            for number, cron in enumerate(crons_of(zone, evening)):
                name = f"night-{place}-{number}"
                await bus.schedules.put(
                    DOMAIN, name, "Work", {"ms": 1}, cron=cron, timezone=zone, missed="all",
                    missed_cap=NIGHT_CAP, overlap="allow",
                )  # fmt: skip
                first = next(ticks_of_night(cron, zone, evening, datetime.now(UTC)))
                await arena.query(
                    "update commandbus.command_bus_schedule set next_tick_at = %s, look_at = %s"
                    " where domain = %s and name = %s", first, first, DOMAIN, name,
                )  # fmt: skip

    async def _step(self, arena: Arena, shift: float) -> None:
        arena.counts["clock_steps"] += 1
        await arena.query(MOVE, *[shift] * 4, DOMAIN)

    async def heal(self, arena: Arena) -> None:
        """Pause all of them, and count: from what was planned to what is there."""
        while True:
            [(late,)] = await arena.query(
                "select count(*) from commandbus.command_bus_schedule"
                " where next_tick_at < clock_timestamp() - interval '3 seconds'"
            )
            if not late:
                break
            await asyncio.sleep(0.2)
        await arena.query(
            "update commandbus.command_bus_schedule set paused_at = clock_timestamp(),"
            " version = version + 1"
        )
        await _count(arena)


async def _count(arena: Arena) -> None:
    told: dict[tuple[UUID, str], int] = {}
    for schedule_id, event, number in await arena.query(TOLD, DOMAIN):
        told[schedule_id, event] = int(number)
    sent: dict[UUID, set[UUID]] = {}
    for schedule_id, command_id in await arena.query(
        "select correlation_id, command_id from commandbus.command_bus_command c"
        " where exists (select from commandbus.command_bus_schedule s"
        "                where s.schedule_id = c.correlation_id)"
    ):
        sent.setdefault(schedule_id, set()).add(command_id)
    for schedule_id, name, cron, zone, begun, last in await arena.query(
        "select schedule_id, name, cron, timezone, counted_from, last_tick_at"
        "  from commandbus.command_bus_schedule where last_tick_at is not null"
    ):
        found = sent.get(schedule_id, set())
        planned, wanted, allowed = _planned(name, cron, zone, begun, last)
        ticked = Ticked(
            name, planned, len(found), told.get((schedule_id, "SCHEDULE_SKIPPED"), 0),
            told.get((schedule_id, "SCHEDULE_MISSED"), 0),
        )  # fmt: skip
        arena.flow.ticks.append(ticked)
        arena.counts["ticks_planned"] += ticked.planned
        arena.counts["ticks_skipped"] += ticked.skipped
        arena.counts["ticks_dropped"] += ticked.dropped
        # As if the harness had sent them: what is wanted must be there, and nothing else may be
        # there than what is allowed.
        is_whole = not ticked.skipped
        arena.log.write(
            "send", ids=[str(tick_id(schedule_id, tick)) for tick in wanted],
            outcome="ok" if is_whole else "unknown",
        )  # fmt: skip
        others = [str(tick_id(schedule_id, tick)) for tick in allowed]
        arena.log.write("send", ids=others, outcome="unknown")


def _planned(
    name: str, cron: str | None, zone: str | None, begun: datetime, last: datetime
) -> tuple[int, list[datetime], list[datetime]]:
    """How many ticks were planned, those that must have been sent, and those that may have been."""
    if cron is not None and zone is not None:
        evening = NIGHTS[int(name.split("-")[1])][1]
        planned = list(ticks_of_night(cron, zone, evening, last))
        return len(planned), planned[:NIGHT_CAP], planned[NIGHT_CAP:]
    if name.startswith("steps-"):
        # The hour that was stepped over has ticks as well, at times that were not so at first.
        number = (last - begun) // STEP_EVERY
        before = [begun + n * STEP_EVERY for n in range(1, number + 1)]
        return number, [], [*before, *(tick - STEP for tick in before)]
    planned = [begun + n * SECOND for n in range(1, (last - begun) // SECOND + 1)]
    return len(planned), planned, []


def crons_of(zone: str, evening: datetime) -> Iterator[str]:
    """Both expressions, on the days from the night after this evening on, and on no others."""
    night = evening.astimezone(ZoneInfo(zone)).date() + timedelta(days=1)
    days = f"{night.day}-{night.day + NIGHT_DAYS - 1} {night.month}"
    for cron in CRONS:
        minute, hour, *_ = cron.split()
        yield f"{minute} {hour} {days} *"


def ticks_of_night(cron: str, zone: str, evening: datetime, last: datetime) -> Iterator[datetime]:
    """The ticks of an expression after an evening, found by looking at each quarter of an hour.

    A fixed hour that a day has twice counts the first time; one that it does not have, at the first
    moment after the gap. Expressions with any hour follow real time.
    """
    place = ZoneInfo(zone)
    minute, hour, days, month, _ = cron.split()
    minutes = minute.split(",")
    first_day, _, last_day = days.partition("-")
    seen: set[date] = set()
    moment = evening
    while (moment := moment + QUARTER) <= last:
        local = moment.astimezone(place)
        if days != "*" and not (
            local.month == int(month) and int(first_day) <= local.day <= int(last_day)
        ):
            continue
        if hour == "*":
            if str(local.minute) in minutes:
                yield moment
        elif (local.hour, local.minute) >= (int(hour), int(minutes[0])):
            day = local.date()
            if day not in seen and day != evening.astimezone(place).date():
                yield moment
            seen.add(day)

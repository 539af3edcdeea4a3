"""Firing: sends what is due, of all domains, in any process that lives. There is no leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.store import Store
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    DomainMovedError,
    DomainMovingError,
)
from commandbus.ids import derive_id
from commandbus.loops import Loop
from commandbus.privacy.redaction import redact_text
from commandbus.schedules.model import Missed, ScheduleTime, UnknownZone
from commandbus.schedules.ticks import Plan, expression_of, plan

#: Seconds between two looks.
LOOK_SECONDS = 1.0
#: Schedules that one look takes, and one transaction fires.
AT_ONCE = 100
#: Commands that one transaction sends, unless one schedule alone has more.
MAX_COMMANDS = 2_000
#: Seconds after which a schedule whose command could not be sent is looked at again.
FAILED_WAIT_SECONDS = 30.0
#: A schedule that is later than this may have very many ticks: they are computed in a thread.
LONG_LATE = timedelta(hours=1)

_DUE: LiteralString = "select * from {schema}.due_schedules(%s, cast(%s as text[]))"
_FIRE: LiteralString = (
    "select schedule_id, verdict, sent, skipped from {schema}.fire_schedules(cast(%s as jsonb))"
)
_FAIL: LiteralString = "select {schema}.fail_schedule(%s, %s, cast(%s as timestamptz), %s, %s)"


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule that is due, and the time by the clock of the database when it was found."""

    now: datetime
    schedule_id: UUID
    version: int
    next_tick_at: datetime
    cron: str | None
    timezone: str | None
    every_seconds: float | None
    at: datetime | None
    counted_from: datetime
    missed: str
    missed_cap: int

    def plan(self) -> Plan:
        """What to do about it; raises UnknownZone if its zone is not known here."""
        time = ScheduleTime(
            self.cron, self.timezone, self.every_seconds, self.at, self.counted_from
        )
        expression = expression_of(time)
        return plan(expression, self.next_tick_at, self.now, Missed(self.missed), self.missed_cap)


#: A schedule, and what fire_schedules takes for it.
Planned = tuple[DueSchedule, dict[str, Any]]


class Firing(Loop):
    """Looks once a second for schedules that are due, and fires them."""

    name = "schedules"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._gateway = store.gateway
        #: Zones that this machine does not know: left to other processes.
        self._unknown: set[str] = set()

    async def step(self) -> float | None:
        """Fire some of what is due."""
        due = await self._gateway.rows(_DUE, (AT_ONCE, sorted(self._unknown)), into=DueSchedule)
        planned = [found for each in due if (found := await self._planned(each)) is not None]
        settled = sum([await self._fire(group) for group in _groups(planned)])
        # A full look: more may be due. Not if all of these were taken or locked by others.
        return None if len(due) == AT_ONCE and settled else LOOK_SECONDS

    async def _planned(self, due: DueSchedule) -> Planned | None:
        try:
            if due.now - due.next_tick_at > LONG_LATE:
                return due, _document(due, await asyncio.to_thread(due.plan))
            return due, _document(due, due.plan())
        except UnknownZone:
            if due.timezone is not None and due.timezone not in self._unknown:
                self._unknown.add(due.timezone)
                self._log.warning(
                    "no time zone %s in the zone data of this machine: its schedules are left to "
                    "other processes; install the package tzdata and start this one again",
                    due.timezone,
                )
        except Exception as error:  # noqa: BLE001  (one schedule must not keep the others waiting)
            await self._fail(due, error)
        return None

    async def _fire(self, planned: Sequence[Planned]) -> int:
        """All in one transaction; if that is refused, each alone, and the one to blame waits.

        Returns how many were settled, one way or the other.
        """
        try:
            rows = await self._gateway.rows(_FIRE, (encoding.dump([each for _, each in planned]),))
        except (DomainMovingError, DomainMovedError):
            # Nothing of it can be changed here now. Its tick is fired where the domain is then.
            if len(planned) > 1:
                return sum([await self._fire([each]) for each in planned])
            return 0
        except DatabaseUnavailableError:
            raise
        except CommandBusError as error:
            if len(planned) > 1:
                return sum([await self._fire([each]) for each in planned])
            await self._fail(planned[0][0], error)
            return 1
        for schedule_id, verdict, _, _ in rows:
            if verdict == "refused":
                self._log.warning(
                    "schedule %s is paused: its command type is governed by now, and it was put "
                    "over HTTP", schedule_id,
                )  # fmt: skip
        return len(rows)

    async def _fail(self, due: DueSchedule, error: Exception) -> None:
        text = redact_text(f"{type(error).__name__}: {error}")
        self._log.warning("schedule %s cannot be fired: %s", due.schedule_id, text)
        params = (due.schedule_id, due.version, due.next_tick_at, text, FAILED_WAIT_SECONDS)
        await self._gateway.rows(_FAIL, params)


def _groups(planned: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
    """What to fire in one transaction each: after a long absence each may have many ticks."""
    group: list[Planned] = []
    size = 0
    for each in planned:
        if group and size + len(each[1]["ids"]) > MAX_COMMANDS:
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each[1]["ids"])
    if group:
        yield group


def _document(due: DueSchedule, found: Plan) -> dict[str, Any]:
    """What fire_schedules takes."""
    missing = None
    if found.missing is not None:
        missing = {
            "count": found.missing.count,
            "is_exact": found.missing.is_exact,
            "first": found.missing.first,
            "last": found.missing.last,
            "made_up": found.made_up,
        }
    return {
        "schedule_id": due.schedule_id,
        "version": due.version,
        "expected": due.next_tick_at,
        "ticks": found.ticks,
        "ids": [tick_id(due.schedule_id, tick) for tick in found.ticks],
        "last": found.last,
        "next": found.next,
        "missed": missing,
    }


def tick_id(schedule_id: UUID, tick: datetime) -> UUID:
    """The id of the command of a tick: the same in every process."""
    return derive_id(schedule_id, at=tick)

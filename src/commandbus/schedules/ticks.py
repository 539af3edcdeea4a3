"""Ticks: when a schedule is due, and which of its ticks to send. No clock and no database here.

Cron expressions follow Debian's cron. A fixed hour that a change to summer time leaves out is due
once, at the first minute after the gap; one that comes twice in autumn, the first time only. An
expression with a free hour (`*/30 * * * *`) follows real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import monotonic
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from commandbus.errors import InvalidInputError
from commandbus.names import in_utc
from commandbus.schedules.model import Missed, ScheduleTime, UnknownZone

#: A tick that is later than this is missed, and the policy of its schedule decides.
MISSED_AFTER = timedelta(seconds=60)
#: Missed ticks of a cron expression that are counted one by one, and the seconds that this may
#: take; after a longer absence the count is "at least this many": every minute of a year is half a
#: million, and cronsim goes from minute to minute.
MAX_COUNTED, MAX_COUNT_SECONDS = 50_000, 1.0
MIN_EVERY = timedelta(seconds=1)
MAX_EVERY = timedelta(days=3_660)
MAX_CRON_LENGTH = 200
#: No tick is later: the last year that Python knows, short of what any zone may add to it.
LAST = datetime(9999, 12, 30, tzinfo=UTC)


class Expression(Protocol):
    """Gives the ticks of a schedule, in UTC."""

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks that are strictly later than this moment, each later than the one before."""

    def scan(self, first: datetime, until: datetime) -> Missing:
        """How many ticks there are from the tick `first` on and before `until`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The missed ticks of one look."""

    count: int
    first: datetime
    last: datetime
    #: Whether the count is exact, or the least that it can be.
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a schedule that is due."""

    #: To be sent, oldest first.
    ticks: tuple[datetime, ...]
    #: The last one that is settled by this, whether sent or not.
    last: datetime
    #: The next one; None: there is none, the schedule is finished.
    next: datetime | None
    missing: Missing | None
    #: How many of the missed ones are among `ticks`.
    made_up: int


def plan(
    expression: Expression, due: datetime, now: datetime, missed: Missed, missed_cap: int
) -> Plan:
    """What to do at `now` about a schedule whose next planned tick `due` has come.

    Goes on from the planned tick, never from now: inside an hour that is repeated in autumn an
    expression would give a tick before its start.
    """
    late = now - MISSED_AFTER
    missing, ticks, last = None, [], None
    if due < late:
        missing = expression.scan(due, late)
        last = missing.last
        if missed is Missed.ONCE:
            ticks = [last]
        elif missed is Missed.ALL:
            wanted = min(missed_cap, missing.count)
            ticks = [due, *islice(expression.after(due), wanted - 1)]
    made_up = len(ticks)
    if last is None:
        ticks, last = [due], due
    for tick in expression.after(last):
        if tick > now:
            return Plan(tuple(ticks), last, tick, missing, made_up)
        ticks.append(tick)
        last = tick
    return Plan(tuple(ticks), last, None, missing, made_up)


@dataclass(frozen=True, slots=True)
class Once:
    """One tick."""

    at: datetime

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The tick, if it is later."""
        return iter((self.at,) if self.at > moment else ())

    def scan(self, first: datetime, until: datetime) -> Missing:  # noqa: ARG002
        """The tick alone."""
        return Missing(1, first, first)


@dataclass(frozen=True, slots=True)
class Interval:
    """Ticks at the same distance from each other, counted from one moment and not from the last."""

    every: timedelta
    counted_from: datetime

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks after this moment, up to the year 9999."""
        number = max(1, (moment - self.counted_from) // self.every + 1)
        last = (LAST - self.counted_from) // self.every
        yield from (self.counted_from + n * self.every for n in range(number, last + 1))

    def scan(self, first: datetime, until: datetime) -> Missing:
        """Counted without going through them."""
        count = -((first - until) // self.every)
        return Missing(count, first, first + (count - 1) * self.every)


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks of a cron expression in a time zone."""

    cron: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks after this moment; none if 50 years have none."""
        found = CronSim(self.cron, moment.astimezone(self.zone))
        last = moment
        while (local := next(found, None)) is not None:
            tick = local.astimezone(UTC)
            # Begun in the second pass of a repeated hour, the first ones lie before the moment.
            if tick > last:
                yield tick
                last = tick

    def scan(self, first: datetime, until: datetime) -> Missing:
        """Counted one by one, up to a limit; beyond that only the last one is looked for."""
        count, last, deadline = 1, first, monotonic() + MAX_COUNT_SECONDS
        for tick in self.after(first):
            if tick >= until:
                return Missing(count, first, last)
            count, last = count + 1, tick
            if count >= MAX_COUNTED or (count % 256 == 0 and monotonic() > deadline):
                break
        else:
            return Missing(count, first, last)
        # About a thousand ticks before the end, and twice as far while there is none.
        span = (last - first) / 100
        while (begin := until - span) > last:
            latest = None
            for tick in self.after(begin):
                if tick >= until:
                    break
                latest = tick
            if latest is not None:
                return Missing(count, first, latest, is_exact=False)
            span *= 2
        for tick in self.after(last):
            if tick >= until:
                break
            count, last = count + 1, tick
        return Missing(count, first, last)


def expression_of(time: ScheduleTime) -> Expression:
    """The ticks of a stored schedule; raises UnknownZone if its zone is not known here."""
    if time.cron is not None:
        return Cron(time.cron, _zone(time.timezone or "UTC"))
    if time.every_seconds is not None:
        return Interval(timedelta(seconds=time.every_seconds), time.counted_from)
    assert time.at is not None  # noqa: S101  (the table has a constraint)
    return Once(time.at)


def check_time(cron: Any, timezone: Any, every: Any, at: Any, *, now: datetime) -> ScheduleTime:
    """When a schedule is to be due, checked; raises InvalidInputError with what is wrong.

    An interval is counted from `now`, by the clock of the database.
    """
    given = [
        name for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None
    ]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidInputError(f"give one of cron, every and at; there is {found}")
    if timezone is not None and cron is None:
        raise InvalidInputError(
            f"timezone belongs to cron; {given[0]} is the same moment in all zones"
        )
    start = now.replace(microsecond=0)
    if cron is not None:
        text, zone = _check_cron(cron), "UTC" if timezone is None else check_zone(timezone)
        _refuse_endless(Cron(text, _zone(zone)), now)
        return ScheduleTime(text, zone, None, None, start)
    if every is not None:
        return ScheduleTime(None, None, _check_every(every).total_seconds(), None, start)
    return ScheduleTime(None, None, None, _check_at(at), start)


def next_after(time: ScheduleTime, moment: datetime) -> datetime | None:
    """The first tick after a moment; None if there is none."""
    return next(expression_of(time).after(moment), None)


def check_zone(name: Any) -> str:
    """Return the name of a time zone, or raise InvalidInputError."""
    if not isinstance(name, str) or not name or len(name) > 100:
        raise InvalidInputError(f"timezone must be a name like 'Europe/Berlin', not {name!r}")
    try:
        _zone(name)
    except UnknownZone:
        raise InvalidInputError(
            f"no time zone {name!r} in the zone data of this machine; use a name like "
            "'Europe/Berlin' (if this is one, install the package tzdata)"
        ) from None
    return name


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found, no proper name, a folder
        raise UnknownZone(name) from None


def _check_cron(text: Any) -> str:
    if not isinstance(text, str) or len(text) > MAX_CRON_LENGTH:
        raise InvalidInputError(
            f"cron must be a text of at most {MAX_CRON_LENGTH} characters, like '0 6 * * 1-5'"
        )
    fields = text.split()
    if len(fields) != 5:
        raise InvalidInputError(
            f"cron {text!r} has {len(fields)} fields; write five: minute, hour, day of the month, "
            "month, day of the week (for seconds use every)"
        )
    try:
        CronSim(" ".join(fields), datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidInputError(
            f"cron {text!r} is not understood: {str(error).lower()}; write for example "
            "'0 6 * * 1-5'"
        ) from None
    except (AssertionError, ValueError, TypeError):
        raise InvalidInputError(
            f"cron {text!r} is not understood; write for example '0 6 * * 1-5'"
        ) from None
    return " ".join(fields)


def _refuse_endless(cron: Cron, now: datetime) -> None:
    if next(cron.after(now), None) is None:
        raise InvalidInputError(f"cron {cron.cron!r} is never due; check its day and its month")


def _check_every(every: Any) -> timedelta:
    if type(every) in (int, float):
        try:
            every = timedelta(seconds=every)
        except (OverflowError, ValueError):
            every = MAX_EVERY + MIN_EVERY
    if not isinstance(every, timedelta):
        raise InvalidInputError(f"every must be a timedelta or a number of seconds, not {every!r}")
    if not MIN_EVERY <= every <= MAX_EVERY:
        raise InvalidInputError(
            f"every is {every.total_seconds():,g} s; use from 1 s to {MAX_EVERY.days:,} days"
        )
    return every


def _check_at(at: Any) -> datetime:
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidInputError(f"at must be a datetime with a time zone, not {at!r}")
    if at > LAST:
        raise InvalidInputError(f"at is {at.isoformat()}; use a time before {LAST:%Y-%m-%d}")
    return in_utc(at)

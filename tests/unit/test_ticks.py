"""Ticks: both nights of summer time in three zones, intervals, one-offs, and what is missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commandbus.errors import InvalidInputError
from commandbus.schedules import ticks
from commandbus.schedules.model import Missed, ScheduleTime, UnknownZone
from commandbus.schedules.ticks import (
    Cron,
    Interval,
    Once,
    check_time,
    expression_of,
    next_after,
    plan,
)

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(cron: str, zone: str, start: str, count: int) -> list[str]:
    """The ticks after a moment in UTC, as a clock on the wall of the zone shows them."""
    found = Cron(cron, ZoneInfo(zone)).after(utc(start))
    shown = [tick.astimezone(ZoneInfo(zone)) for tick in islice(found, count)]
    return [f"{each:%d %H:%M}{each:%z}"[:11] for each in shown]


# -- the nights: Berlin and New York change by an hour, Lord Howe by half an hour

NIGHTS = [
    # A fixed hour that is left out in spring: once, at the first minute after the gap.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+02", "30 02:30+02"]),
    ("30 2 * * *", "America/New_York", "2026-03-07T18:00", ["08 03:00-04", "09 02:30-04"]),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T03:00", ["04 02:30+11", "05 02:15+11"]),
    # One that comes twice in autumn: the first time only.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30+02", "26 02:30+01"]),
    ("30 1 * * *", "America/New_York", "2026-10-31T18:00", ["01 01:30-04", "02 01:30-05"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T03:00", ["05 01:45+11", "06 01:45+10"]),
    # Two hours, one of which is left out: the tick after the gap is not sent twice.
    ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+02", "30 02:00+02"]),
    ("30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+02", "29 03:30+02"]),
    # A free hour or minute follows real time.
    (
        "*/30 * * * *", "Europe/Berlin", "2026-03-29T00:10",
        ["29 01:30+01", "29 03:00+02", "29 03:30+02"],
    ),
    (
        "*/30 * * * *", "Europe/Berlin", "2026-10-25T00:10",
        ["25 02:30+02", "25 02:00+01", "25 02:30+01", "25 03:00+01"],
    ),
    (
        "30 * * * *", "America/New_York", "2026-11-01T05:10",
        ["01 01:30-04", "01 01:30-05", "01 02:30-05"],
    ),
    (
        "0 * * * *", "Australia/Lord_Howe", "2026-04-04T13:30",
        ["05 01:00+11", "05 02:00+10", "05 03:00+10"],
    ),
    # In UTC nothing is left out and nothing comes twice.
    ("30 2 * * *", "UTC", "2026-03-28T12:00", ["29 02:30+00", "30 02:30+00"]),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "start", "expected"), NIGHTS)
def test_ticks_of_a_night_in_which_the_clock_changes(
    cron: str, zone: str, start: str, expected: list[str]
) -> None:
    assert local(cron, zone, start, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "inside"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10"),  # 02:10, the second time
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T15:10"),
    ],
)
def test_begun_inside_the_repeated_hour_no_tick_lies_before_the_start(
    cron: str, zone: str, inside: str
) -> None:
    first = next(Cron(cron, ZoneInfo(zone)).after(utc(inside)))
    assert first > utc(inside)
    assert first - utc(inside) > timedelta(hours=20)


CRONS = st.builds(
    lambda *parts: " ".join(parts),
    st.sampled_from(["0", "30", "*", "*/7", "5,35", "10-20", "59"]),
    st.sampled_from(["0", "1", "2", "3", "*", "*/2", "1-3", "23", "0,2"]),
    st.sampled_from(["*", "*", "1", "*/2", "L", "25-31"]),
    st.sampled_from(["*", "*", "3,10", "11"]),
    st.sampled_from(["*", "*", "0", "1-5", "6#2"]),
)
ZONES = st.sampled_from(
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu",
     "America/Havana", "Africa/Cairo", "Pacific/Apia", "America/St_Johns"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(CRONS, ZONES, st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)), st.integers(0, 40))  # noqa: DTZ001
def test_ticks_grow_and_are_the_same_wherever_one_begins(
    cron: str, zone: str, start: datetime, cut: int
) -> None:
    begin = start.replace(tzinfo=UTC)
    expression = Cron(cron, ZoneInfo(zone))
    found = list(islice(expression.after(begin), 60))
    assert all(one < other for one, other in pairwise([begin, *found]))
    rest = list(islice(expression.after(found[cut]), 59 - cut))
    assert rest == found[cut + 1 :]
    between = found[cut] + (found[cut + 1] - found[cut]) / 2
    assert list(islice(expression.after(between), 59 - cut)) == found[cut + 1 :]


# -- intervals and one-offs


def test_an_interval_is_counted_from_one_moment_and_not_from_the_last_run() -> None:
    expression = Interval(timedelta(seconds=90), NOW)
    late = NOW + timedelta(seconds=400)
    assert next(expression.after(late)) == NOW + timedelta(seconds=450)
    assert next(expression.after(NOW)) == NOW + timedelta(seconds=90)
    assert next(expression.after(NOW + timedelta(seconds=90))) == NOW + timedelta(seconds=180)
    assert next(expression.after(NOW - timedelta(days=1))) == NOW + timedelta(seconds=90)


def test_an_interval_does_not_drift_however_long_it_runs() -> None:
    expression = Interval(timedelta(seconds=1.1), NOW)
    far = next(expression.after(NOW + timedelta(days=3_650)))
    assert (far - NOW) % timedelta(seconds=1.1) == timedelta(0)


def test_a_one_off_has_one_tick() -> None:
    expression = Once(NOW)
    assert list(expression.after(NOW - MINUTE)) == [NOW]
    assert list(expression.after(NOW)) == []


# -- plans


EVERY_MINUTE = Cron("* * * * *", ZoneInfo("UTC"))


def test_a_tick_on_time_is_sent_and_the_next_one_planned() -> None:
    found = plan(EVERY_MINUTE, NOW, NOW + timedelta(seconds=1), Missed.ONCE, 100)
    assert (found.ticks, found.last, found.next) == ((NOW,), NOW, NOW + MINUTE)
    assert (found.missing, found.made_up) == (None, 0)


@pytest.mark.parametrize(("late", "is_missed"), [(59, False), (60, False), (61, True)])
def test_missed_is_what_is_more_than_a_minute_late(late: int, is_missed: bool) -> None:
    hourly = Interval(timedelta(hours=1), NOW - timedelta(hours=1))
    found = plan(hourly, NOW, NOW + timedelta(seconds=late), Missed.SKIP, 100)
    assert found.ticks == (() if is_missed else (NOW,))
    assert (found.missing is not None) is is_missed


@pytest.mark.parametrize(
    ("missed", "cap", "expected"),
    [
        (Missed.SKIP, 100, [10]),
        (Missed.ONCE, 100, [9, 10]),
        (Missed.ALL, 100, [*range(10), 10]),
        (Missed.ALL, 10, [*range(10), 10]),
        (Missed.ALL, 3, [0, 1, 2, 10]),
        (Missed.ALL, 1, [0, 10]),
    ],
)
@pytest.mark.parametrize("kind", ["cron", "interval"])
def test_what_a_policy_makes_up_of_ten_missed_ticks(
    missed: Missed, cap: int, expected: list[int], kind: str
) -> None:
    expression = EVERY_MINUTE if kind == "cron" else Interval(MINUTE, NOW - MINUTE)
    found = plan(expression, NOW, NOW + timedelta(minutes=10, seconds=30), missed, cap)
    assert list(found.ticks) == [NOW + n * MINUTE for n in expected]
    assert (found.last, found.next) == (NOW + 10 * MINUTE, NOW + 11 * MINUTE)
    assert found.missing is not None
    assert (found.missing.count, found.missing.first, found.missing.last) == (
        10, NOW, NOW + 9 * MINUTE,
    )  # fmt: skip
    assert found.made_up == len(expected) - 1


def test_a_one_off_that_was_missed_is_made_up_or_not_and_then_finished() -> None:
    later = NOW + timedelta(days=1)
    for missed, expected in ((Missed.ONCE, (NOW,)), (Missed.ALL, (NOW,)), (Missed.SKIP, ())):
        found = plan(Once(NOW), NOW, later, missed, 100)
        assert (found.ticks, found.next, found.last) == (expected, None, NOW)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5_000), st.integers(0, 100_000), st.sampled_from(list(Missed)))
def test_an_interval_counts_its_missed_ticks_as_going_through_them_would(
    every: int, late: int, missed: Missed
) -> None:
    expression = Interval(timedelta(seconds=every), NOW)
    due = NOW + timedelta(seconds=every)
    now = due + timedelta(seconds=late)
    found = plan(expression, due, now, missed, 10_000_000)
    through = [due + n * timedelta(seconds=every) for n in range(late // every + 1)]
    late_ones = [tick for tick in through if now - tick > MINUTE]
    assert (found.missing.count if found.missing else 0) == len(late_ones)
    assert found.last == through[-1]
    assert found.next == through[-1] + timedelta(seconds=every)
    if missed is Missed.ALL:
        assert list(found.ticks) == through


def test_after_a_very_long_absence_the_count_is_a_least_and_the_last_tick_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticks, "MAX_COUNTED", 500)
    for cron in ("0 */2 * * *", "0 9-17 * * 1-5", "0 0 1 1 *", "*/9 * * 1 *", "*/5 * 1-3 2 *"):
        expression = Cron(cron, ZoneInfo("Europe/Berlin"))
        begin = utc("2025-01-15T00:00")
        due = next(expression.after(begin))
        found = plan(expression, due, NOW, Missed.ONCE, 100)
        exact = _until(expression, begin, NOW)
        late = [tick for tick in exact if NOW - tick > MINUTE]
        assert found.missing is not None
        assert found.missing.last == late[-1]
        assert found.missing.count == len(late) or (
            not found.missing.is_exact and found.missing.count < len(late)
        )
        assert found.last == exact[-1]


def _until(expression: Cron, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    for tick in expression.after(begin):
        if tick > end:
            break
        found.append(tick)
    return found


# -- reading what was given


def test_a_cron_expression_is_kept_with_single_spaces() -> None:
    found = check_time("0  6 *\t* 1-5 ", "Europe/Berlin", None, None, now=NOW)
    assert (found.cron, found.timezone) == ("0 6 * * 1-5", "Europe/Berlin")
    assert str(found) == "0 6 * * 1-5 (Europe/Berlin)"


def test_times_are_told_as_people_read_them() -> None:
    assert str(check_time(None, None, 90, None, now=NOW)) == "every 90 s"
    assert str(check_time(None, None, None, NOW, now=NOW)) == f"once at {NOW}"


def test_times_in_all_forms_give_their_next_tick() -> None:
    assert next_after(check_time("0 13 * * *", None, None, None, now=NOW), NOW) == utc(
        "2026-11-18T13:00"
    )
    assert next_after(check_time(None, None, timedelta(minutes=5), None, now=NOW), NOW) == (
        NOW + timedelta(minutes=5)
    )
    assert next_after(check_time(None, None, None, NOW, now=NOW), NOW) is None


def test_an_expression_of_a_zone_that_is_not_known_here_says_so() -> None:
    with pytest.raises(UnknownZone):
        expression_of(ScheduleTime("* * * * *", "Moon/Base", None, None, NOW))


@given(st.text("0123456789*/,-#LWSUNMOJA? ", max_size=30))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_cron_expression_or_refused_in_words(text: str) -> None:
    try:
        found = check_time(text, None, None, None, now=NOW)
    except InvalidInputError:
        return
    assert next_after(found, NOW) is not None

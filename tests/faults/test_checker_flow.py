"""The invariants of time and flow: what is sound passes, and each has histories that it refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from commandbus.schedules.ticks import Cron
from faults import check
from faults.checker_flow import slowest_return
from faults.facts import Death, Facts, Outage, Phases
from faults.facts_flow import PlaceSample, Rate
from faults.nemeses_schedules import NIGHTS, crons_of, ticks_of_night
from tests.faults.broken_flow import (
    BROKEN,
    GATE,
    Break,
    above_the_rate,
    in_flow,
    leased_in_a_pause,
)
from tests.faults.histories import sound


def test_a_sound_history_has_no_violation() -> None:
    assert check(in_flow(sound()).end()) == []


@pytest.mark.parametrize(
    ("invariant", "breaking"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_is_wrong_is_found(invariant: str, breaking: Break) -> None:
    history = in_flow(sound())
    breaking(history)
    assert invariant in {violation.invariant for violation in check(history.end())}


def test_a_pause_of_a_type_holds_that_type_only() -> None:
    history = in_flow(sound())
    history.facts.flow.pauses[0] = replace(history.facts.flow.pauses[0], command_type="Other")
    leased_in_a_pause(history)
    assert "I20" not in {violation.invariant for violation in check(history.end())}


def test_a_place_is_back_when_the_living_use_all_of_them() -> None:
    facts = Facts(
        deaths=[Death(11, 10.0, "kill"), Death(22, 50.0, "kill")],
        outages=[Outage(51.0, 52.0)],
        phases=Phases(during=(0.0, 100.0)),
    )
    facts.flow.patience_seconds = 5.0
    facts.flow.places.extend(
        [
            PlaceSample(10.5, GATE, 2, {11: 1, 22: 1}),
            PlaceSample(13.0, GATE, 2, {22: 1}),
            PlaceSample(14.0, GATE, 2, {22: 1, 33: 1}),
        ]
    )
    assert slowest_return(facts) == pytest.approx(4.0)


def test_the_ticks_of_a_night_are_those_that_a_person_would_expect() -> None:
    """Half past two in Berlin: once on the short night, once on the long one."""
    spring, autumn = NIGHTS[0][1], NIGHTS[1][1]
    day = timedelta(hours=36)
    assert list(ticks_of_night("30 2 * * *", "Europe/Berlin", spring, spring + day)) == [
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]
    assert list(ticks_of_night("30 2 * * *", "Europe/Berlin", autumn, autumn + day)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]
    free = list(ticks_of_night("15,45 * * * *", "Europe/Berlin", autumn, autumn + day))
    assert {later - earlier for earlier, later in pairwise(free)} == {timedelta(minutes=30)}


@pytest.mark.parametrize(("zone", "evening"), NIGHTS)
def test_the_schedules_of_a_night_are_due_for_three_days_and_their_ticks_are_all_counted(
    zone: str, evening: datetime
) -> None:
    """Months of them would not be counted to the end on a slow machine."""
    half_a_year = evening + timedelta(days=180)
    for cron, most in zip(crons_of(zone, evening), (3, 3 * 48 + 2), strict=True):
        wanted = list(ticks_of_night(cron, zone, evening, half_a_year))
        assert most - 4 <= len(wanted) <= most
        found = Cron(cron, ZoneInfo(zone))
        assert list(islice(found.after(evening), len(wanted))) == wanted
        missing = found.scan(wanted[0], half_a_year)
        assert (missing.count, missing.last, missing.is_exact) == (len(wanted), wanted[-1], True)


@pytest.mark.parametrize(
    ("rate", "limit_key", "is_wrong"),
    [
        (Rate("Work", 20.0, 5.0), None, True),
        (Rate("", 20.0, 5.0), None, True),
        (Rate("Other", 20.0, 5.0), None, False),
        (Rate("Work", 20.0, 5.0, by_key=True), "customer:1", True),
        (Rate("Work", 20.0, 5.0, by_key=True), None, False),
    ],
)
def test_a_rate_is_that_of_the_domain_of_a_type_or_of_each_key(
    rate: Rate, limit_key: str | None, is_wrong: bool
) -> None:
    history = in_flow(sound())
    history.facts.flow.rates[:] = [rate]
    above_the_rate(history)
    facts = history.end()
    facts.rows[:] = [replace(row, limit_key=limit_key) for row in facts.rows]
    assert ("I16" in {each.invariant for each in check(facts)}) is is_wrong

"""Histories with limits, keys, pauses and schedules: a sound one, and the ways to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from faults.facts_flow import PauseSeen, PlaceSample, Rate, Ticked
from tests.faults.histories import OTHER, WORKER, History

Break = Callable[[History], None]
GATE = "l:t:Work"


def keyed(history: History, name: str, number: int, *, key: str = "key:1") -> None:
    """Give the changes of a command a key and a number."""
    history.facts.changes[:] = [
        replace(change, ordering_key=key, key_seq=number) if change.command_id == name else change
        for change in history.facts.changes
    ]


def in_flow(history: History) -> History:
    """Two commands of a key, a limit, a rate, a pause, an expiry and a schedule, all sound."""
    for name in ("first", "second"):
        history.send(name)
    for name in ("first", "second"):
        history.claim(name)
        history.start(name)
        history.finish(name)
    keyed(history, "first", 1)
    keyed(history, "second", 2)
    flow = history.facts.flow
    flow.patience_seconds = 4.0
    flow.places.append(PlaceSample(history.now, GATE, 2, {11: 1, 22: 1}))
    flow.place_mismatches.append(0)
    flow.rates.append(Rate("Work", 20.0, 5.0))
    flow.stuck_keys["key:1"] = 3.0
    flow.ticks.append(Ticked("nightly", 10, 6, 1, 3))
    flow.expires_at["first"] = history.now + 10
    flow.due_at["first"] = 100.0
    history.now += 1
    flow.pauses.append(PauseSeen(history.now, history.now + 2.5, None, [], history.now + 2))
    history.now += 3
    return history


def above_the_limit(history: History) -> None:
    history.facts.flow.places.append(PlaceSample(history.now, GATE, 2, {11: 2, 22: 1}))


def a_lease_without_a_place(history: History) -> None:
    history.facts.flow.place_mismatches.append(1)


def a_place_that_is_left(history: History) -> None:
    history.facts.flow.places_left = 1


def above_the_rate(history: History) -> None:
    at = history.now
    for number in range(8):
        history.now = at + number / 1000
        history.event("plain", "RECEIVED")


def out_of_order(history: History) -> None:
    for name, number in (("third", 4), ("fourth", 3)):
        history.send(name)
        history.claim(name)
        history.start(name)
        history.finish(name)
        keyed(history, name, number)


def two_leases_of_a_key(history: History) -> None:
    for name, number in (("third", 3), ("fourth", 4)):
        history.send(name)
        history.claim(name, WORKER if number == 3 else OTHER)
        keyed(history, name, number)
    for name, number in (("third", 3), ("fourth", 4)):
        history.start(name)
        history.finish(name)
        keyed(history, name, number)


def stuck(history: History) -> None:
    history.facts.flow.stuck_keys["key:2"] = 4.5


def a_tick_is_missing(history: History) -> None:
    history.facts.flow.ticks.append(Ticked("hourly", 10, 9, 0, 0))


def a_tick_is_there_twice(history: History) -> None:
    history.facts.flow.ticks.append(Ticked("hourly", 10, 11, 0, 0))


def leased_in_a_pause(history: History) -> None:
    pause = history.facts.flow.pauses[0]
    history.now = pause.committed + 0.1
    history.event("plain", "RECEIVED")


def kept_in_a_pause(history: History) -> None:
    pause = history.facts.flow.pauses[0]
    history.facts.flow.pauses[0] = replace(pause, held=[("plain", 7)])


def leased_after_it_expired(history: History) -> None:
    history.facts.flow.expires_at["first"] = 100.0


def leased_before_its_time(history: History) -> None:
    history.facts.flow.due_at["first"] = history.now


def expired_too_early(history: History) -> None:
    history.facts.flow.expires_at["plain"] = history.now + 5
    history.event("plain", "EXPIRED")


def the_doctor_complains(history: History) -> None:
    history.facts.flow.findings.append("SLOT_WITHOUT_LEASE")


BROKEN: list[tuple[str, Break]] = [
    ("I15", above_the_limit),
    ("I15", a_lease_without_a_place),
    ("I15", a_place_that_is_left),
    ("I16", above_the_rate),
    ("I17", out_of_order),
    ("I17", two_leases_of_a_key),
    ("I18", stuck),
    ("I19", a_tick_is_missing),
    ("I19", a_tick_is_there_twice),
    ("I20", leased_in_a_pause),
    ("I20", kept_in_a_pause),
    ("I21", leased_after_it_expired),
    ("I21", leased_before_its_time),
    ("I21", expired_too_early),
    ("I22", the_doctor_complains),
]

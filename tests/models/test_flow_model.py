"""M1 of time and flow: every state of small worlds is visited; each guard is needed."""

from __future__ import annotations

import pytest

from tests.models.flow_model import (
    GUARDS,
    IMPLIED,
    Found,
    Gate,
    Holder,
    Keyed,
    Keys,
    Ticks,
    gate_steps,
    gate_wrong,
    key_steps,
    key_wrong,
    search,
    tick_steps,
    tick_wrong,
)
from tests.models.time_model import GUARDS as TIME_GUARDS
from tests.models.time_model import Expiring, time_steps, time_wrong
from tests.models.unique_model import GUARDS as UNIQUE_GUARDS
from tests.models.unique_model import Unique, unique_steps, unique_wrong

ALL_GUARDS = GUARDS | TIME_GUARDS | UNIQUE_GUARDS


def look(kind: str, without: str = "") -> Found:
    if kind == "gate":
        return search(Gate((Holder(),) * 3), gate_steps(without), gate_wrong)
    if kind == "key":
        return search(Keys((Keyed(),) * 3), key_steps(without), key_wrong)
    if kind == "unique":
        return search(Unique(), unique_steps(without), unique_wrong)
    if kind == "time":
        return search(Expiring(), time_steps(without), time_wrong)
    return search(Ticks(), tick_steps(without), tick_wrong)


@pytest.mark.parametrize(
    ("kind", "least"), [("gate", 500), ("key", 100), ("tick", 20), ("time", 50), ("unique", 300)]
)
def test_with_all_guards_nothing_goes_wrong_in_any_state(kind: str, least: int) -> None:
    found = look(kind)
    assert found.problem == "", str(found)
    assert found.states > least  # the world is not empty


@pytest.mark.parametrize("guard", ALL_GUARDS)
def test_without_a_guard_there_is_a_counterexample(guard: str) -> None:
    found = look(guard.partition(".")[0], guard)
    print(f"without {guard} ({ALL_GUARDS[guard]}): {found}")
    assert found.problem, f"nothing goes wrong without {guard}: is it needed?"


@pytest.mark.parametrize("guard", IMPLIED)
def test_a_guard_that_others_imply_is_not_missed(guard: str) -> None:
    # If this fails, the guard has become needed: move it to GUARDS.
    assert look(guard.partition(".")[0], guard).problem == ""

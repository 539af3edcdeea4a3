"""Which tests a mutant is tried with, and in which order."""

from __future__ import annotations

from tests.mutants.choosing import CallMap, asked
from tests.mutants.sql_sites import Mutant, all_mutants

CALLS = {
    "tests/sql/test_keys.py::test_a": ["promote_keys", "receive_commands"],
    "tests/sql/test_levels.py::test_b": ["promote_keys"],
    "tests/sql/test_levels.py::test_c": ["read_levels"],
}
QUICK = dict.fromkeys(CALLS, 0.1)


def mutant(file: str, function: str) -> Mutant:
    return next(m for m in all_mutants([file]) if m.function == function and m.kind == "where")


def test_a_mutant_is_tried_with_the_tests_that_call_it_those_of_its_subject_first() -> None:
    tests = CallMap(CALLS, QUICK).tests_for(mutant("key_turns", "promote_keys"))
    assert tests == ["tests/sql/test_keys.py::test_a", "tests/sql/test_levels.py::test_b"]


def test_who_has_told_of_the_function_before_goes_first() -> None:
    calls = CallMap(CALLS, QUICK)
    tried = mutant("key_turns", "promote_keys")
    calls.killed_by(tried, "tests/sql/test_levels.py::test_b")
    assert calls.tests_for(tried)[0] == "tests/sql/test_levels.py::test_b"


def test_who_takes_very_long_goes_last() -> None:
    slow = CallMap(CALLS, QUICK | {"tests/sql/test_keys.py::test_a": 20.0})
    assert slow.tests_for(mutant("key_turns", "promote_keys"))[-1].endswith("::test_a")


def test_a_function_that_the_server_does_not_count_is_reached_by_what_calls_it() -> None:
    """is_unused is put into its callers by the planner."""
    calls = CallMap(CALLS | {"tests/sql/test_x.py::test_d": ["drop_unused_gates"]}, QUICK)
    assert calls.callers("is_unused") == {"tests/sql/test_x.py::test_d"}


def test_other_tests_are_another_question() -> None:
    one, two = ["tests/sql/test_keys.py::test_a"], ["tests/sql/test_levels.py::test_b"]
    assert asked(one) == asked(one) != asked(two)

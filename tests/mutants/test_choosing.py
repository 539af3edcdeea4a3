"""Which tests a mutant is tried with, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.mutants.bench import Bench, Ran
from tests.mutants.choosing import CallMap, asked, collected_files, load_calls
from tests.mutants.forks import Verdict
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


class Recorder:
    """In the place of the laboratory: all that is recorded calls one function."""

    def __init__(self, *files: str) -> None:
        self.tests = [f"{file}::test_{n}" for file in files for n in range(2)]
        self.took: dict[str, float] = {}
        self.recorded: list[str] = []
        self.ends_early = False

    def record(self, tests: Sequence[str]) -> Ran:
        self.recorded += tests
        ran = tests[:1] if self.ends_early else tests
        return Ran(
            Verdict("survived", 0, len(ran)),
            dict.fromkeys(ran, 0.1), {test: ["promote_keys"] for test in ran},
        )  # fmt: skip


def load(recorder: Recorder, path: Path) -> CallMap:
    return load_calls(cast(Any, recorder), path)


KEYS, LEVELS = "tests/sql/test_keys.py", "tests/sql/test_levels.py"


def test_what_was_recorded_stays_when_other_files_are_collected(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    load(Recorder(KEYS, LEVELS), path)
    load(Recorder("tests/sql/test_gates.py"), path)
    again = Recorder(KEYS)
    assert set(load(again, path).calls) == set(again.tests)
    assert again.recorded == []


def test_a_file_whose_record_was_cut_off_is_recorded_again(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    first, again = Recorder(KEYS), Recorder(KEYS)
    first.ends_early = True
    load(first, path)
    assert set(load(again, path).calls) == set(again.tests) == set(again.recorded)


def test_the_tests_of_the_subjects_alone_may_be_asked() -> None:
    near = collected_files({"activity", "handover"})
    assert near == ["tests/sql/test_activity.py", "tests/sql/test_handed_over.py"]
    assert set(near) < set(collected_files())


def test_each_test_is_followed_by_another_so_that_its_fixtures_end() -> None:
    items = [cast(Any, SimpleNamespace(nodeid=name)) for name in "abc"]
    bench = Bench(items)
    assert all(bench.following(item) is not item for item in items)

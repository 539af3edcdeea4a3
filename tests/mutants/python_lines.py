"""Which test runs which line of the core, recorded once for each test file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.forks import ROOT, run_tests
from tests.mutants.python_sites import FILES, SOURCE, PythonMutant

#: What the lines are recorded of; tests that need a server are left out.
RECORDED = ("tests/unit", "tests/conformance")
#: Packages that a fork imports itself: all that might import a mutant.
OWN = {"commandbus", "tests", "benchmarks", "examples", "conftest", "__main__"}
#: Of a line that everything runs, no more than so many tests are run.
MOST_TESTS = 200


@dataclass(slots=True)
class Recorded:
    """What one test did."""

    seconds: float
    #: File -> lines that were run by a call, not by an import.
    lines: dict[str, list[int]]

    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.lines.values()))


@dataclass(slots=True)
class LineMap:
    """Test -> the lines it runs."""

    tests: dict[str, Recorded]
    #: Of the test files.
    hashes: dict[str, str]
    _killers: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _by_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for test, recorded in self.tests.items():
            for file, lines in recorded.lines.items():
                for line in lines:
                    self._by_line.setdefault(file, {}).setdefault(line, []).append(test)

    def killed_by(self, mutant: PythonMutant, test: str) -> None:
        """Remember who told: it is likely to tell of the next mutant of the function as well."""
        killers = self._killers.setdefault((mutant.file, mutant.function), [])
        if test in self.tests:
            if test in killers:
                killers.remove(test)
            killers.append(test)

    def tests_for(self, mutant: PythonMutant) -> list[str]:
        """The tests of a mutant, in the order to run them."""
        first, last = mutant.lines

        def rank(test: str) -> tuple[bool, int, float]:
            recorded = self.tests[test]
            is_own = Path(mutant.file).name in Path(test.partition("::")[0]).stem
            return not is_own, recorded.size, recorded.seconds

        by_line = self._by_line.get(mutant.file, {})
        lines = by_line if mutant.is_import_time else range(first, last + 1)
        callers = {test for line in lines for test in by_line.get(line, ())}
        killers = self._killers.get((mutant.file, mutant.function), [])
        known = [test for test in reversed(killers) if test in callers][:6]
        others = sorted(callers - set(known), key=rank)
        return (known + others)[:MOST_TESTS]

    def asked(self, mutant: PythonMutant) -> str:
        """Stands for the tests of a mutant, as they are now."""
        tests = sorted(self.tests_for(mutant))
        files = sorted({test.partition("::")[0] for test in tests})
        text = "".join([*tests, *(self.hashes[name] for name in files)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_lines(path: Path) -> LineMap:
    """The recorded lines; of test files that have changed, or whose modules have, recorded now.

    What the tests import beside commandbus is imported here as well.
    """
    kept: dict[str, dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    hashes = {file: _hash(SOURCE / f"{file}.py") for file in FILES}
    names = _test_files()
    kept = {name: record for name, record in kept.items() if name in names}
    for name in names:
        record = kept.get(name)
        is_same = record is not None and record["hash"] == _hash(ROOT / name)
        if record is None or not is_same or _touches_changed(record, hashes):
            print(f"  recording {name}", flush=True)
            part = _record(name)
            kept[name] = {
                "hash": _hash(ROOT / name),
                "modules": {file: hashes[file] for file in _touched(part["tests"].values())},
                **part,
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept), encoding="utf-8")
        import_all(kept[name]["imports"])
    tests = {
        test: Recorded(**recorded)
        for record in kept.values()
        for test, recorded in record["tests"].items()
    }
    return LineMap(tests, {name: str(record["hash"]) for name, record in kept.items()})


def _touches_changed(record: dict[str, Any], hashes: dict[str, str]) -> bool:
    return any(hashes.get(file) != digest for file, digest in record["modules"].items())


def _touched(tests: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({file for test in tests for file in test["lines"]})


def _record(name: str) -> dict[str, Any]:
    part = ROOT / ".mutants" / "python-part.json"
    part.parent.mkdir(exist_ok=True)
    part.unlink(missing_ok=True)
    run_tests(
        ["-m", "not postgres", name], 300, environment=environment(part.parent), timeout=60,
        plugins=[_Recorder(part)], prepare=own_source_first, stops_at_failure=False,
    )  # fmt: skip
    if not part.exists():
        return {"tests": {}, "imports": []}
    found: dict[str, Any] = json.loads(part.read_text(encoding="utf-8"))
    part.unlink()
    return found


def import_all(names: Iterable[str]) -> None:
    """Import what the tests need beside commandbus: a fork has it then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(names):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    assert "commandbus" not in sys.modules


def environment(folder: Path) -> dict[str, str]:
    """What a mutant makes hypothesis remember must not come back in an ordinary run."""
    return {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}


def own_source_first() -> None:
    """The source beside these tests is what is tried, whatever is installed."""
    assert "commandbus" not in sys.modules
    sys.path.insert(0, str(SOURCE.parent))
    sys.dont_write_bytecode = False  # or every fork would compile everything


class _Recorder:
    """A pytest plugin: coverage with a context for each test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._coverage: coverage.Coverage | None = None
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    def pytest_collection_finish(self) -> None:
        for file in FILES:
            importlib.import_module("commandbus." + file.replace("/", "."))
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[str(SOURCE / f"{f}.py") for f in FILES]
        )
        # A test file may well run nothing of the core.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        assert self._coverage is not None
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = round(time.monotonic() - began, 4)
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._coverage is None:
            return
        self._coverage.stop()
        tests: dict[str, dict[str, Any]] = {
            test: {"seconds": seconds, "lines": {}}
            for test, seconds in self._seconds.items()
            if test not in self._failed
        }
        data = self._coverage.get_data()
        for file in FILES:
            by_line = data.contexts_by_lineno(str(SOURCE / f"{file}.py"))
            for line, contexts in sorted(by_line.items()):
                for test in contexts:
                    if test in tests:
                        tests[test]["lines"].setdefault(file, []).append(line)
        imports = sorted(name for name in sys.modules if name.partition(".")[0] not in OWN)
        self._path.write_text(json.dumps({"tests": tests, "imports": imports}), encoding="utf-8")


def _test_files() -> Sequence[str]:
    return [
        str(path.relative_to(ROOT))
        for place in RECORDED
        for path in sorted((ROOT / place).glob("test_*.py"))
    ]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]

"""Runs the mutants of the Python core."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.forks import Verdict, run_tests, warm_up
from tests.mutants.python_lines import LineMap, environment, load_lines, own_source_first
from tests.mutants.python_sites import SOURCE, PythonMutant, all_mutants
from tests.mutants.results import FOLDER, Results, chosen, equivalents

#: After so many mutants the laboratory itself is tried: a test must still pass without one.
PROVED_EVERY = 20
#: So many tests are run first; most mutants are dead after them.
FIRST_TESTS = 25
#: Seconds that a test may be silent, and how many times its usual time.
PATIENCE = 4.0
SLOWER = 5


def run(options: Namespace) -> int:
    """Try the chosen mutants; 1 if one survived."""
    mutants = chosen(all_mutants(), options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.place:24} {mutant.key}")
        print(f"{len(mutants)} mutants")
        return 0
    results = Results("python")
    warm_up()
    lines = load_lines(FOLDER / "lines.json")
    lab = PythonLab(lines)
    gc.freeze()  # pytest collects garbage at its end: not what was there before
    try:
        _try_all(mutants, lab, lines, results, options)
    except BrokenLaboratoryError as error:
        results.forget_recent()
        raise SystemExit(f"the results of the last minutes are worth nothing: {error}") from None
    results.show()
    return 1 if results.survivors else 0


def _try_all(
    mutants: Sequence[PythonMutant],
    lab: PythonLab,
    lines: LineMap,
    results: Results,
    options: Namespace,
) -> None:
    reasons = equivalents("python")
    for number, mutant in enumerate(mutants, 1):
        if results.is_over(options.minutes):
            print(f"stopped: {len(mutants) - number + 1} were not begun; go on with --resume")
            break
        if mutant.key in reasons:
            results.count(mutant, "equivalent")
            continue
        digest = results.digest(mutant.source)
        asked = lines.asked(mutant)
        known = results.known(mutant, digest, asked) if options.resume else None
        if known is not None:
            results.count(mutant, known)
            continue
        verdict = lab.try_mutant(mutant, options.seconds)
        results.add(mutant, digest, verdict, asked)
        results.count(mutant, verdict.outcome)
        if verdict.is_killed:
            lines.killed_by(mutant, verdict.by)
            if number % PROVED_EVERY == 0:
                lab.prove(lines.tests_for(mutant)[:1])
                results.are_good()
        shown = f"{number}/{len(mutants)} {mutant.place} {mutant.key[:140]}"
        print(
            f"{verdict.outcome:9} {verdict.seconds:5.1f} s {verdict.tests:3} tests  {shown}"
            f"  {verdict.by}",
            flush=True,
        )


class BrokenLaboratoryError(Exception):
    """Tests fail that have passed before, without a mutant."""


class PythonLab:
    """Runs tests with a mutant in place of a module."""

    def __init__(self, lines: LineMap) -> None:
        self._lines = lines
        self._trusted: dict[str, bool] = {}

    def try_mutant(self, mutant: PythonMutant, seconds: float) -> Verdict:
        """Run the tests against the mutant until one fails that can be trusted."""
        left = [t for t in self._lines.tests_for(mutant) if self._trusted.get(t, True)]
        if not left:
            return Verdict("survived", 0, 0, "no test runs this line")
        spent, ran = 0.0, 0
        parts = [left[:FIRST_TESTS], left[FIRST_TESTS:]]
        while parts:
            verdict = self._run(parts[0], seconds, mutant)
            spent, ran = spent + verdict.seconds, ran + verdict.tests
            if not verdict.is_killed:
                parts = [part for part in parts[1:] if part]
            elif self._is_trusted(verdict.by, parts[0][:1]):
                return Verdict("killed", spent, ran, verdict.by)
            else:
                parts[0] = [test for test in parts[0] if self._trusted.get(test, True)]
                parts = [part for part in parts if part]
            if verdict.outcome == "invalid":
                return self._judged(verdict, left[:1])
        return Verdict("survived", spent, ran)

    def _is_trusted(self, by: str, first: Sequence[str]) -> bool:
        """Whether the test passes without a mutant, in the conditions of the laboratory."""
        test = by.removesuffix(" (hangs)")
        if test not in self._lines.tests:  # a module that cannot be imported
            self.prove(first)
            return True
        if test not in self._trusted:
            self._trusted[test] = self._run([test], 60, None).outcome == "survived"
        return self._trusted[test]

    def _judged(self, verdict: Verdict, first: Sequence[str]) -> Verdict:
        """A package that cannot be imported ends pytest before any test: all would notice."""
        if verdict.by != f"pytest ended with {int(pytest.ExitCode.USAGE_ERROR)}":
            return verdict
        self.prove(first)
        return Verdict("killed", verdict.seconds, 0, "the import of conftest")

    def prove(self, tests: Sequence[str]) -> None:
        """Stop everything if these tests fail without a mutant: then every mutant is killed."""
        verdict = self._run(tests, 60, None)
        if verdict.outcome != "survived":
            raise BrokenLaboratoryError(f"{tests[0]} fails without a mutant: {verdict.by}")

    def _run(self, tests: Sequence[str], seconds: float, mutant: PythonMutant | None) -> Verdict:
        def patience(test: str) -> float:
            recorded = self._lines.tests.get(test)
            return max(PATIENCE, recorded.seconds * SLOWER if recorded else 30.0)

        def prepare() -> None:
            own_source_first()
            if mutant is not None:
                sys.meta_path.insert(0, _Finder(mutant.module, mutant.file, mutant.compile()))

        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            return run_tests(
                list(dict.fromkeys(test.partition("::")[0] for test in tests)),
                seconds,
                environment=environment(Path(folder)),
                plugins=[_These(tests), _Twice()],
                prepare=prepare,
                timeout=0,
                patience=patience,
            )


class _These:
    """A pytest plugin: these tests only, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(wanted, key=lambda item: self._order[item.nodeid])


class _Twice:
    """A pytest plugin: a test has failed if it fails twice. A busy machine fails once."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in reports):
            item._initrequest()  # type: ignore[attr-defined]
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        return True


class _Finder(importlib.abc.MetaPathFinder):
    """Puts the mutant in the place of its module."""

    def __init__(self, module: str, file: str, code: CodeType) -> None:
        self._module = module
        self._path = str(SOURCE / f"{file}.py")
        self._code = code

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        loader = _Loader(fullname, self._path, self._code)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code

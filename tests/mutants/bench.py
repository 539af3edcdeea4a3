"""Tests that are collected once and run many times: each try is a fork of the one process.

What takes most of the time of a short run of pytest, to start, to import, to collect and to make
a database, happens once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.mutants.forks import LEFT_OUT, ROOT, Verdict

#: What all runs have: the reports are ours, what tests print goes nowhere.
OPTIONS = ("-q", "-s", "-m", "not long", "--no-header", "--assert=plain")


@dataclass
class Ran:
    """What a fork has told of its tests."""

    verdict: Verdict
    #: Test -> how long it took, in seconds.
    took: dict[str, float] = field(default_factory=dict)
    #: Test -> which functions it called, if that was asked for.
    calls: dict[str, list[str]] = field(default_factory=dict)


def collect(
    tests: Sequence[str],
    plugins: Sequence[object],
    work: Callable[[Bench], None],
    timeout: float,
) -> int:
    """Collect these tests, and do the work in place of running them; pytest's exit code."""
    arguments = [
        *OPTIONS, f"--timeout={timeout:g}",
        *(word for name in LEFT_OUT for word in ("-p", f"no:{name}")), *tests,
    ]  # fmt: skip
    os.chdir(ROOT)
    return int(pytest.main(arguments, plugins=[*plugins, _Work(work)]))


class _Work:
    """A pytest plugin: takes the collected tests over."""

    def __init__(self, work: Callable[[Bench], None]) -> None:
        self._work = work

    def pytest_configure(self, config: pytest.Config) -> None:
        # A marker of one of the plugins that are left out.
        config.addinivalue_line("markers", "xdist_group: tests that one process runs")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("not all tests can be collected")
        self._work(Bench(session.items))
        return True


class Bench:
    """The collected tests."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self.items = {item.nodeid: item for item in items}
        self._ends = items[-1], items[0]

    def following(self, item: pytest.Item) -> pytest.Item:
        """In whose place the next test would run: fixtures of the session stay, all others end.

        Another test, or else those of the test stay as well, and its calls are never told.
        """
        last, first = self._ends
        return first if item is last else last

    def warm_up(self) -> None:
        """Run one test here, so that forks have the fixtures of the session."""
        item = next(iter(self.items.values()))
        _run_one(item, self.following(item))

    def run(
        self,
        tests: Sequence[str],
        seconds: float,
        *,
        patience: Callable[[str], float],
        stops_at_failure: bool = True,
        watch: Callable[[Callable[[str, list[str]], None]], None] | None = None,
    ) -> Ran:
        """Run tests in a fork, for at most so many seconds.

        One that is silent for longer than its patience is ended, and has told by that. `watch` is
        called in the fork, with what tells the calls of a test.
        """
        began = time.monotonic()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            os.close(reader)
            self._child([self.items[test] for test in tests], writer, stops_at_failure, watch)
        os.close(writer)
        try:
            told, is_silent, is_late = _listen(reader, began + seconds, patience)
        finally:
            os.close(reader)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return _ran(told, len(tests), seconds, time.monotonic() - began, is_silent, is_late)

    def _child(
        self,
        items: Sequence[pytest.Item],
        writer: int,
        stops_at_failure: bool,
        watch: Callable[[Callable[[str, list[str]], None]], None] | None,
    ) -> None:  # pragma: no cover - runs in a fork, and ends it
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)

            def tell(kind: str, test: str, more: Any = None) -> None:
                os.write(writer, json.dumps([kind, test, more]).encode() + b"\n")

            reporter = _Reporter(tell)
            items[0].config.pluginmanager.register(reporter)
            if watch is not None:
                watch(lambda test, names: tell("calls", test, names))
            for item in items:
                began = time.monotonic()
                tell("began", item.nodeid)
                _run_one(item, self.following(item))
                tell("took", item.nodeid, time.monotonic() - began)
                if reporter.has_failed and stops_at_failure:
                    break
            tell("end", "")
        finally:
            os._exit(0)


class _Reporter:
    """Tells which tests failed."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self.has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._tell("ran", report.nodeid)
        if report.failed:
            self.has_failed = True
            self._tell("failed", report.nodeid)


def _run_one(item: pytest.Item, following: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _listen(
    reader: int, deadline: float, patience: Callable[[str], float]
) -> tuple[list[tuple[str, str, Any]], bool, bool]:
    """What the fork tells until it ends, is silent for too long, or the time is over."""
    told: list[tuple[str, str, Any]] = []
    rest, test, heard = b"", "", time.monotonic()
    while True:
        now = time.monotonic()
        until_silent = heard + patience(test) - now
        if until_silent <= 0 or now >= deadline:
            return told, until_silent <= 0, now >= deadline
        ready, _, _ = select.select([reader], [], [], min(until_silent, deadline - now))
        if not ready:
            continue
        chunk = os.read(reader, 65536)
        if not chunk:
            return told, False, False
        heard = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            kind, test, more = json.loads(line)
            told.append((kind, test, more))
            if kind == "end":
                return told, False, False


def _ran(
    told: Sequence[tuple[str, str, Any]],
    asked: int,
    seconds: float,
    spent: float,
    is_silent: bool,
    is_late: bool,
) -> Ran:
    number = sum(kind == "ran" for kind, _, _ in told)
    failed = [test for kind, test, _ in told if kind == "failed"]
    last = told[-1][1] if told else "the first"
    if failed:
        verdict = Verdict("killed", spent, number, failed[0])
    elif is_silent:
        verdict = Verdict("killed", spent, number, last)
    elif is_late:
        verdict = Verdict("survived", spent, number, f"{number} of {asked} tests in {seconds:g} s")
    elif told and told[-1][0] == "end":
        verdict = Verdict("survived", spent, number)
    else:
        verdict = Verdict("invalid", spent, number, f"the fork ended in {last}")
    return Ran(
        verdict,
        {test: more for kind, test, more in told if kind == "took"},
        {test: more for kind, test, more in told if kind == "calls"},
    )

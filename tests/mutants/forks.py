"""Tests in a fork: each mutant is tried in a process of its own, which has much imported already.

Nothing of `commandbus` is imported here: a mutant of a Python module must be the first there is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: Plugins of pytest that a mutant's tests do without.
LEFT_OUT = (
    "randomly", "cacheprovider", "pytest_cov", "xdist", "xdist.looponfail", "schemathesis",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant."""

    outcome: str  # killed, survived, invalid
    seconds: float
    tests: int
    #: The first test that failed, or what went wrong.
    by: str = ""

    @property
    def is_killed(self) -> bool:
        return self.outcome == "killed"


def warm_up() -> None:
    """Import what every fork would import again: the plugins of pytest."""
    for plugin in entry_points(group="pytest11"):
        if plugin.name not in LEFT_OUT:
            plugin.load()


def run_tests(
    tests: Sequence[str],
    seconds: float,
    *,
    environment: dict[str, str] | None = None,
    plugins: Sequence[object] = (),
    prepare: Callable[[], None] | None = None,
    stops_at_failure: bool = True,
    timeout: float = 10,
    patience: Callable[[str], float] | None = None,
) -> Verdict:
    """pytest in a forked process, for at most so many seconds.

    `prepare` is called in the fork before anything else. A test may take `timeout` by pytest's
    clock; one that is silent for its `patience` is killed from outside, and has told by that.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        report = Path(folder) / "report"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            arguments = [f"--timeout={timeout:g}", *(["-x"] if stops_at_failure else []), *tests]
            _child(arguments, report, environment or {}, plugins, prepare)
        code, is_silent = _wait(pid, began + seconds, report, patience)
        spent = time.monotonic() - began
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    ran = sum(line.startswith("RAN ") for line in lines)
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if failed:
        return Verdict("killed", spent, ran, failed[0])
    if is_silent:
        last = lines[-1].partition(" ")[2] if lines else "the import"
        return Verdict("killed", spent, ran, f"{last} (hangs)")
    if code is None and ran:
        # A test that hangs fails by its own time-out: here there were only too many.
        return Verdict("survived", spent, ran, f"{ran} of {len(tests)} tests in {seconds:g} s")
    if code == 0 and ran:
        return Verdict("survived", spent, ran)
    return Verdict("invalid", spent, ran, f"pytest ended with {code}")


class _Reporter:
    """Writes a line for each test that begins, that ran, and that failed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.write(f"BEGAN {nodeid}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._file.write(f"RAN {report.nodeid}\n")
        if report.failed:
            self._file.write(f"FAILED {report.nodeid}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._file.write(f"FAILED {report.nodeid} (import)\n")


def _child(
    wanted: Sequence[str],
    report: Path,
    environment: dict[str, str],
    plugins: Sequence[object],
    prepare: Callable[[], None] | None,
) -> None:  # pragma: no cover - runs in a fork, and ends it
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.chdir(ROOT)
        os.environ.update(environment)
        if prepare is not None:
            prepare()
        arguments: list[str] = [
            "-q", *(word for name in LEFT_OUT for word in ("-p", f"no:{name}")),
            "--assert=plain", "--no-header", *wanted,
        ]  # fmt: skip
        reporter: list[Any] = [_Reporter(report), *plugins]
        code = int(pytest.main(arguments, plugins=reporter))
    finally:
        os._exit(code)


def _wait(
    pid: int, deadline: float, report: Path, patience: Callable[[str], float] | None
) -> tuple[int | None, bool]:
    """The exit code of a child, None if it had to be killed; and whether it had gone silent."""
    size, heard, test = 0, time.monotonic(), ""
    is_silent = False
    try:
        while time.monotonic() < deadline and not is_silent:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                pid = 0
                return os.waitstatus_to_exitcode(status), False
            with contextlib.suppress(FileNotFoundError):
                if report.stat().st_size != size:
                    size, heard = report.stat().st_size, time.monotonic()
                    test = report.read_text(encoding="utf-8").splitlines()[-1].partition(" ")[2]
            is_silent = patience is not None and time.monotonic() - heard > patience(test)
            time.sleep(0.01)
    finally:  # also when we are interrupted: it is in a session of its own
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return None, is_silent

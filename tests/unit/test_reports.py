"""Reports of several worker processes, and the health file: all as one, and honest about age."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus.cli.probe import run as probe
from commandbus.errors import InvalidSettingError
from commandbus.monitoring import Monitor
from commandbus.monitoring.catalogue import COMMANDS, LOOP_LAG, PROCESSES, RESTARTS, SLOTS
from commandbus.monitoring.health_file import HealthFile
from commandbus.monitoring.reports import Gathered, Reporter, written
from commandbus.monitoring.server import Pages
from tests.waiting import until_sync


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gathered(clock: Clock) -> Gathered:
    found = Gathered(2, clock)
    found.started(0)
    found.started(1)
    return found


def report(completed: int = 0, *, busy: int = 0, lag: float = 0.0, **reasons: list[str]) -> bytes:
    checks = {f"/{page}": reasons.get(page, []) for page in ("livez", "readyz", "startupz")}
    series = [
        [COMMANDS.name, ["shop", "Work", "completed"], completed],
        [SLOTS.name, ["shop", "busy"], busy],
        [LOOP_LAG.name, [], lag],
    ]
    return json.dumps({"checks": checks, "series": series}).encode()


def test_figures_of_all_processes_are_added_and_lags_are_not(gathered: Gathered) -> None:
    gathered.said(0, report(5, busy=2, lag=0.5))
    gathered.said(1, report(7, busy=1, lag=0.25))
    snapshot = gathered.snapshot()
    assert snapshot.get(COMMANDS, "shop", "Work", "completed") == 12
    assert snapshot.get(SLOTS, "shop", "busy") == 3
    assert snapshot.get(LOOP_LAG) == 0.5
    assert snapshot.get(PROCESSES, "running") == 2
    status, _, body = gathered.pages().answer("GET", "/metrics")
    assert status == 200
    assert b'commandbus_processes{state="running"} 2' in body


def test_a_sum_does_not_fall_when_a_process_ends_and_comes_again(gathered: Gathered) -> None:
    gathered.said(0, report(5, busy=2))
    gathered.said(1, report(7))
    gathered.ended(0, "it ended")
    assert gathered.snapshot().get(COMMANDS, "shop", "Work", "completed") == 12
    assert gathered.snapshot().get(SLOTS, "shop", "busy") == 0
    assert gathered.snapshot().get(PROCESSES, "down") == 1
    gathered.started(0)
    gathered.restarted()
    gathered.said(0, report(3))
    assert gathered.snapshot().get(COMMANDS, "shop", "Work", "completed") == 15
    assert gathered.snapshot().get(RESTARTS) == 1


def test_a_reason_says_which_process(gathered: Gathered) -> None:
    gathered.said(0, report())
    assert gathered.not_started() == ["process 2: it is starting"]
    assert gathered.not_live() == []
    gathered.said(1, report(livez=["blocked"], readyz=["blocked"]))
    assert gathered.not_live() == gathered.not_ready() == ["process 2: blocked"]
    assert gathered.not_started() == []


def test_a_process_that_is_down_is_not_ready_and_says_nothing_against_the_parent(
    gathered: Gathered,
) -> None:
    gathered.said(0, report())
    gathered.ended(1, "it ended, killed by SIGKILL")
    assert gathered.not_live() == []
    assert gathered.not_ready() == ["process 2: it ended, killed by SIGKILL"]
    gathered.stopping()
    assert gathered.not_ready()[0] == "it is stopping"


def test_a_process_that_falls_silent_is_not_live(gathered: Gathered, clock: Clock) -> None:
    gathered.said(0, report())
    clock.now += 12
    gathered.said(1, report())
    assert gathered.not_live() == ["process 1: it has said nothing for 12 s"]


@pytest.mark.parametrize("line", [b"no JSON", b"{}", b'{"series": [["x", [], 1]], "checks": {}}'])
def test_a_report_that_cannot_be_read_is_left_out(gathered: Gathered, line: bytes) -> None:
    gathered.said(0, line)
    assert gathered.not_started() == ["process 1: it is starting", "process 2: it is starting"]


def test_a_reporter_writes_lines_that_the_parent_can_read_and_the_last_at_its_end(
    gathered: Gathered,
) -> None:
    monitor = Monitor()
    monitor.metrics.know("shop", ["Work"])
    monitor.metrics.ended("shop", "Work", "completed", 1)
    readable, writable = os.pipe()
    reporter = Reporter(writable, monitor, every_seconds=600)
    reporter.start()
    reporter.stop()
    os.close(writable)
    with os.fdopen(readable, "rb") as lines:
        (line,) = lines.readlines()
    gathered.said(0, line)
    assert gathered.snapshot().get(COMMANDS, "shop", "Work", "completed") == 1
    assert gathered.not_started()[0] == "process 1: no worker has asked for commands yet"


def test_a_reporter_ends_when_nobody_reads() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    reporter = Reporter(writable, Monitor(), every_seconds=0.001)
    reporter.start()
    until_sync(lambda: not reporter._thread.is_alive())
    os.close(writable)
    assert written(Monitor()).endswith(b"\n")


# -- the file


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def file(tmp_path: Path, reasons: list[str]) -> Iterator[Path]:
    path = tmp_path / "health"
    pages = Pages(bytes, {"/livez": list, "/readyz": lambda: list(reasons), "/startupz": list})
    health_file = HealthFile(path, pages, every_seconds=0.01)
    health_file.start()
    yield path
    health_file.stop()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_says_whether_the_process_lives_and_on_request_whether_it_is_ready(
    file: Path, reasons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(["--file", str(file)]) == 0
    assert capsys.readouterr().out == "ok\n"
    reasons += ["no heartbeat", "it is stopping"]
    until_sync(lambda: "it is stopping" in file.read_text())
    assert probe([f"--file={file}"]) == 0
    assert probe(["--file", str(file), "--page", "/readyz"]) == 1
    assert capsys.readouterr().out == "ok\nno heartbeat\nit is stopping\n"


def test_an_old_file_and_none_at_all_are_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "health"
    path.write_text("livez: ok\n")
    assert probe(["--file", str(path)]) == 0
    assert probe(["--file", str(path), "--page", "readyz"]) == 1
    os.utime(path, (1, 1))
    assert probe(["--file", str(path)]) == 1
    assert "its worker is gone" in capsys.readouterr().err
    path.unlink()
    assert probe(["--file", str(path)]) == 1
    assert "no worker writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--file", "f", "--page", "metrics"], "use livez, readyz, startupz"),
        (["--file", "f", "--max-age", "soon"], "write seconds"),
        (["--file", "f", "--url", "u"], "not both"),
        (["--page", "livez"], "goes with --file"),
        (["--file"], "needs a value"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(words) == 2
    assert text in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="choose another file"):
        HealthFile(tmp_path / "nowhere" / "health", Pages(bytes, {})).start()


def test_a_folder_that_goes_away_is_said_once_and_does_not_end_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    health_file = HealthFile(folder / "health", Pages(bytes, {"/livez": list}), every_seconds=0.001)
    health_file.start()
    folder.rename(tmp_path / "away")
    until_sync(lambda: "cannot write the health" in caplog.text)
    (tmp_path / "away").rename(folder)
    until_sync(lambda: not health_file._has_failed)
    health_file.stop()
    assert len(caplog.records) >= 1

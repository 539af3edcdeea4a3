"""The parent of worker processes: starts them again, passes signals on, ends with one code.

The processes here are small programs in place of workers; tests/acceptance has real ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commandbus.cli import processes
from commandbus.cli.frame import Place
from commandbus.cli.logs import Logs
from commandbus.cli.output import ExitCode
from commandbus.cli.processes import Job, Parent, check_processes
from commandbus.cli.worker import End, Workers
from commandbus.errors import InvalidInputError
from commandbus.monitoring.catalogue import RESTARTS
from commandbus.monitoring.reports import Gathered
from tests.waiting import until

#: Notes its start in a folder, then does what the test says; `job` is what the parent wrote.
PROGRAM = """
import os, pickle, signal, sys, time
job = pickle.load(sys.stdin.buffer)
folder = {folder!r}
open(os.path.join(folder, f"started-{{os.getpid()}}"), "w").close()
count = len(os.listdir(folder))
{body}
"""
#: A worker that stops at the first signal, as the real one does.
STOPS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(os.path.join(folder, f"ready-{os.getpid()}"), "w").close()
while True: time.sleep(0.05)  # a signal just before a long sleep would be heard after it
"""


@pytest.fixture
def gathered() -> Gathered:
    return Gathered(2)


@pytest.fixture
def parent_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: Gathered
) -> Callable[..., Parent]:
    monkeypatch.setattr(processes, "FIRST_PAUSE_SECONDS", 0.01)

    def make(body: str, *, until_empty: bool = False) -> Parent:
        text = PROGRAM.format(folder=str(tmp_path), body=body)
        monkeypatch.setattr(processes, "_COMMAND", text)
        job = Job("shop:app", Workers(), End(until_empty), Logs(), Place("host=nowhere"))
        return Parent(job, gathered, wants_reports=True)

    return make


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}-*"))


async def ended(running: asyncio.Task[int]) -> int:
    return await asyncio.wait_for(running, 30)


async def test_the_first_signal_stops_all_and_the_code_is_0(
    parent_of: Callable[..., Parent], tmp_path: Path, gathered: Gathered
) -> None:
    told: list[int] = []
    running = asyncio.create_task(parent_of(STOPS).run(2, lambda: told.append(1)))
    await until(lambda: len(files(tmp_path, "ready")) == 2, "two processes")
    os.kill(os.getpid(), signal.SIGINT)
    assert await ended(running) == ExitCode.OK
    assert told == [1]
    assert gathered.not_ready()[0] == "it is stopping"
    assert gathered.snapshot().get(RESTARTS) == 0


async def test_a_process_that_is_killed_is_started_again(
    parent_of: Callable[..., Parent], tmp_path: Path, gathered: Gathered,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    running = asyncio.create_task(parent_of(STOPS).run(2))
    await until(lambda: len(files(tmp_path, "ready")) == 2, "two processes")
    os.kill(int(files(tmp_path, "ready")[0].name.partition("-")[2]), signal.SIGKILL)
    await until(lambda: len(files(tmp_path, "ready")) == 3, "a third one")
    assert gathered.snapshot().get(RESTARTS) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.OK
    assert "killed by SIGKILL; it is started again" in caplog.text


async def test_pauses_grow_until_a_process_has_worked_for_a_while(
    parent_of: Callable[..., Parent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(processes, "LONGEST_PAUSE_SECONDS", 0.04)
    body = f"if count > 5:\n    {STOPS.strip().replace(chr(10), chr(10) + '    ')}\nsys.exit(1)"
    running = asyncio.create_task(parent_of(body).run(1))
    await until(lambda: files(tmp_path, "ready"), "the sixth start")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.OK
    pauses = [
        each.getMessage().split()[-2] for each in caplog.records if each.levelname == "WARNING"
    ]
    assert pauses == ["0.01", "0.02", "0.04", "0.04", "0.04"]


async def test_what_cannot_get_better_ends_all_with_its_code(
    parent_of: Callable[..., Parent], tmp_path: Path
) -> None:
    body = "if count > 1:\n    sys.exit(2)\n" + STOPS
    running = asyncio.create_task(parent_of(body).run(2))
    assert await ended(running) == ExitCode.USAGE
    assert len(files(tmp_path, "started")) == 2


#: A process that says which signals it heard, and ends at the second one.
HEARS = """
seen = []
def hear(*_):
    seen.append(1)
    open(os.path.join(folder, f"heard{len(seen)}-{os.getpid()}"), "w").close()
    if len(seen) == 2: sys.exit(130)
signal.signal(signal.SIGTERM, hear)
open(os.path.join(folder, f"ready-{os.getpid()}"), "w").close()
while True: time.sleep(0.05)  # a signal just before a long sleep would be heard after it
"""


async def test_a_second_signal_reaches_the_processes_too_and_the_code_says_so(
    parent_of: Callable[..., Parent], tmp_path: Path
) -> None:
    running = asyncio.create_task(parent_of(HEARS).run(2))
    await until(lambda: len(files(tmp_path, "ready")) == 2, "two processes")
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: len(files(tmp_path, "heard1")) == 2, "the first signal")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.INTERRUPTED
    assert len(files(tmp_path, "heard2")) == 2


async def test_a_process_that_starts_during_a_stop_is_told_and_the_others_are_not_told_twice(
    parent_of: Callable[..., Parent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, go_on = asyncio.create_subprocess_exec, asyncio.Event()
    made: list[asyncio.subprocess.Process] = []

    async def slow_start(*args: Any, **options: Any) -> Any:
        made.append(await start(*args, **options))
        if len(made) == 2:
            await go_on.wait()
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow_start)
    running = asyncio.create_task(parent_of(HEARS).run(2))
    await until(lambda: len(made) == 2 and files(tmp_path, "ready"), "a process, and a late one")
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: files(tmp_path, "heard1"), "the one that is known hears it")
    go_on.set()
    # It may be told before it can hear anything: then that ends it.
    await until(
        lambda: len(files(tmp_path, "heard1")) == 2 or any(each.returncode for each in made),
        "the late one is told too",
    )
    assert not files(tmp_path, "heard2")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.INTERRUPTED


async def test_a_third_signal_ends_processes_that_hear_nothing(
    parent_of: Callable[..., Parent], tmp_path: Path
) -> None:
    parent = parent_of(STOPS.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN"))
    running = asyncio.create_task(parent.run(1))
    await until(lambda: files(tmp_path, "ready"), "a process")
    heard: list[int] = []
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: parent._signals > len(heard), "the signal")
        heard.append(parent._signals)
    assert await ended(running) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (6, 6), (1, 1)])
async def test_processes_that_end_by_themselves_are_not_started_again(
    parent_of: Callable[..., Parent], tmp_path: Path, code: int, wanted: int
) -> None:
    running = asyncio.create_task(parent_of(f"sys.exit({code})", until_empty=True).run(2))
    assert await ended(running) == wanted
    assert len(files(tmp_path, "started")) <= 2


async def test_a_stop_during_the_pause_ends_at_once(
    parent_of: Callable[..., Parent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(processes, "FIRST_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(processes, "LONGEST_PAUSE_SECONDS", 600.0)
    running = asyncio.create_task(parent_of("sys.exit(1)").run(1))
    await until(lambda: "started again" in caplog.text, "the pause")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.OK


async def test_reports_of_processes_arrive_and_the_job_does_too(
    parent_of: Callable[..., Parent], gathered: Gathered
) -> None:
    body = (
        """
import json
assert job.place.dsn == "host=nowhere" and "NOTIFY_SOCKET" not in os.environ
checks = {path: [] for path in ("/livez", "/readyz", "/startupz")}
os.write(job.reports_to, json.dumps({"checks": checks, "series": []}).encode() + b"\\n")
"""
        + STOPS
    )
    running = asyncio.create_task(parent_of(body).run(2))
    await until(lambda: not gathered.not_ready(), "both to be ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(running) == ExitCode.OK


@pytest.mark.parametrize("count", [0, -1, 257])
def test_a_number_of_processes_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InvalidInputError, match="use 1 to 256"):
        check_processes(count)


def test_a_process_ends_when_its_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: told.append(call))
    readable, writable = os.pipe()
    os.close(writable)
    processes._end_with(readable)
    os.close(readable)
    assert told == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize(("code", "text"), [(3, "with exit code 3"), (-9, "killed by SIGKILL"),
                                            (-200, "killed by signal 200")])  # fmt: skip
def test_an_end_is_described_in_words(code: int, text: str) -> None:
    assert processes._described(code) == text
    assert processes._own_code(-signal.SIGTERM) == ExitCode.OK
    assert processes._own_code(-9) == ExitCode.FAILED

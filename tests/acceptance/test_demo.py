"""`commandbus demo`, as the README's first command runs it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.long]

PROGRAM = [sys.executable, "-m", "commandbus"]
# A shell starts its background jobs with SIGINT ignored, and children inherit that. If the tests
# run in such a job, this is the program as a person would start it.
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.executable, [sys.executable, '-m', 'commandbus', *sys.argv[1:]])",
]


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder that the account of the embedded server can reach."""
    folder = Path(tempfile.mkdtemp(prefix="commandbus-demo-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "COMMANDBUS_DSN"}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_is_lost_or_done_twice_when_a_worker_is_killed(data_dir: Path) -> None:
    where = ["--data-dir", str(data_dir)]

    demo = run([*PROGRAM, "demo", "--json", "--commands", "1500", *where])

    assert demo.returncode == 0, demo.stderr
    figures: dict[str, Any] = json.loads(demo.stdout)
    assert (figures["sent"], figures["completed"]) == (1_500, 1_488)
    assert (figures["lost"], figures["double_effects"], figures["rolled_back_traces"]) == (0, 0, 0)
    assert (figures["in_troubleshooting"], figures["retried"]) == (12, 149)
    assert (figures["killed_workers"], figures["ok"]) == (1, True)
    assert figures["redelivered"] >= figures["leases_of_killed_workers"]

    shown = run([*PROGRAM, "show", figures["example_command_id"], "--json", *where])
    events = [event["event_type"] for event in json.loads(shown.stdout)["events"]]
    assert events[0] == "SENT"
    if figures["redelivered"]:
        assert "LEASE_EXPIRED" in events


def test_the_commands_to_try_next_work_as_they_are_printed(data_dir: Path) -> None:
    demo = run([*PROGRAM, "demo", "-n", "60", "--no-kill", "--data-dir", str(data_dir)])
    assert demo.returncode == 0, demo.stderr
    _, _, after = demo.stdout.partition("What to try next\n")
    show, up, send = [
        shlex.split(line) for line in after.splitlines() if not line.startswith("  #")
    ]

    shown = run(show)
    assert shown.returncode == 0, shown.stderr
    assert "DebitAccount" in shown.stdout

    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(up, env=environment(), stdout=output, stderr=output) as serving,
    ):

        def is_up() -> bool:
            output.seek(0)
            return "Stop with Ctrl-C" in output.read()

        try:
            asyncio.run(until(is_up, "an up that is up"))
            sent = run(send)
            assert sent.returncode == 0, sent.stderr
            assert "balance_cents" in sent.stdout
        finally:
            serving.send_signal(signal.SIGINT)
    assert serving.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_worker_no_server_and_no_work(
    data_dir: Path, number: signal.Signals
) -> None:
    where = ["--data-dir", str(data_dir)]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            [*INTERRUPTIBLE, "demo", "-n", "4000", *where],
            env={**environment(), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as demo,
    ):

        def printed() -> str:
            output.seek(0)
            return output.read()

        try:
            asyncio.run(until(lambda: "retried" in printed(), "commands that are worked off", 60))
        finally:
            demo.send_signal(number)
        assert demo.wait(60) == 130
        text = printed()

    assert text.endswith("error: interrupted\n")
    found = re.search(r"worker processes are up: ([\d, ]+)", text)
    assert found is not None
    assert not any(is_alive(int(pid)) for pid in found[1].split(","))
    assert not (data_dir / "postmaster.pid").exists()
    listing = run([*PROGRAM, "list", "--status", "pending", "--json", *where])
    assert json.loads(listing.stdout)["commands"] == []

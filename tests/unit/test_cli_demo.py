"""The face of the demo: what it shows of a run. The run itself is a stand-in here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from commandbus import CommandBus, PermanentCommandError, TransientCommandError
from commandbus.cli import demo as face
from commandbus.cli.demo_view import DemoView
from commandbus.cli.main import app
from commandbus.cli.progress import progress_view
from commandbus.demo import app as demo_app
from commandbus.demo import events
from commandbus.demo.run import FAILING_FOR_GOOD, Options, _nth_payment
from commandbus.demo.tables import CLOSED_ACCOUNT, Counts, Progress
from commandbus.demo.workers import WorkerDiedError, WorkerProcess, stop_all

EXAMPLE, PARKED = UUID(int=1), UUID(int=2)
STORY: list[events.Told] = [
    events.ServerReady("18.6", 0.5),
    events.WorkersReady((11, 12, 13), 1.25),
    events.Committed(0.02),
    events.RolledBack(0),
    events.RolledBack(2),
    events.Sent(99, 0.01),
    Progress(100, 1, 0, 0),
    Progress(100, 50, 5, 6),
    events.Killed(13, 9, 14),
    Progress(100, 88, 9, 12),
    events.OperatorRetried(11),
]


def counted(*, lost: int = 0, doubled: int = 0, seconds: float | None = 0.5) -> Counts:
    return Counts(100, 88, 9, 12, 9, lost, doubled, seconds)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[Counts], list[Options]]:
    """Replace the run by a story with these counts; gives the options of the runs."""
    asked: list[Options] = []

    def play(found: Counts) -> list[Options]:
        async def run_demo(options: Options, tell: Callable[[events.Told], None]) -> events.Result:
            asked.append(options)
            for told in STORY:
                tell(told)
            return events.Result(found, 1, 9, 0, EXAMPLE, PARKED)

        monkeypatch.setattr("commandbus.demo.run.run_demo", run_demo)
        return asked

    return play


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["demo", *arguments])


def test_a_run_is_told_in_lines_and_ends_with_a_table(
    played: Callable[[Counts], list[Options]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/x/bin/commandbus"])
    asked = played(counted())

    result = run("--no-kill", "-n", "100")

    assert result.exit_code == 0
    assert asked == [Options(100, kill=False)]
    for text in (
        "PostgreSQL 18.6 is ready",
        "3 worker processes are up: 11, 12, 13",
        "neither is there",
        "2 traces are left",
        "Worker 13 was killed with SIGKILL while it had 9 leases",
        "88 completed      9 retried   12 in troubleshooting",
        "lost                    0  must be 0",
        "throughput            176  commands per second",
        f"  /opt/x/bin/commandbus show {EXAMPLE}\n",
        "up commandbus.demo.app:setup\n",
    ):
        assert text in result.stdout


def test_json_is_one_document(played: Callable[[Counts], list[Options]]) -> None:
    played(counted())

    result = run("--json")

    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert (document["sent"], document["lost"], document["double_effects"]) == (100, 0, 0)
    assert document["commands_per_second"] == 176.0
    assert document["example_command_id"] == str(EXAMPLE)


@pytest.mark.parametrize("found", [counted(lost=1), counted(doubled=1, seconds=None)])
@pytest.mark.parametrize("options", [["--json"], []])
def test_what_is_lost_or_doubled_fails_the_demo(
    played: Callable[[Counts], list[Options]], found: Counts, options: list[str]
) -> None:
    played(found)

    result = run(*options)

    assert result.exit_code == 1
    assert "lost or had two effects" in result.stderr


@pytest.mark.parametrize(
    ("options", "environment", "argv", "expected"),
    [
        (["--data-dir", "/d x"], {}, "commandbus", f"show {EXAMPLE} --data-dir '/d x'\n"),
        (["--dsn", "password=geheim"], {}, "commandbus", f'show {EXAMPLE} --dsn "…"\n'),
        ([], {"COMMANDBUS_DSN": "host=x"}, "commandbus", "commandbus show"),
        ([], {}, "/site/commandbus/__main__.py", f"{sys.executable} -m commandbus show"),
    ],
)
def test_the_next_commands_can_be_typed_as_they_stand(
    played: Callable[[Counts], list[Options]],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    environment: dict[str, str],
    argv: str,
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [argv])
    played(counted())

    result = run(*options)

    assert expected in result.stdout
    assert "geheim" not in result.output


def test_a_program_on_the_path_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "commandbus"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program)])

    assert face._program() == "commandbus"


def test_a_terminal_sees_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)

    with progress_view(quiet=False) as progress:
        view = DemoView(progress, 100)
        for told in STORY:
            view.tell(told)

    text = screen.getvalue()
    assert "━━━━" in text
    assert "88/88" in text
    assert "12/12" in text
    assert "was killed with SIGKILL" in text


def test_an_interrupt_is_an_interrupt_whatever_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_demo(options: Options, tell: Callable[[events.Told], None]) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.Event().wait()

    monkeypatch.setattr("commandbus.demo.run.run_demo", run_demo)

    assert run().exit_code == 130


# -- the application


@pytest.mark.parametrize("count", [49, 99, 1_499, 4_999])
def test_so_many_payments_fail_for_good_whatever_the_size(count: int) -> None:
    payments = [_nth_payment(number, count, EXAMPLE) for number in range(count)]

    failing = sum(payment.data["account_id"] == CLOSED_ACCOUNT for payment in payments)
    assert failing == FAILING_FOR_GOOD


def context(data: dict[str, Any], attempt: int, row: tuple[int] | None) -> tuple[Any, Any]:
    """A command and its context, on a connection that answers with this row."""

    async def fetchone() -> tuple[int] | None:
        return row

    async def execute(*_: object) -> Any:
        return SimpleNamespace(fetchone=fetchone)

    command: Any = SimpleNamespace(data=data, command_id=EXAMPLE)
    conn = SimpleNamespace(execute=execute)
    return command, SimpleNamespace(attempt=attempt, conn=conn, correlation_id=PARKED)


GOOD = {"account_id": 20, "amount_cents": 5}


async def test_a_payment_gives_the_new_balance() -> None:
    assert await demo_app.debit_account(*context(GOOD, 1, (95,))) == {"balance_cents": 95}


async def test_a_busy_bank_fails_the_first_attempt_only() -> None:
    busy = {**GOOD, "bank_is_busy": True}

    with pytest.raises(TransientCommandError, match="BANK_BUSY"):
        await demo_app.debit_account(*context(busy, 1, (95,)))
    assert await demo_app.debit_account(*context(busy, 2, (95,))) == {"balance_cents": 95}


async def test_a_closed_account_fails_for_good() -> None:
    with pytest.raises(PermanentCommandError, match="ACCOUNT_CLOSED"):
        await demo_app.debit_account(*context(GOOD, 1, None))


@pytest.mark.parametrize(
    "data", [{}, {"account_id": "1", "amount_cents": 5}, {"account_id": 1, "amount_cents": 0}]
)
async def test_a_payment_that_is_none_fails_for_good(data: dict[str, Any]) -> None:
    with pytest.raises(PermanentCommandError, match="INVALID_PAYMENT"):
        await demo_app.debit_account(*context(data, 1, (1,)))


def test_the_app_registers_its_handler() -> None:
    bus = CommandBus(store=SimpleNamespace())

    demo_app.setup(bus)

    assert bus.domains == ["demo"]


# -- its processes


def test_a_worker_that_dies_is_noticed_with_its_last_words() -> None:
    worker = WorkerProcess("no_such_module:setup", "host=/nowhere", concurrency=1, vt_seconds=2)
    worker._process.wait()

    with pytest.raises(WorkerDiedError, match="code 2: error: no module 'no_such_module'"):
        worker.check()

    stop_all([worker])

"""`demo`: shows the run of commandbus.demo, live on a terminal, line by line elsewhere."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.cli.options import AsJson, DataDir, Dsn, Place
from commandbus.cli.output import (
    Column,
    ExitCode,
    print_error,
    print_json,
    print_table,
    say,
    text_of,
)
from commandbus.cli.stage import Silence, stage_for
from commandbus.demo.events import Result
from commandbus.demo.run import APP, Options, run_demo
from commandbus.wiring import find_dsn


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo", rich_help_panel="Run")(demo)


def demo(
    commands: Annotated[
        int, typer.Option("--commands", "-n", min=50, max=100_000, help="How many to send.")
    ] = 5_000,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Leave all workers alive.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """See it work: three worker processes, 5,000 commands, one worker killed half-way.

    Counts in the end, by SQL, what was lost (nothing) and what was done twice (nothing). The data
    stays, so that you can look at it with the other commands.
    """
    place = Place(dsn, data_dir)
    options = Options(commands, not no_kill, find_dsn(dsn), data_dir)
    stage = Silence() if as_json else stage_for(commands)
    with stage:
        result = asyncio.run(_interruptible(options, stage))
    if as_json:
        print_json(_document(result))
    else:
        _print_verdict(result)
        _print_next_steps(result, place)
    if not result.is_good:
        print_error("commands were lost or had two effects; this must not happen, please report it")
        raise typer.Exit(ExitCode.FAILED)


async def _interruptible(options: Options, stage: Silence) -> Result:
    """SIGTERM and a closed terminal clean up as Ctrl-C does."""
    loop = asyncio.get_running_loop()
    run = asyncio.ensure_future(run_demo(options, stage.tell))
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, run.cancel)
    try:
        return await run
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


# -- when it is over


def _document(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "ok": result.is_good,
        "sent": verdict.sent,
        "completed": verdict.completed,
        "retried": verdict.retried,
        "in_troubleshooting": verdict.in_troubleshooting,
        "redelivered": verdict.redelivered,
        "lost": verdict.lost,
        "double_effects": verdict.double_effects,
        "seconds": verdict.seconds,
        "commands_per_second": _throughput(result),
        "killed_workers": result.killed_workers,
        "leases_of_killed_workers": result.leases_of_killed,
        "rolled_back_traces": result.rolled_back_traces,
        "example_command_id": result.example,
        "operator_retried_command_id": result.operator_retried,
    }


def _throughput(result: Result) -> float | None:
    seconds = result.verdict.seconds
    return round(result.verdict.completed / seconds, 1) if seconds else None


def _print_verdict(result: Result) -> None:
    verdict = result.verdict
    must_be_zero = {"lost": verdict.lost, "done twice": verdict.double_effects}
    rows = [
        ["sent", f"{verdict.sent:,}", "payments, each with its command"],
        ["completed", f"{verdict.completed:,}", "with exactly one effect each"],
        ["retried", f"{verdict.retried:,}", "failed once, tried again after a pause"],
        ["in troubleshooting", f"{verdict.in_troubleshooting:,}", "failed for good"],
        ["redelivered", f"{verdict.redelivered:,}", "from the killed worker to others"],
        *(
            [name, f"[bold {'green' if count == 0 else 'red'}]{count:,}[/]", "must be 0"]
            for name, count in must_be_zero.items()
        ),
        ["throughput", f"{_throughput(result) or 0:,.0f}", "commands per second"],
    ]
    say("\n[bold]What the tables say[/] (counted by SQL)")
    columns = [Column("COMMANDS"), Column("COUNT", is_number=True), Column("")]
    print_table(columns, rows)


def _print_next_steps(result: Result, place: Place) -> None:
    where = ""
    if place.dsn is not None:
        where = ' --dsn "…"'  # it may hold a password
    elif place.data_dir is not None:
        where = f" --data-dir {shlex.quote(str(place.data_dir))}"
    payment = '{"account_id": 1, "amount_cents": 500}'
    say("\n[bold]What to try next[/]")
    for what, command in (
        ("the life of a command of this run", f"show {result.example}"),
        ("keep a server and a worker running", f"up {APP}"),
        ("then, in another terminal", f"send demo DebitAccount --data '{payment}' --wait 10"),
    ):
        say(f"  [dim]# {what}[/]\n  {text_of(f'{_program()} {command}{where}')}")


def _program() -> str:
    """How this program was called, so that the next command can be typed as it stands."""
    called = Path(sys.argv[0])
    name = str(called)
    if called.name == "__main__.py":
        name = f"{shlex.quote(sys.executable)} -m commandbus"
    elif shutil.which(called.name) == str(called.absolute()):
        name = called.name
    return name

"""`demo`: shows the run of commandbus.demo, live on a terminal, line by line elsewhere."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.cli.frame import Frame, Place, View
from commandbus.cli.output import Column, ExitCode, Table, jsonable, say, text_of
from commandbus.cli.progress import progress_view

if TYPE_CHECKING:
    from commandbus.cli.demo_view import DemoView
    from commandbus.demo.events import Result
    from commandbus.demo.run import Options


async def demo(
    frame: Frame,
    *,
    commands: Annotated[
        int, typer.Option("--commands", "-n", min=50, max=100_000, help="How many to send.")
    ] = 5_000,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Leave all workers alive.")] = False,
) -> View:
    """See it work: three worker processes, 5,000 commands, one worker killed half-way.

    Counts in the end, by SQL, what was lost (nothing) and what was done twice (nothing). The data
    stays, so that you can look at it with the other commands.
    """
    from commandbus.cli.demo_view import DemoView
    from commandbus.demo.run import Options
    from commandbus.wiring import find_dsn

    place = frame.place.one
    options = Options(commands, not no_kill, find_dsn(place.dsn), place.data_dir)
    with progress_view(quiet=frame.as_json) as progress:
        result = await _interruptible(options, DemoView(progress, commands))

    def show() -> None:
        _print_counts(result)
        _print_next_steps(result, place)

    if result.is_good:
        return View(_document(result), show)
    error = "commands were lost or had two effects; this must not happen, please report it"
    return View(_document(result), show, ExitCode.FAILED, error)


async def _interruptible(options: Options, view: DemoView) -> Result:
    """SIGTERM and a closed terminal clean up as Ctrl-C does."""
    from commandbus.demo.run import run_demo

    loop = asyncio.get_running_loop()
    run = asyncio.ensure_future(run_demo(options, view.tell))
    for name in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, run.cancel)
    try:
        return await run
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


# -- when it is over


def _document(result: Result) -> dict[str, Any]:
    return {
        "ok": result.is_good,
        **jsonable(result.counts),
        "commands_per_second": _throughput(result),
        "killed_workers": result.killed_workers,
        "leases_of_killed_workers": result.leases_of_killed,
        "rolled_back_traces": result.rolled_back_traces,
        "example_command_id": result.example,
        "operator_retried_command_id": result.operator_retried,
    }


def _throughput(result: Result) -> float | None:
    seconds = result.counts.seconds
    return round(result.counts.completed / seconds, 1) if seconds else None


def _print_counts(result: Result) -> None:
    counts = result.counts
    must_be_zero = {"lost": counts.lost, "done twice": counts.double_effects}
    rows = [
        ("sent", counts.sent, "payments, each with its command"),
        ("completed", counts.completed, "with exactly one effect each"),
        ("retried", counts.retried, "failed once, tried again after a pause"),
        ("in troubleshooting", counts.in_troubleshooting, "failed for good"),
        ("redelivered", counts.redelivered, "from the killed worker to others"),
        *(
            (name, f"[bold {'green' if count == 0 else 'red'}]{count:,}[/]", "must be 0")
            for name, count in must_be_zero.items()
        ),
        ("throughput", round(_throughput(result) or 0), "commands per second"),
    ]
    say("\n[bold]What the tables say[/] (counted by SQL, before the operator came)")
    Table[tuple[str, object, str]](
        Column("COMMANDS", lambda row: row[0]),
        Column("COUNT", lambda row: row[1], is_number=True),
        Column("", lambda row: row[2]),
    ).print(rows)


def _print_next_steps(result: Result, place: Place) -> None:
    from commandbus.demo.run import APP

    where = ""
    if place.dsn is not None:
        where = ' --dsn "…"'  # it may hold a password
    elif place.data_dir is not None:
        where = f" --data-dir {shlex.quote(str(place.data_dir))}"
    payment = '{"account_id": 1, "amount_cents": 500}'
    say("\n[bold]What to try next[/]")
    for what, words in (
        ("the life of a command of this run", f"show {result.example}"),
        ("keep a server and a worker running", f"up {APP}"),
        ("then, in another terminal", f"send demo DebitAccount --data '{payment}' --wait 10"),
    ):
        say(f"  [dim]# {what}[/]\n  {text_of(f'{_program()} {words}{where}')}")


def _program() -> str:
    """How this program was called, so that the next command can be copied."""
    called = Path(sys.argv[0])
    name = str(called)
    if called.name == "__main__.py":
        name = f"{shlex.quote(sys.executable)} -m commandbus"
    elif shutil.which(called.name) == str(called.absolute()):
        name = called.name
    return name

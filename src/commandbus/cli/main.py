"""The program `commandbus`: its commands, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from commandbus import __version__
from commandbus.cli import (
    audit,
    backup,
    batch,
    bulk,
    cancel,
    db,
    db_drop,  # noqa: F401  (adds itself to `db`)
    db_upgrade,  # noqa: F401  (adds itself to `db`)
    db_url,  # noqa: F401  (adds itself to `db`)
    demo,
    dispatch,
    doctor,
    down,
    exporter,
    governed,
    handover,
    keys,
    limits,
    list,  # noqa: A004  (each module has the name of its command)
    open,  # noqa: A004  (the same)
    pause,
    priority,
    probe,
    relay,
    reschedule,
    schedule,
    scheduler,
    seals,
    send,
    serve,
    shards,
    show,
    token,
    top,
    tsq,
    up,
    worker,
    workers,
)
from commandbus.cli.ending import describe_error, exit_code_of, root_cause
from commandbus.cli.frame import command
from commandbus.cli.logs import start_logging
from commandbus.cli.output import ExitCode, print_error

EPILOG = "\n\n".join(
    [
        "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {code.meaning}" for code in ExitCode),
        "\b\nEnvironment:\n"
        "  COMMANDBUS_DSN    the PostgreSQL to use when there is no --dsn\n"
        "  COMMANDBUS_SHARDS the map of shards, if domains are in several databases\n"
        "  COMMANDBUS_HOME   where the embedded server keeps its data\n"
        "  COMMANDBUS_DEBUG  show tracebacks, as --debug does\n"
        "  NO_COLOR          no colours",
    ]
)


class Program(TyperGroup):
    """Turns an exception into one line on stderr and an exit code."""

    def parse_args(self, ctx: Any, args: Any) -> Any:
        """Read the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            raise _usage_exit(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as refused:
            raise _usage_exit(refused) from None
        except (Exception, KeyboardInterrupt) as raised:
            error = root_cause(raised)
            # Exit belongs to Typer; a closed pipe (`| head`) ends the program quietly.
            if ctx.params.get("debug") or isinstance(error, typer.Exit | BrokenPipeError):
                raise
            print_error(describe_error(error))
            raise typer.Exit(exit_code_of(error)) from None


def _usage_exit(error: Any) -> typer.Exit:
    """Print what is wrong with an argument, in one line; returns the exit to raise."""
    where = error.ctx.command_path if getattr(error, "ctx", None) else "commandbus"
    lines = error.format_message().splitlines()
    if len(lines) > 1:  # no arguments at all: the help is the message
        print("\n".join(lines), file=sys.stderr)
    elif lines:
        print_error(f"{lines[0]} (`{where} --help` lists what there is)")
    return typer.Exit(error.exit_code)


app = typer.Typer(
    name="commandbus",
    cls=Program,
    help=(
        "A command bus on PostgreSQL and PGMQ.\n\n"
        "Try `commandbus demo` first: it needs nothing but this program."
    ),
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Boxes on a terminal only.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"commandbus {__version__}")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[  # noqa: ARG001  (read from the context)
        bool, typer.Option("--debug", envvar="COMMANDBUS_DEBUG", help="Show tracebacks.")
    ] = False,
) -> None:
    """Prepare what all commands need."""
    start_logging("warning")


# In the order of `commandbus --help`.
command(app, "demo", panel="Run")(demo.demo)
command(app, "up", panel="Run")(up.up)
command(app, "down", panel="Run")(down.down)
command(app, "worker", panel="Run")(worker.worker)
command(app, "serve", panel="Run")(serve.serve)
command(app, "open", panel="Run")(open.open_console)
command(app, "scheduler", panel="Run")(scheduler.scheduler)
command(app, "relay", panel="Run")(relay.relay)
command(app, "handover", panel="Run")(handover.handover)
command(app, "exporter", panel="Run")(exporter.exporter)
app.add_typer(token.token, name="token", rich_help_panel="Run")
app.add_typer(governed.governed, name="governed", rich_help_panel="Run")
command(app, "send", panel="Send and look")(send.send)
command(app, "dispatch", panel="Send and look")(dispatch.dispatch)
command(app, "show", panel="Send and look")(show.show)
command(app, "top", panel="Send and look")(top.top)
command(app, "list", panel="Send and look")(list.list_commands)
command(app, "workers", panel="Send and look")(workers.workers)
command(app, "loads", panel="Send and look")(workers.loads)
command(app, "audit", panel="Send and look")(audit.audit)
app.add_typer(batch.batch, name="batch", rich_help_panel="Send and look")
app.add_typer(schedule.schedule, name="schedule", rich_help_panel="Send and look")
app.add_typer(tsq.tsq, name="tsq", rich_help_panel="Operate")
app.add_typer(bulk.bulk, name="bulk", rich_help_panel="Operate")
command(app, "cancel", panel="Operate")(cancel.cancel)
command(app, "reschedule", panel="Operate")(reschedule.reschedule)
app.add_typer(limits.limits, name="limits", rich_help_panel="Operate")
command(app, "pause", panel="Operate")(pause.pause)
command(app, "resume", panel="Operate")(pause.resume)
app.add_typer(priority.priority, name="priority", rich_help_panel="Operate")
app.add_typer(keys.keys, name="keys", rich_help_panel="Operate")
command(app, "health", panel="Operate")(probe.health)
command(app, "doctor", panel="Operate")(doctor.doctor)
command(app, "backup", panel="Operate")(backup.backup)
command(app, "restore", panel="Operate")(backup.restore)
app.add_typer(seals.seals, name="seals", rich_help_panel="Operate")
app.add_typer(db.db, name="db", rich_help_panel="Operate")
app.add_typer(shards.shards, name="shards", rich_help_panel="Operate")


def main() -> None:
    """Run the program."""
    app()

"""The door of the program that every installation has: argparse, and nothing that an extra brings.

What a production image runs (`worker`, `db init|migrate|status|sql`) is started from here, so that
it starts quickly and behaves the same whatever is installed. Everything else is handed to Typer,
or answered with the extra to install. Options are declared once, for both doors.
"""

from __future__ import annotations

import argparse
import enum
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import NoneType
from typing import Any, NoReturn, get_args

from commandbus._version import __version__

#: The words of each command that the core has, and the function that it is.
COMMANDS = {
    ("worker",): "commandbus.cli.worker:worker",
    ("db", "init"): "commandbus.cli.schema:init",
    ("db", "migrate"): "commandbus.cli.schema:migrate",
    ("db", "status"): "commandbus.cli.schema:status",
    ("db", "sql"): "commandbus.cli.schema:sql",
}
_HELP = ("-h", "--help")


def main() -> None:
    """Run the program."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command; returns the exit code, unless Typer ends the program."""
    rest = [*words[1:]] if words[:1] == ["--debug"] else [*words]
    if rest[:1] == ["--version"]:
        print(f"commandbus {__version__}")
        return 0
    if rest[:1] == ["health"]:
        from commandbus.cli.probe import run as probe

        return probe(rest[1:])
    name = next((name for name in COMMANDS if tuple(rest[: len(name)]) == name), None)
    has_typer = find_spec("typer") is not None
    if has_typer and (name is None or set(_HELP) & set(rest)):
        # Nothing of what an import makes is garbage; looking for some costs a tenth of the start.
        gc.disable()
        from commandbus.cli.main import main as hand_over

        gc.enable()
        hand_over()
        return 0
    if name is None:
        return _without_typer(rest)
    function = function_of(name)
    given = vars(parser_of(name, function).parse_args(rest[len(name) :]))
    return _guarded(function, given, debug=len(rest) < len(words) or _is_set("COMMANDBUS_DEBUG"))


def function_of(name: tuple[str, ...]) -> Callable[..., Any]:
    """The function of a command."""
    module, _, attribute = COMMANDS[name].partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function


def _without_typer(words: list[str]) -> int:
    """Help, or what to install for the command that was asked for."""
    from commandbus.cli.output import ExitCode, print_error
    from commandbus.errors import MissingExtraError

    asked = [word for word in words if not word.startswith("-")]
    if asked and asked != ["db"]:
        command = " ".join(asked[: 2 if asked[0] == "db" else 1])
        print_error(str(MissingExtraError(f"`commandbus {command}`", "cli", "typer")))
        return ExitCode.USAGE
    is_help = bool(set(_HELP) & set(words))
    lines = ["Usage: commandbus [--version] [--debug] COMMAND ...", "", "Commands:"]
    for name in COMMANDS:
        summary = inspect.getdoc(function_of(name)) or ""
        lines.append(f"  {' '.join(name):<12} {summary.splitlines()[0]}")
    lines += ["", 'All others come with the extra `cli`: pip install "commandbus[cli]"', ""]
    lines += ["Exit codes:", *(f"  {code:<4} {code.meaning}" for code in ExitCode)]
    print("\n".join(lines), file=sys.stdout if is_help else sys.stderr)
    return ExitCode.OK if is_help else ExitCode.USAGE


# -- one command


class _Parser(argparse.ArgumentParser):
    """Ends the program as Typer's door does: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        from commandbus.cli.output import ExitCode, print_error

        print_error(f"{message} (`{self.prog} --help` lists what there is)")
        raise SystemExit(ExitCode.USAGE)


def parser_of(name: tuple[str, ...], function: Callable[..., Any]) -> argparse.ArgumentParser:
    """A parser with the options that the function declares."""
    from commandbus.cli.declared import flattened, parameters_of

    parser = _Parser(
        prog=f"commandbus {' '.join(name)}",
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for parameter in parameters_of(function):
        for each in flattened(parameter):
            _add(parser, each)
    return parser


def _add(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    from commandbus.cli.declared import declaration_of

    kind, declared = declaration_of(parameter)
    if declared is None:
        raise TypeError(f"{parameter.name} is declared for Typer only; use cli.declared.option")
    # A percent sign would be taken for a place to fill in.
    more: dict[str, Any] = {"help": declared.help.replace("%", "%%"), "metavar": declared.metavar}
    if not declared.flags:
        parser.add_argument(parameter.name, type=_reader(kind), **more)
        return
    more |= {"dest": parameter.name, "default": parameter.default}
    if declared.envvar and os.environ.get(declared.envvar):
        more["default"] = os.environ[declared.envvar]  # argparse reads a text as if it was given
    if kind is bool:
        del more["metavar"]
        parser.add_argument(*declared.flags, action="store_true", **more)
    elif _is_list(kind):
        parser.add_argument(*declared.flags, action="append", **more)
    else:
        parser.add_argument(*declared.flags, type=_reader(kind), **more)


def _is_list(kind: Any) -> bool:
    return any(part == list[str] for part in get_args(kind))


def _reader(kind: Any) -> Callable[[str], Any]:
    """What turns a word into a value of this type."""
    inner = next((part for part in get_args(kind) if part is not NoneType), kind)
    if not (isinstance(inner, type) and issubclass(inner, enum.Enum)):
        read: Callable[[str], Any] = inner
        return read

    def choose(text: str) -> Any:
        try:
            return inner(text)
        except ValueError:
            choices = ", ".join(str(each.value) for each in inner)
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {choices}") from None

    return choose


def _guarded(function: Callable[..., Any], given: dict[str, Any], *, debug: bool) -> int:
    """Run it; an error becomes one line and an exit code."""
    from commandbus.cli.declared import parameters_of, value_of
    from commandbus.cli.ending import describe_error, exit_code_of, root_cause
    from commandbus.cli.logs import start_logging
    from commandbus.cli.output import ExitCode, print_error

    start_logging("warning")
    try:
        options = {
            each.name: value_of(each.name, each.annotation, given)
            for each in parameters_of(function)
        }
        result = function(**options)
        if result is not None:
            import asyncio

            asyncio.run(result).show(as_json=options["frame"].as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: nobody reads on, also not what Python writes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except (Exception, KeyboardInterrupt) as raised:
        if debug:
            raise
        error = root_cause(raised)
        print_error(describe_error(error))
        return exit_code_of(error)
    return ExitCode.OK


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in {"", "0", "false", "f", "no", "n", "off"}

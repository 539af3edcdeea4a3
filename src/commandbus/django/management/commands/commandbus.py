"""`manage.py commandbus …`: the program `commandbus`, on the database of the project."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from commandbus.django.conf import Configuration, configuration
from commandbus.django.migrating import dsn_of
from commandbus.django.reloading import run_again_and_again
from commandbus.errors import CommandBusError

#: The handlers of the project, as the program names applications.
APP = "commandbus.django.working:app"


class Command(BaseCommand):
    """Hands over to the program `commandbus`."""

    help = "Run workers, look at commands and operate them: `manage.py commandbus --help`."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments on: the program has its own parser and its own help."""
        try:
            sys.exit(self.hand_over(argv[2:]))
        except (CommandError, CommandBusError) as error:
            self.stderr.write(f"commandbus: {error}")
            sys.exit(2)

    def handle(self, *_: Any, **options: Any) -> None:
        """The same for `call_command("commandbus", "doctor", "--json")`.

        The caller goes on: this returns, or raises CommandError, and the process is as before.
        """
        words = [str(each) for each in options["arguments"]]
        try:
            with _unchanged_process():
                code = self.hand_over(words)
        except CommandBusError as error:
            raise CommandError(str(error), returncode=2) from error
        if code:
            named = " ".join(words[:2])
            raise CommandError(f"`commandbus {named}` ended with code {code}", returncode=code)

    def add_arguments(self, parser: Any) -> None:
        """All arguments are those of the program, also those that begin with a dash."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def hand_over(self, arguments: list[str]) -> int:
        """Run the program; returns its exit code."""
        self.check(tags=["commandbus"])
        if "--reload" not in arguments:
            return self._run(arguments)
        if not settings.DEBUG:
            raise CommandError("--reload is for development: it needs DEBUG = True")
        return run_again_and_again([each for each in sys.argv if each != "--reload"])

    def _run(self, arguments: list[str]) -> int:
        from commandbus.cli.core import run

        found = configuration()
        # By the environment: an address on the command line would show its password to all users.
        os.environ["COMMANDBUS_DSN"] = dsn_of(found.database)
        os.environ.update(environment(found))
        # LOGGING may have switched off all loggers that were there before it.
        for logger in _loggers():
            logger.disabled = False
        words = with_app(arguments, found)
        sys.argv = ["commandbus", *words]
        try:
            return run(words)
        except SystemExit as ended:  # how the larger part of the program says its code
            return _code_of(ended)


def _code_of(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _loggers() -> list[logging.Logger]:
    return [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.partition(".")[0] == "commandbus" and isinstance(logger, logging.Logger)
    ]


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """What the program changes as if the process was its own is as before at the end."""
    environ, arguments = dict(os.environ), sys.argv
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    loggers = [(each, each.level, each.disabled) for each in _loggers()]
    try:
        yield
    finally:
        sys.argv = arguments
        for name in [*os.environ]:
            if name.startswith("COMMANDBUS_") and name not in environ:
                del os.environ[name]
        os.environ.update(
            {name: text for name, text in environ.items() if name.startswith("COMMANDBUS_")}
        )
        root.handlers[:] = handlers
        root.setLevel(level)
        for logger, before, is_disabled in loggers:
            logger.setLevel(before)
            logger.disabled = is_disabled


def environment(found: Configuration) -> dict[str, str]:
    """The settings of the project, as the program reads them."""
    values = {"replies": found.replies, **found.settings}
    return {f"COMMANDBUS_{name.upper()}": _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_app(arguments: list[str], found: Configuration) -> list[str]:
    """The arguments, with the app of the project where the program asks for one."""
    if arguments[:1] != ["worker"] or {"-h", "--help"} & set(arguments):
        return arguments
    named = {"concurrency": "--concurrency", "vt_seconds": "--vt-seconds"}
    given = [
        part
        for key, option in named.items()
        if key in found.worker
        for part in (option, str(found.worker[key]))
    ]
    if not found.worker.get("use_notify", True):
        given.append("--no-notify")
    # What is typed comes last, and wins.
    return ["worker", APP, *given, *arguments[1:]]

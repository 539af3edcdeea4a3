"""`manage.py commandbus …`: the program `commandbus`, on the database of the project."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils import autoreload

from commandbus.django.conf import configuration
from commandbus.django.migrating import dsn_of

#: What the worker of a project registers, as the program names applications.
APP = "commandbus.django.working:setup"
#: Where the app is an argument.
WITH_APP = {"worker", "up"}


class Command(BaseCommand):
    """Hands over to the program `commandbus`."""

    help = "Run workers, look at commands and operate them: `manage.py commandbus --help`."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments on: the program has its own parser and its own help."""
        self.hand_over(argv[2:])

    def handle(self, *arguments: Any, **_: Any) -> None:
        """The same for `call_command("commandbus", "doctor")`."""
        self.hand_over([str(each) for each in arguments])

    def add_arguments(self, parser: Any) -> None:
        """All arguments are those of the program."""
        parser.add_argument("arguments", nargs="*")

    def hand_over(self, arguments: list[str]) -> None:
        """Run the program; its exit code is that of the process."""
        self.check(tags=["commandbus"])
        arguments = list(arguments)
        if reload := "--reload" in arguments:
            arguments.remove("--reload")
        if reload and not settings.DEBUG:
            self.stderr.write("commandbus: --reload is for development: it needs DEBUG = True")
            sys.exit(2)
        if reload:
            autoreload.run_with_reloader(self._run, arguments)
        else:
            self._run(arguments)

    def _run(self, arguments: list[str]) -> None:
        from commandbus.cli.main import app

        found = configuration()
        # By the environment: an address on the command line would show its password to all users.
        os.environ["COMMANDBUS_DSN"] = dsn_of(found.database)
        app(args=with_app(arguments), prog_name="manage.py commandbus")


def with_app(arguments: list[str]) -> list[str]:
    """The arguments, with the app of the project where the program asks for one."""
    if not arguments or arguments[0] not in WITH_APP or {"-h", "--help"} & set(arguments):
        return arguments
    return [arguments[0], APP, *arguments[1:]]

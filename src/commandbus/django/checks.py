"""System checks: the setting COMMANDBUS, the engine, and (with --database) the schema."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.db import connections

from commandbus.django.conf import NAME, configuration, given_problems
from commandbus.django.discovery import middleware_of
from commandbus.django.migrating import status_of
from commandbus.django.seat import is_psycopg3
from commandbus.errors import CommandBusError


def check_setting(**_: Any) -> list[CheckMessage]:
    """What can be seen without a database."""
    if found := given_problems() or _middleware_problems():
        return [Error(text, id="commandbus.E001") for text in found]
    wrapper = connections[configuration().database]
    result: list[CheckMessage] = []
    if wrapper.vendor != "postgresql":
        result.append(
            Error(
                f"the database {wrapper.alias!r} of the bus is {wrapper.vendor}",
                hint=f"name an alias with PostgreSQL in {NAME}['DATABASE']",
                id="commandbus.E002",
            )
        )
    elif not is_psycopg3(wrapper):
        result.append(
            Error(
                "Django uses psycopg2, and the bus needs psycopg 3",
                hint="pip install 'psycopg[binary]'",
                id="commandbus.E003",
            )
        )
    if not settings.USE_TZ:
        result.append(
            CheckWarning(
                "USE_TZ is False, so times without a zone are mixed with those of the bus",
                hint="set USE_TZ = True; times that are given to the bus must have a zone",
                id="commandbus.W001",
            )
        )
    return result


def _middleware_problems() -> list[str]:
    try:
        middleware_of(configuration())
    except CommandBusError as error:
        return [str(error)]
    return []


def check_database(databases: Collection[str] | None = None, **_: Any) -> Sequence[CheckMessage]:
    """Whether the schema is there and current; asked with `check --database` and by migrate."""
    try:
        alias = configuration().database
    except CommandBusError:
        return []  # check_setting says it
    if not databases or alias not in databases or connections[alias].vendor != "postgresql":
        return []
    try:
        status = status_of(alias)
    except CommandBusError as error:
        return [Error(str(error), id="commandbus.E004")]
    if status.refusal is not None:
        return [Error(status.refusal, id="commandbus.E005")]
    if status.pending:
        return [
            CheckWarning(
                f"the schema of the bus lacks {len(status.pending)} migrations",
                hint="run `manage.py migrate`",
                id="commandbus.W002",
            )
        ]
    return []

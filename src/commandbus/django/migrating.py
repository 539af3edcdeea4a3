"""Migrations: Django's and ours are the same files, run by our own runner under its own lock.

`manage.py migrate`, `commandbus db migrate` and a database that somebody set up with `commandbus db
sql` can be mixed in any order, because our own table says what a database has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation

from commandbus.django.conf import configuration
from commandbus.django.seat import DjangoSeat, refuse_other_engines
from commandbus.wiring import address_of, database_status, ensure_domains, migrate_database

if TYPE_CHECKING:
    from commandbus.database.migrations import SchemaStatus

Result = TypeVar("Result")


def dsn_of(alias: str) -> str:
    """The address of the database behind an alias; in a test that of the test database."""
    seat = DjangoSeat(alias)
    refuse_other_engines(seat.wrapper)
    return address_of(seat.parameters)


def status_of(alias: str) -> SchemaStatus:
    """What a database has, and what this package brings."""
    return _run(database_status(dsn_of(alias), configuration().bus_settings))


class BusSchema(Operation):
    """Bring the schema of the bus to a version of its own numbered migrations."""

    reduces_to_sql = False
    #: So that what says how to go back is ours.
    reversible = True

    def __init__(self, version: int) -> None:
        self.version = version

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """How the operation is written in a migration."""
        return self.__class__.__qualname__, [self.version], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's picture of the models stays as it is: they are not managed."""

    def database_forwards(
        self,
        app_label: str,  # noqa: ARG002  (Django's signature)
        schema_editor: Any,
        from_state: Any,  # noqa: ARG002
        to_state: Any,  # noqa: ARG002
    ) -> None:
        """Run what is missing up to this version, on a connection of its own."""
        alias = schema_editor.connection.alias
        if getattr(schema_editor, "collect_sql", False):
            schema_editor.collected_sql.append("-- `commandbus db sql` prints these statements")
        elif alias == configuration().database:
            settings = configuration().bus_settings
            _run(migrate_database(dsn_of(alias), settings, upto=self.version))

    def database_backwards(
        self,
        app_label: str,  # noqa: ARG002
        schema_editor: Any,  # noqa: ARG002
        from_state: Any,  # noqa: ARG002
        to_state: Any,  # noqa: ARG002
    ) -> None:
        """There is no way back but to take everything away."""
        raise IrreversibleError(
            "migrations of the bus only go forward; to take it away with all its commands, run "
            "`manage.py migrate commandbus zero --fake`, then `manage.py commandbus db drop`"
        )

    def describe(self) -> str:
        """For `migrate --plan`."""
        return f"Bring the schema of the bus to version {self.version}"


def after_migrate(alias: str) -> None:
    """After `manage.py migrate`: functions that are not those of this package are loaded anew.

    And the domains that have handlers get their queues, so that no request has to make them.
    """
    found = configuration()
    if alias != found.database:
        return
    dsn, settings = dsn_of(alias), found.bus_settings
    status = _run(database_status(dsn, settings))
    if status.pending or not status.functions_current:
        _run(migrate_database(dsn, settings))
    from commandbus.django.discovery import domains

    if wanted := domains():
        _run(ensure_domains(dsn, settings, wanted))


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)

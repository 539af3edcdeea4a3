"""Django's connection of the thread that asks: where the verbs of the bus run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from django.db import connections, transaction

from commandbus.errors import InvalidSettingError


class DjangoSeat:
    """Implements commandbus.database.direct.Seat for one alias of DATABASES."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def wrapper(self) -> Any:
        """Django's object around the connection of this thread."""
        return connections[self.alias]

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """The open connection of this thread, for one statement."""
        wrapper = self.wrapper
        refuse_other_engines(wrapper)
        # For its checks: it connects, and refuses another thread, an event loop, a transaction
        # that must be rolled back, and a test that may not ask the database.
        with wrapper.cursor():
            yield wrapper.connection

    def transaction(self) -> AbstractContextManager[Any]:
        """`atomic`: a transaction, or a savepoint in the one that is open."""
        return cast("AbstractContextManager[Any]", transaction.atomic(using=self.alias))

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in `atomic`, or autocommit was turned off."""
        wrapper = self.wrapper
        return bool(wrapper.in_atomic_block or not wrapper.get_autocommit())

    @property
    def parameters(self) -> Mapping[str, Any]:
        """How Django opens connections of this alias."""
        return cast("Mapping[str, Any]", self.wrapper.get_connection_params())

    def ran(self, statement: str, seconds: float) -> None:
        """Show in `connection.queries` what ran; without its values, which have the payload."""
        wrapper = self.wrapper
        if wrapper.queries_logged:
            wrapper.queries_log.append({"sql": statement, "time": f"{seconds:.3f}"})

    def failed(self, error: Exception) -> None:  # noqa: ARG002  (Django asks the connection itself)
        """Let Django look, before it uses the connection again, whether it can be used."""
        self.wrapper.errors_occurred = True


def refuse_other_engines(wrapper: Any) -> None:
    """Raise unless this is PostgreSQL with the driver that the bus works with."""
    if wrapper.vendor != "postgresql":
        raise InvalidSettingError(
            f"the database {wrapper.alias!r} is {wrapper.vendor}; the bus needs PostgreSQL: name "
            "another alias in COMMANDBUS['DATABASE']"
        )
    if not is_psycopg3(wrapper):
        raise InvalidSettingError(
            "Django uses psycopg2 here; the bus needs psycopg 3: pip install 'psycopg[binary]'"
        )


def is_psycopg3(wrapper: Any) -> bool:
    """Whether Django works with psycopg 3."""
    return str(getattr(wrapper.Database, "__version__", "")).startswith("3")

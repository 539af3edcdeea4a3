"""The bus of a Django project: the verbs of BlockingBus, on Django's own connection.

There is no pool, no thread and no event loop: each verb is one statement, or a few, in the thread
of the caller. Inside `transaction.atomic()` it is part of that transaction.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async

from commandbus.blocking.bridge import Bridge
from commandbus.blocking.verbs import BlockingVerbs
from commandbus.bus import CommandBus
from commandbus.errors import InvalidOperationError
from commandbus.models import BatchCommand, SendReport
from commandbus.wiring import direct_store, finish

Result = TypeVar("Result")


class DirectBridge(Bridge):
    """Runs the coroutines of a bus at once, on Django's connection of this thread."""

    def __init__(self, alias: str | None) -> None:
        # Not super(): that one keeps a loop in a thread.
        self._alias = alias
        self._of_thread = threading.local()

    @property
    def alias(self) -> str:
        """The alias in DATABASES."""
        from commandbus.django.conf import configuration

        return self._alias or configuration().database

    def open(self) -> CommandBus:
        """The bus of this thread: nothing of it is shared, so that no call waits for another."""
        from commandbus.django.conf import configuration
        from commandbus.django.discovery import gathered
        from commandbus.django.seat import DjangoSeat

        found = configuration()
        alias = self._alias or found.database
        key = (alias, found.bus_settings)
        if getattr(self._of_thread, "key", None) != key:
            store = direct_store(DjangoSeat(alias), found.bus_settings, known_of(alias))
            # With the handlers of the project: they know which fields of payloads are secret.
            self._of_thread.bus = CommandBus(
                store=store, settings=found.bus_settings, handlers=gathered()
            )
            self._of_thread.key = key
        bus: CommandBus = self._of_thread.bus
        return bus

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a verb to its end."""
        return finish(work)

    def run_on(
        self, conn: Any, begin: Callable[[CommandBus], Coroutine[Any, Any, Result]]
    ) -> Result:
        """The same: the connection is Django's, and another one is refused."""
        del conn  # what begins has it too
        return finish(begin(self.open()))

    def find(self, name: str) -> Any:
        """A facet of the bus of this thread."""
        return attrgetter(name)(self.open())

    def iterate(self, stream: AsyncGenerator[Result]) -> Iterator[Result]:
        """An asynchronous stream, for a plain `for`."""
        try:
            while True:
                try:
                    yield finish(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            finish(stream.aclose())

    def close(self, seconds: float | None = None) -> None:
        """Nothing is open: the connection is Django's."""

    def forget(self) -> None:
        """Nothing of a parent process is here."""


class DjangoBus(BlockingVerbs):
    """The bus on one alias of DATABASES; threads may share it."""

    def __init__(self, alias: str | None = None) -> None:
        super().__init__(DirectBridge(alias))

    def using(self, alias: str) -> DjangoBus:
        """The same bus on the connection of another alias."""
        return DjangoBus(alias)

    async def asend(self, *command: Any, **options: Any) -> Any:
        """`send` for async code: in the thread that has Django's connection of this request."""
        return await _in_thread(self.send)(*command, **options)

    async def asend_many(
        self, domain: str, commands: Iterable[BatchCommand], **options: Any
    ) -> SendReport:
        """`send_many` for async code."""
        report: SendReport = await _in_thread(self.send_many)(domain, commands, **options)
        return report

    async def acancel(self, *command: Any, **options: Any) -> Any:
        """`cancel` for async code."""
        return await _in_thread(self.cancel)(*command, **options)

    def register_handler(self, *_: Any, **__: Any) -> NoReturn:
        """Handlers are found in the modules of the apps."""
        raise InvalidOperationError(
            "this bus takes no handlers; put them into a `Handlers` in the module `handlers` of an "
            "app, and run `manage.py commandbus worker`"
        )

    def handler(self, *_: Any, **__: Any) -> NoReturn:
        """Handlers are found in the modules of the apps."""
        self.register_handler()

    def run_worker(self, *_: Any, **__: Any) -> NoReturn:
        """Workers are processes of their own."""
        raise InvalidOperationError("this bus runs no worker; run `manage.py commandbus worker`")

    def call(self, *_: Any, **__: Any) -> NoReturn:
        """A reply would have to come while the command is not committed yet."""
        raise InvalidOperationError(
            "this bus does not wait for replies: in a transaction the command does not exist yet; "
            "send it with reply_to=INBOX, and look for its reply in a later request, or use a "
            "BlockingBus"
        )

    wait_reply = call


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    # Any other thread would have another connection, and with it another transaction.
    made: Callable[..., Any] = sync_to_async(function, thread_sensitive=True)
    return made


async def _next(stream: AsyncGenerator[Result]) -> Result:
    return await anext(stream)


_known: dict[str, set[str]] = {}


def known_of(alias: str) -> set[str]:
    """What this process knows to be in a database, by its alias and name."""
    from django.db import connections

    name = f"{alias} {connections[alias].settings_dict['NAME']}"
    return _known.setdefault(name, set())


def forget_known() -> None:
    """Look again what is there: a database was emptied."""
    for known in _known.values():
        known.clear()

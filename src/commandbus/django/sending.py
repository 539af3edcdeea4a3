"""The bus of a Django project: the verbs of BlockingBus, on Django's own connection.

There is no pool, no thread and no event loop: each verb is one statement, or a few, in the thread
of the caller. Inside `transaction.atomic()` it is part of that transaction.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async

from commandbus.blocking.bridge import Bridge
from commandbus.blocking.verbs import BlockingVerbs
from commandbus.bus import CommandBus
from commandbus.errors import InvalidOperationError
from commandbus.models import BatchCommand, SendReport
from commandbus.wiring import direct_store, finish

if TYPE_CHECKING:
    from commandbus.django.conf import Configuration

Result = TypeVar("Result")


class DirectBridge(Bridge):
    """Runs the coroutines of a bus at once, on Django's connection of this thread."""

    def __init__(self, alias: str | None) -> None:
        # Not super(): that one keeps a loop in a thread.
        self._alias = alias
        self._of_thread = threading.local()
        #: What the bus of each thread is made from, and for which setting and database.
        self._made: tuple[tuple[Configuration, str, str], CommandBus] | None = None

    @property
    def alias(self) -> str:
        """The alias in DATABASES."""
        from commandbus.django.conf import configuration

        return self._alias or configuration().database

    def open(self) -> CommandBus:
        """The bus of this thread. Threads share what never changes, such as the handlers, and not
        the sends: none may wait for another.
        """
        from django.db import connections

        from commandbus.django.conf import configuration

        found = configuration()
        alias = self._alias or found.database
        key = (found, alias, connections[alias].settings_dict["NAME"])
        made = self._made
        if made is None or made[0][0] is not found or made[0][1:] != key[1:]:
            made = self._made = (key, _bus_of(found, alias))
        of_thread = self._of_thread
        if getattr(of_thread, "made", None) is not made:
            of_thread.bus, of_thread.made = made[1]._on_store(made[1]._store), made
        bus: CommandBus = of_thread.bus
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


def _bus_of(found: Configuration, alias: str) -> CommandBus:
    from commandbus.django.discovery import gathered
    from commandbus.django.seat import DjangoSeat

    settings = found.bus_settings
    store = direct_store(DjangoSeat(alias), settings, known_of(alias))
    # With the handlers of the project: they know which fields of payloads are secret.
    return CommandBus(store=store, settings=settings, handlers=gathered())


_known: dict[str, dict[str, float]] = {}


def known_of(alias: str) -> dict[str, float]:
    """What this process knows to be in a database, by its alias and name."""
    from django.db import connections

    name = f"{alias} {connections[alias].settings_dict['NAME']}"
    return _known.setdefault(name, {})


def forget_known() -> None:
    """Look again what is there: a database was emptied."""
    for known in _known.values():
        known.clear()

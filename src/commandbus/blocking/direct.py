"""The direct path: a send or cancel on the caller's own connection, in the caller's thread.

There the loop of the bus would only add a way to another thread and back. So a process that does
nothing else never has a loop, nor a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from commandbus.bus import CommandBus
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.database.direct_calls import Apart, CallerStore
    from commandbus.database.store import Store

Result = TypeVar("Result")
#: Makes the bus of a process that has opened none.
Build = Callable[["Store", Settings], CommandBus]


class DirectCalls:
    """Runs verbs to their end on connections that callers name; threads may share it."""

    def __init__(self, build: Build, settings: Settings | None) -> None:
        self._build = build
        self._settings = settings
        self._found: _Found | None = None

    def takes(self, conn: Any, opened: CommandBus | None) -> bool:
        """Whether a call with this connection can do without the loop."""
        from commandbus.wiring import is_blocking  # noqa: PLC0415  (loads the driver)

        # A bus that measures counts its own sends.
        return is_blocking(conn) and (opened is None or opened._monitor is None)

    def run(
        self,
        conn: Any,
        begin: Callable[[CommandBus], Coroutine[Any, Any, Result]],
        opened: CommandBus | None,
        apart: Apart,
    ) -> Result:
        """Run a verb. `opened` is the bus on the loop, if there is one: its handlers are used."""
        from commandbus.wiring import finish  # noqa: PLC0415  (loads the driver)

        found = self._found
        if found is None or found.opened is not opened:
            found = self._found = self._find(opened)
        with found.store.gateway.using(conn, apart):
            return finish(begin(found.bus))

    def _find(self, opened: CommandBus | None) -> _Found:
        from commandbus.wiring import caller_store  # noqa: PLC0415  (loads the driver)

        settings = self._settings or Settings.from_env()
        store = caller_store(settings) if self._found is None else self._found.store
        bus = self._build(store, settings) if opened is None else opened._on_store(store)
        return _Found(opened, store, bus)


class _Found(NamedTuple):
    """The bus on connections of callers, and for which open bus it was made."""

    opened: CommandBus | None
    store: CallerStore
    bus: CommandBus

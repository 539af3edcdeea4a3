"""BlockingBus: every verb of CommandBus and of its facets, as a plain method that waits.

The bus lives on an event loop in a thread of its own. The verbs are in verbs.py and facets.py,
which `make blocking` writes from those of CommandBus.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Self

from commandbus.blocking.bridge import Bridge, Connect
from commandbus.blocking.direct import DirectCalls
from commandbus.blocking.verbs import BlockingVerbs
from commandbus.bus import CommandBus
from commandbus.handlers.router import Handlers
from commandbus.middleware.base import Middleware
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from commandbus.database.store import Store


class BlockingBus(BlockingVerbs):
    """A bus whose verbs wait. Make one with `BlockingBus.connect`; threads may share it.

    It opens with the first call, or where a `with` block begins, and closes at the end of the
    block, with `close`, or at the end of the process. A forked process opens its own. `send`,
    `send_many` and `cancel` on a connection of the caller that is not asynchronous open nothing.
    """

    def __init__(self, connect: Connect, direct: DirectCalls) -> None:
        super().__init__(Bridge(connect, direct))

    @classmethod
    def connect(
        cls,
        dsn: str | None = None,
        *,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
        data_dir: Path | None = None,
        handlers: Handlers | None = None,
        middleware: Sequence[Middleware] = (),
        wait_seconds: float = 0.0,
    ) -> Self:
        """A bus on the database that `CommandBus.connect` would take.

        While no server accepts writes, opening it waits for one, for `wait_seconds`.
        """

        def connect() -> AbstractAsyncContextManager[CommandBus]:
            return CommandBus.connect(
                dsn, settings=settings, retry_policy=retry_policy, data_dir=data_dir,
                handlers=handlers, middleware=middleware, wait_seconds=wait_seconds,
            )  # fmt: skip

        def build(store: Store, found: Settings) -> CommandBus:
            return CommandBus(
                store=store, settings=found, retry_policy=retry_policy, handlers=handlers,
                middleware=middleware,
            )  # fmt: skip

        return cls(connect, DirectCalls(build, settings))

    def __enter__(self) -> Self:
        """Open the bus now, so that a wrong address shows here."""
        self._bridge.open()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the bus."""
        self.close()

    def close(self) -> None:
        """Stop the workers of this bus, close its connections and end its thread."""
        self._bridge.close()

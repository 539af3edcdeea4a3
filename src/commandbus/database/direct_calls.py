"""Direct calls: sends and cancels on a connection that the caller names, in its own thread.

For callers that have no event loop. What must not happen in their transaction, because its locks
would last as long as that does, is done apart: by somebody who has connections of his own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString, cast

from commandbus.database import encoding
from commandbus.database.connections import Row, Statement
from commandbus.database.direct import PoollessStore
from commandbus.database.foreign import run_on_foreign_blocking
from commandbus.database.gateway import LEVELS_SECONDS, Gateway
from commandbus.database.migrations import migrations
from commandbus.database.postgres import DECLARE_SECRETS
from commandbus.database.sqlstate import translated
from commandbus.settings import Settings

#: Does something with the gateway of a pool, and waits for it.
Apart = Callable[[Callable[[Gateway], Coroutine[Any, Any, None]]], None]

_IS_READABLE: LiteralString = (
    "select coalesce(has_table_privilege("
    "cast(to_regclass(quote_ident(%s) || '.command_bus_migration') as oid), 'select'), false)"
)
_APPLIED: LiteralString = "select version, is_breaking from {schema}.command_bus_migration"
_SCOPE: LiteralString = (
    "select value from {schema}.command_bus_setting where name = 'command_id_scope'"
)
_KNOWS: LiteralString = "select {schema}.knows_domain(%s)"


class CallerGateway(Gateway):
    """Runs statements at once, on the connection that the call of this thread has named."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(cast("Any", None), settings)  # there is no pool
        self._of_thread = threading.local()
        self._is_checked = False

    @contextmanager
    def using(self, conn: Any, apart: Apart) -> Iterator[None]:
        """Around a call: the connection that it has named, and who does what must be apart."""
        before = getattr(self._of_thread, "call", None)  # a generator of commands may send too
        self._of_thread.call = conn, apart
        try:
            yield
        finally:
            self._of_thread.call = before

    async def _run(self, text: LiteralString, params: Row, domain: str, conn: Any) -> list[Row]:
        with translated(domain):
            own = self._of_thread.call[0] if conn is None else conn
            return await self.run_on_foreign(own, self.statement(text), params)

    async def run_on_foreign(self, conn: Any, statement: Statement, params: Row) -> list[Row]:
        """Run a statement in the caller's transaction; a connection without one is refused."""
        may_autocommit = self.settings.allow_autocommit_conn
        return run_on_foreign_blocking(conn, statement, params, may_autocommit=may_autocommit)

    def apart(self, work: Callable[[Gateway], Coroutine[Any, Any, None]]) -> None:
        """Do something on a connection that is not the caller's, and wait for it."""
        self._of_thread.call[1](work)

    async def check(self) -> None:
        """Raise if the database is not one that this version can work with; set up an empty one.

        Looks first, with statements that cannot fail: an error would end the transaction.
        """
        if not self._is_checked:
            if not await self._fits():
                self.apart(lambda pooled: pooled.check())
            self._is_checked = True

    async def _fits(self) -> bool:
        if not await self.value(_IS_READABLE, (self.settings.schema,)):
            return False
        applied: dict[int, bool] = dict(await self.rows(_APPLIED))
        needed = {migration.version for migration in migrations()}
        is_newer = any(applied[version] for version in applied.keys() - needed)
        scope = await self.value(_SCOPE)
        return needed <= applied.keys() and not is_newer and scope == self.settings.command_id_scope

    async def ensure_domain(self, domain: str) -> None:
        """Create the queues of a domain if they are missing, never in the caller's transaction."""
        if domain not in self._known_domains:
            await self.check()
            if not await self.value(_KNOWS, (domain,), domain=domain):
                self.apart(lambda pooled: pooled.ensure_domain(domain))
            self._known_domains.add(domain)

    async def ensure_levels(self, domain: str) -> None:
        """Say that a domain uses levels, never in the caller's transaction."""
        if self._leveled_until.get(domain, 0.0) < time.monotonic():
            self.apart(lambda pooled: pooled.ensure_levels(domain))
            self._leveled_until[domain] = time.monotonic() + LEVELS_SECONDS

    async def ensure_keys(self, domain: str) -> None:
        """Say that a domain uses ordering keys, never in the caller's transaction."""
        if domain not in self._keyed_domains:
            self.apart(lambda pooled: pooled.ensure_keys(domain))
            self._keyed_domains.add(domain)


class CallerStore(PoollessStore):
    """The store on connections of callers: what sends and cancels."""

    gateway: CallerGateway

    def __init__(self, settings: Settings) -> None:
        self.gateway = CallerGateway(settings)

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        """Remember which keys must not be shown, never in the caller's transaction."""
        document = encoding.secrets(keys)

        async def declare(pooled: Gateway) -> None:
            await pooled.rows(DECLARE_SECRETS, (domain, document))

        self.gateway.apart(declare)

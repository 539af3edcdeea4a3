"""Legacy: what is not moved to its idea yet. Each base class goes away with its idea's move."""

from __future__ import annotations

from commandbus.database.connections import Row, Statement, run
from commandbus.database.gateway import Gateway
from commandbus.database.sqlstate import translated
from commandbus.store.postgres_bulk import PostgresBulk
from commandbus.store.postgres_dispatch import PostgresDispatch
from commandbus.store.postgres_loading import PostgresLoading
from commandbus.store.statements import STATEMENTS


class Legacy(
    PostgresLoading,
    PostgresDispatch,
    PostgresBulk,
):
    """Part of PostgresStore."""

    gateway: Gateway

    def _set_up_legacy(self) -> None:
        self._settings = self.gateway.settings
        self._sql = {
            name: Statement(text, self._settings.schema) for name, text in STATEMENTS.items()
        }

    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]:
        with translated(domain):
            async with self.gateway.pool.connection() as conn:
                return await run(conn, self._sql[verb], params)

"""Belonging: whether a connection of the application leads to the database of a gateway.

Where there are several databases of ours, a `conn=` of another one would put the command beside
rows that it has no commit in common with. Names and addresses prove nothing: a pooler, a copy of a
server or a second address may stand between. A lock does: it is taken here, and must be held there.
Asked once for each connection of a driver, never again for a command.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, LiteralString
from weakref import WeakSet

from commandbus.database.foreign import driver_beneath, run_on_foreign
from commandbus.errors import InvalidInputError

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

# Locks of this kind belong to one database, need no table and no right, and pass every pooler.
_LOCK: LiteralString = "select pg_catalog.pg_advisory_xact_lock(cast(%s as bigint))"
_LOOK: LiteralString = "select pg_catalog.pg_try_advisory_xact_lock(cast(%s as bigint))"


class Belonging:
    """Refuses connections that lead elsewhere; remembers those that do not."""

    def __init__(self, gateway: Gateway, what: str) -> None:
        self._gateway = gateway
        self._what = what
        self._known: WeakSet[Any] = WeakSet()

    async def check(self, conn: Any) -> None:
        """Raise InvalidInputError unless this connection leads to the database of the gateway."""
        driver = await driver_beneath(conn)
        if driver in self._known:
            return
        if await self._is_elsewhere(conn):
            raise InvalidInputError(
                f"conn leads to another database than that of {self._what}; nothing was written, "
                "because one commit cannot be for both. Open conn on the database of the domain, "
                "or leave it out and send after your commit"
            )
        with suppress(TypeError):  # of a driver whose connections cannot be remembered
            self._known.add(driver)

    async def _is_elsewhere(self, conn: Any) -> bool:
        gateway = self._gateway
        key = secrets.randbits(62)
        async with gateway.transaction() as session:
            await session.rows(_LOCK, (key,))
            may_autocommit = gateway.settings.allow_autocommit_conn
            look = gateway.statement(_LOOK)
            rows = await run_on_foreign(conn, look, (key,), may_autocommit=may_autocommit)
            # Were our own connection cut meanwhile, the lock would be gone, and prove nothing.
            await session.rows("select 1")
        return bool(rows[0][0])

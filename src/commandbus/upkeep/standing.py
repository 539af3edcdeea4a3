"""Standing: what the database is, and what was done to its schema when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.settings import Settings

_STANDING: LiteralString = (
    "select current_setting('server_version'), current_database(), current_user,"
    " clock_timestamp(), m.version, m.name, m.applied_at"
    " from {schema}.command_bus_migration m order by m.version desc"
)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A migration that was run."""

    version: int
    name: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """What the server says of itself, and its migrations, the newest first."""

    server_version: str
    database: str
    role: str
    now: datetime
    migrations: tuple[AppliedMigration, ...]


class Standings:
    """Reads how a database stands."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def settings(self) -> Settings:
        """The settings of the bus."""
        return self._store.gateway.settings

    async def read(self) -> Standing:
        """One query."""
        rows = await self._store.gateway.rows(_STANDING)
        version, database, role, now = rows[0][:4]
        done = tuple(AppliedMigration(*row[4:]) for row in rows)
        return Standing(version, database, role, now, done)

"""The extender: what the lease thread of a worker sends, on a blocking connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from commandbus.database import encoding
from commandbus.database.connections import Row, Statement, run_blocking
from commandbus.database.deadlines import Limit
from commandbus.database.model import Lease, Said
from commandbus.database.own_connections import OurBlockingConnection
from commandbus.database.sessions import prepare_blocking

_KEEP: LiteralString = (
    "select command_id, is_lost from {schema}.keep_leases(%s, cast(%s as jsonb), %s)"
)
#: Seconds between the end of a statement by the server and its end by us.
SPARE_SECONDS = 1.0
RECORD_PROGRESS: LiteralString = "select {schema}.record_progress(%s, cast(%s as jsonb))"


class PostgresExtender:
    """The LeaseExtender: a blocking connection, reopened when lost."""

    def __init__(
        self,
        conninfo: str,
        kwargs: dict[str, Any],
        statement: Callable[[LiteralString], Statement],
        timeout_seconds: float,
    ) -> None:
        self._conninfo = conninfo
        self._kwargs = kwargs
        self._timeout_seconds = timeout_seconds
        self._keep = statement(_KEEP)
        self._record_progress = statement(RECORD_PROGRESS)
        self._conn: OurBlockingConnection | None = None

    def extend(
        self, domain: str, leases: Sequence[Lease], seconds: int
    ) -> tuple[set[UUID], set[UUID]]:
        rows = self._run(self._keep, (domain, encoding.leases(leases), seconds))
        return {row[0] for row in rows if row[1]}, {row[0] for row in rows if not row[1]}

    def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        self._run(self._record_progress, (domain, encoding.progress(said)))

    def _run(self, statement: Statement, params: Row) -> list[Row]:
        if self._conn is None or self._conn.broken:
            self.close()
            self._conn = OurBlockingConnection.connect(self._conninfo, **self._kwargs)
            # A little longer than the server has, and less than a lease.
            self._conn.limit = Limit(self._timeout_seconds + SPARE_SECONDS)
            prepare_blocking(self._conn, self._timeout_seconds)
        try:
            return run_blocking(self._conn, statement, params)
        except psycopg.errors.ReadOnlySqlTransaction:
            self.close()  # the next one is to a server that accepts writes
            raise

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

"""The server that all are measured on, fresh databases, and what the work costs it."""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.link import stat_times
from commandbus.embedded import EmbeddedPostgres

#: On top of the embedded server's own settings, for every system alike: no checkpoint in the
#: middle of a measurement, and statements can be counted in the measurement that asks for it.
SETTINGS = {
    "checkpoint_timeout": "30min",
    "max_wal_size": "8GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_compression",
    "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum_naptime", "max_connections",
    "jit",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """Counters of the server at one moment."""

    cpu_seconds: float
    wal_bytes: int
    statements: int
    updates: int
    hot_updates: int
    deletes: int


class Server:
    """An embedded PostgreSQL of our own, with a database for each measurement."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._admin = psycopg.connect(postgres.superuser_dsn_for("postgres"), autocommit=True)
        self._admin.execute("create extension if not exists pg_stat_statements")
        row = self._admin.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        self._postmaster = parent_of(row[0])
        for (name,) in self._admin.execute(
            "select datname from pg_database where datname like 'bench\\_%'"
        ).fetchall():
            self._drop(name)

    @classmethod
    @contextmanager
    def opened(cls, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
        """Start it, or join it; with more settings than the usual ones, if these are given."""
        folder = Path(tempfile.gettempdir()) / f"commandbus-benchmarks-{os.getuid()}"
        with EmbeddedPostgres(folder, settings={**SETTINGS, **(settings or {})}) as postgres:
            server = cls(postgres)
            try:
                yield server
            finally:
                server._admin.close()

    @contextmanager
    def database(
        self, template: str | None = None, *, counts_statements: bool = False
    ) -> Iterator[str]:
        """The address of a fresh database, or of a copy of another."""
        conninfo = self.create(template)
        name = str(conninfo_to_dict(conninfo)["dbname"])
        try:
            if counts_statements:
                self._admin.execute(
                    sql.SQL("alter database {} set pg_stat_statements.track = 'top'").format(
                        sql.Identifier(name)
                    )
                )
            yield conninfo
        finally:
            self._drop(name)

    def create(self, template: str | None = None) -> str:
        """A database that stays until the server is asked again, or started anew."""
        name = f"bench_{secrets.token_hex(4)}"
        owner = str(conninfo_to_dict(self._postgres.dsn)["user"])
        copied: sql.Composable = sql.SQL("")
        if template is not None:
            source = str(conninfo_to_dict(template)["dbname"])
            copied = sql.SQL(" template {} strategy file_copy").format(sql.Identifier(source))
        self._admin.execute(
            sql.SQL("create database {} owner {}").format(
                sql.Identifier(name), sql.Identifier(owner)
            )
            + copied
        )
        # Here, so that none falls into the measurement, and every measurement has the same
        # distance to the last one (whole pages go to the log after each).
        self.checkpoint()
        return make_conninfo(self._postgres.dsn, dbname=name)

    def drop(self, conninfo: str) -> None:
        """Remove a database that `create` made."""
        self._drop(str(conninfo_to_dict(conninfo)["dbname"]))

    def _drop(self, name: str) -> None:
        self._admin.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )

    def read(self, conninfo: str) -> Reading:
        """The counters now; those of tables are of this database."""
        statements = self._one(
            "select coalesce(sum(calls), 0) from pg_stat_statements s join pg_database d"
            " on d.oid = s.dbid where d.datname = %s",
            conninfo_to_dict(conninfo)["dbname"],
        )
        with psycopg.connect(conninfo) as conn:
            row = conn.execute(
                "select coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0),"
                " coalesce(sum(n_tup_del), 0) from pg_stat_user_tables"
            ).fetchone()
        assert row is not None
        return Reading(
            self.cpu_seconds(), self.wal_bytes(), int(statements), *(int(n) for n in row)
        )

    def _one(self, query: str, *arguments: Any) -> Any:
        row = self._admin.execute(query, arguments).fetchone()
        assert row is not None
        return row[0]

    def checkpoint(self) -> None:
        """Write everything out."""
        self._admin.execute("checkpoint")

    def superuser_dsn(self, database: str) -> str:
        """The address of a database for who may do everything there."""
        return self._postgres.superuser_dsn_for(database)

    def superuser_dsn_of(self, conninfo: str) -> str:
        """The same of a database that `create` made."""
        return self.superuser_dsn(str(conninfo_to_dict(conninfo)["dbname"]))

    def wal_position(self) -> str:
        """Where the write-ahead log stands, as the server writes it."""
        return str(self._one("select pg_current_wal_lsn()::text"))

    def wal_bytes(self) -> int:
        """Where the write-ahead log stands."""
        return int(self._one("select pg_current_wal_lsn() - '0/0'"))

    def cpu_seconds(self) -> float:
        """CPU time of all server processes, those that have ended included."""
        own, ended = stat_times(self._postmaster)
        total = own + ended
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children")
        for pid in children.read_text().split():
            try:
                total += stat_times(int(pid))[0]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended: the next reading has it with the postmaster
        return total

    def about(self) -> dict[str, Any]:
        """What a reader needs to know of machine and server."""
        server = {name: self._one("select current_setting(%s)", name) for name in SHOWN}
        return {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {processor()}, {os.cpu_count()} cores, "
            f"{memory_gigabytes():.0f} GB",
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "server": server,
        }


def parent_of(pid: int) -> int:
    """The postmaster of a backend."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    raise LookupError(pid)


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def memory_gigabytes() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3

"""The PostgreSQL server of a test run, and databases on it that are cloned from a template."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from commandbus.embedded import EmbeddedPostgres
from commandbus.errors import InvalidSettingError
from commandbus.settings import Settings
from commandbus.wiring import find_dsn, migrate_database

#: The variable that names a server to use instead of an embedded one. Its user must be allowed to
#: create databases.
TEST_DSN = "COMMANDBUS_TEST_DSN"
#: The data is kept in memory where so much of it is free, in bytes: there a clone is quickest.
MEMORY_WANTED = 2 * 1024**3
#: Advisory locks of the processes of a run: one builds the base, and the last drops it.
BUILDING, USING = 7_365_001, 7_365_002

EMBEDDED_SETTINGS = {
    # A crash of the machine may cost these databases; a killed process may not.
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "300",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """The server of a test run."""

    #: How to connect to a database that is there anyhow.
    address: str
    #: The same in all processes of a run, and in no other run.
    run_id: str

    def dsn_for(self, database: str) -> str:
        """How to connect to a database on it."""
        return make_conninfo(self.address, dbname=database)

    @contextmanager
    def clone(self, template: str, prefix: str = "commandbus_test") -> Iterator[str]:
        """A new database like the template, dropped at the end with whatever is connected to it.

        Nobody may be connected to the template meanwhile.
        """
        name = f"{prefix}_{secrets.token_hex(6)}"
        with self._admin() as admin:
            # Copied as files, not logged block by block, which takes five times as long.
            _run(admin, "create database {} template {} strategy file_copy", name, template)
            try:
                yield name
            finally:
                _drop(admin, name)

    @contextmanager
    def template(self) -> Iterator[str]:
        """A migrated database for the process that asks: nobody else is connected to it."""
        base = f"commandbus_base_{self.run_id}"
        with self._admin() as admin:
            key = int(self.run_id[:7], 16)
            admin.execute("select pg_advisory_lock_shared(%s, %s)", (USING, key))
            self._build(admin, base, key)
            with self.clone(base, "commandbus_template") as name:
                yield name
            admin.execute("select pg_advisory_unlock_shared(%s, %s)", (USING, key))
            row = admin.execute("select pg_try_advisory_lock(%s, %s)", (USING, key)).fetchone()
            if row is not None and row[0]:  # nobody else uses it; the next one builds it anew
                _drop(admin, base)

    def _build(self, admin: psycopg.Connection, base: str, key: int) -> None:
        admin.execute("select pg_advisory_lock(%s, %s)", (BUILDING, key))
        found = admin.execute("select from pg_database where datname = %s", (base,))
        if not found.rowcount:
            # Under its own name only once it is complete.
            begun = f"{base}_new"
            _run(admin, "drop database if exists {}", begun)
            _run(admin, "create database {}", begun)
            asyncio.run(migrate_database(self.dsn_for(begun), Settings()))
            _run(admin, "alter database {} rename to {}", begun, base)
        admin.execute("select pg_advisory_unlock(%s, %s)", (BUILDING, key))

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.address, autocommit=True)


def _run(admin: psycopg.Connection, statement: LiteralString, *names: str) -> None:
    admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _drop(admin: psycopg.Connection, name: str) -> None:
    try:
        _run(admin, "drop database if exists {} with (force)", name)
    except psycopg.errors.InsufficientPrivilege:
        # Force may not end an autovacuum worker, which a plain drop sends away.
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = %s and usename = current_user",
            (name,),
        )
        _run(admin, "drop database if exists {}", name)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """That of COMMANDBUS_TEST_DSN, or an embedded one for all processes of the run."""
    run_id = _run_id()
    if given := os.environ.get(TEST_DSN):
        address = find_dsn(given)
        assert address is not None
        try:
            psycopg.connect(address).close()
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            raise InvalidSettingError(
                f"{TEST_DSN} names a server that cannot be used: {said[:300]}; correct it, or "
                "unset it for an embedded server"
            ) from None
        yield PostgresServer(address, run_id)
        return
    name = f"commandbus-pytest-{run_id}"
    lock = Path(tempfile.gettempdir()) / f"{name}.lock"
    with _locked(lock):
        folder = _data_folder(name)
        embedded = EmbeddedPostgres(folder, settings=EMBEDDED_SETTINGS)
        embedded.start()
    try:
        yield PostgresServer(embedded.dsn, run_id)
    finally:
        with _locked(lock):
            embedded.stop()
            if not (folder / "cluster" / "postmaster.pid").exists():  # nobody else uses it
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)


def _run_id() -> str:
    """Of this run of pytest, the same in all its processes: twelve hexadecimal digits.

    Those who give the run an id (`--testrunuid`) may take any text; files and databases get its
    hash for a name.
    """
    given = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    return hashlib.sha256(given.encode()).hexdigest()[:12] if given else secrets.token_hex(6)


def _data_folder(name: str) -> Path:
    """In memory if there is room. Not in a folder of pytest: as root the server runs as another
    account, which must get there.
    """
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108  (a memory disk)
    for place in (memory, disk):
        if (place / name).exists():
            return place / name  # where the first process of the run put it
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_WANTED
    return (memory if has_room else disk) / name


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process of the run at a time: none may start the server while another removes it."""
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The one before us may have removed the file while we waited.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return

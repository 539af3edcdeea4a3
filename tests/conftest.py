"""One embedded server for a test run, one template database, a clone for each test."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from commandbus import CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.keys import FOLDER_VARIABLE
from commandbus.wiring import migrate_database
from tests.canaries import assert_log_is_clean

#: A test may wait so long for a condition before it fails, in seconds; it never waits so long
#: for something that does happen.
PATIENCE = 30.0

#: The data of a run is kept in memory where so much of it is free, in bytes.
MEMORY_WANTED = 4 * 1024**3

#: The variable that names a server to use instead of an embedded one.
TEST_DSN = "COMMANDBUS_TEST_DSN"
TEMPLATE = "commandbus_template"

#: A crash of the machine may cost these databases; kills of the server may not.
SERVER_SETTINGS = {
    "fsync": "off",
    # A clone has two checkpoints, and after each one every page would be logged whole.
    "full_page_writes": "off",
    "max_connections": "300",
    "autovacuum": "off",
    "max_prepared_transactions": "10",
}
if "COMMANDBUS_PG_BIN" not in os.environ:  # PostgreSQL 15 does not know it
    # A test opens several connections; the password was not chosen by a person, so nothing is lost.
    SERVER_SETTINGS["scram_iterations"] = "1"

POSTGRES_FIXTURES = {"server", "template", "dsn", "empty_dsn", "conn", "pool", "bus"}


def pytest_configure(config: pytest.Config) -> None:
    """Keys of a run are its own: none is made in the home folder of whoever runs the tests."""
    if not hasattr(config, "workerinput"):  # the processes of one run share it
        folder = tempfile.mkdtemp(prefix="commandbus-keys-")
        os.environ[FOLDER_VARIABLE] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in the background of a shell, and so would it be in all that tests start:
        # Django's server, for one, would not end by Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Programs that tests start would otherwise compile all that they import, each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay until the end: no collection looks at them again.

    Without this a fifth of the time of tests that build much, such as an app, is the collector's.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a database is marked `postgres`; acceptance tests are `e2e`."""
    for item in items:
        if POSTGRES_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)
        if "acceptance" in item.path.parts:
            item.add_marker(pytest.mark.e2e)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A server that goes on after the run keeps no template: the next run may be of other code."""
    address = os.environ.get(TEST_DSN)
    if address is None or hasattr(session.config, "workerinput"):
        return
    with psycopg.connect(make_conninfo(address, dbname="postgres"), autocommit=True) as admin:
        name = sql.Identifier(TEMPLATE)
        if admin.execute("select from pg_database where datname = %s", (TEMPLATE,)).rowcount:
            admin.execute(sql.SQL("alter database {} is_template false").format(name))
            admin.execute(sql.SQL("drop database {} with (force)").format(name))


@dataclass(frozen=True)
class Server:
    """The server of this test run."""

    address: str

    def dsn(self, database: str) -> str:
        return make_conninfo(self.address, dbname=database)

    def admin(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn("postgres"), autocommit=True)


def data_folder(run_id: str) -> Path:
    """Where the server of a run keeps its data: in memory if there is room.

    There a clone takes a tenth of the time. Not under tmp_path: as root the server runs as another
    account, which must get there.
    """
    name = f"commandbus-tests-{run_id[:16]}"
    memory = Path("/dev/shm")
    if not memory.is_dir():
        return Path(tempfile.gettempdir()) / name
    # Where the first process of a run put it, the others look for it.
    is_begun = (memory / name).exists()
    has_room = shutil.disk_usage(memory).free > MEMORY_WANTED
    return (memory if is_begun or has_room else Path(tempfile.gettempdir())) / name


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """All processes of a run (xdist) share one data folder, and so one server.

    COMMANDBUS_TEST_DSN names another one, for example that of deploy/compose.yaml.
    """
    if address := os.environ.get(TEST_DSN):
        yield Server(address)
        return
    folder = data_folder(os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(8)))
    embedded = EmbeddedPostgres(
        folder,
        settings=SERVER_SETTINGS,
    )
    embedded.start()
    yield Server(embedded.dsn)
    assert_log_is_clean(folder / "server.log")
    embedded.stop()
    if not (folder / "cluster" / "postmaster.pid").exists():  # nobody else uses it
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """A database with everything installed, made once per run."""
    name = TEMPLATE
    with server.admin() as admin:
        # Session-level, in a database that is not cloned: the first process builds, others wait.
        admin.execute("select pg_advisory_lock(1)")
        row = admin.execute(
            "select datistemplate from pg_database where datname = %s", (name,)
        ).fetchone()
        if row is None or not row[0]:
            admin.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            asyncio.run(migrate_database(server.dsn(name), Settings()))
            admin.execute(
                sql.SQL("alter database {} is_template true").format(sql.Identifier(name))
            )
        admin.execute("select pg_advisory_unlock(1)")
    return name


def _new_database(server: Server, template: str | None) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    with server.admin() as admin:
        source = sql.Identifier(template or "template1")
        admin.execute(
            # Copied, not logged block by block, which takes five times as long.
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), source
            )
        )
        yield server.dsn(name)
        # Not `with (force)`: it may not end an autovacuum worker, which a plain drop sends away.
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = %s and usename = current_user",
            (name,),
        )
        admin.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """A fresh database with the schema."""
    yield from _new_database(server, template)


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """A fresh database with nothing in it."""
    yield from _new_database(server, None)


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """An autocommit connection to the test's database, to look and to interfere."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[AsyncConnectionPool]:
    """A pool as an application would own it: not autocommit."""
    async with AsyncConnectionPool(dsn, min_size=1, max_size=10, open=False) as opened:
        yield opened


@pytest.fixture
async def bus(dsn: str) -> AsyncIterator[CommandBus]:
    """A bus on the test's database."""
    async with CommandBus.connect(dsn) as connected:
        yield connected

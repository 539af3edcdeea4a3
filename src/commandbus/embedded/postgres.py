"""`EmbeddedPostgres`: one private server per data folder, shared by all who use the folder.

Adopt or start is decided under an exclusive lock (see `decision`), and whatever is decided, a
connection with our password must succeed before a DSN is handed out.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from psycopg.conninfo import make_conninfo

from commandbus import addresses
from commandbus.embedded import cluster, server, sockets
from commandbus.embedded.account import choose_account
from commandbus.embedded.binaries import Binaries, binaries_for, find_binaries
from commandbus.embedded.decision import Decision, decide
from commandbus.embedded.folder import DataFolder, FileLock, ServerRecord, home_directory
from commandbus.embedded.processes import Deadline, Process, find_postmaster, is_alive
from commandbus.errors import EmbeddedServerError, InvalidSettingError

log = logging.getLogger(__name__)

#: Without TCP the port is only part of the socket's name.
SOCKET_PORT = 5432
HIGHEST_PORT = 65535
#: How long `stop` waits for another process that is starting or stopping the server.
STOP_TURN_SECONDS = 60.0


class EmbeddedPostgres:
    """A PostgreSQL server of our own, for development and for a single node.

    Several processes (and several instances in one process) may use the same data folder:
    they share one server, and the last one to leave stops it. A process that is killed leaves
    the server running, and the next one adopts it.

    All methods block; from asyncio call them through `asyncio.to_thread`. A process forked
    after `start` may use the DSN but is no user of its own: its `stop` does nothing.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        tcp_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 60.0,
        binaries: Path | str | None = None,
        stop_on_exit: bool = True,
    ) -> None:
        """Check the arguments; nothing is touched before `start`.

        Args:
            data_dir: an empty or new folder, or one that an earlier run made. By default
                `pg<major>` in the state folder of commandbus (see `COMMANDBUS_HOME`).
            tcp_port: listen on 127.0.0.1 too, and hand out a DSN for it.
            settings: more lines for postgresql.conf; they win over the defaults.
            start_timeout_seconds: for initdb, start and crash recovery together.
            binaries: the bin folder of a PostgreSQL 15 or newer.
            stop_on_exit: leave the server when the interpreter ends, as `stop` does.
        """
        if tcp_port is not None and not 0 < tcp_port <= HIGHEST_PORT:
            message = f"tcp_port is {tcp_port}; give a port from 1 to {HIGHEST_PORT}, or None"
            raise InvalidSettingError(message)
        if not start_timeout_seconds > 0:
            message = f"start_timeout_seconds is {start_timeout_seconds}; give more than 0"
            raise InvalidSettingError(message)
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._tcp_port = tcp_port
        self._settings = cluster.check_settings(settings or {})
        self._start_timeout_seconds = start_timeout_seconds
        self._binaries = None if binaries is None else Path(binaries)
        self._stop_on_exit = stop_on_exit
        self._mutex = threading.RLock()
        self._use: _Use | None = None

    def start(self) -> str:
        """Start the server, or join the one that runs; returns the DSN of the application."""
        with self._mutex:
            if not self.is_running:
                self._start()
            return self.dsn

    def stop(self) -> None:
        """Leave the server; the last user stops it. Does nothing if not started."""
        with self._mutex:
            use, self._use = self._use, None
            atexit.unregister(self._stop_at_exit)
            if use is not None and use.owner_pid == os.getpid():
                use.leave()

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the server."""
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the server that `start` handed out is alive."""
        return self._use is not None and is_alive(self._use.process)

    @property
    def dsn(self) -> str:
        """How to connect to the database `commandbus`."""
        return self.dsn_for(cluster.APPLICATION_DATABASE)

    @property
    def url(self) -> str:
        """The same as a URL, `postgresql://user:password@/commandbus?host=…`."""
        return addresses.url(self._parts(cluster.APPLICATION_USER, cluster.APPLICATION_DATABASE))

    def sqlalchemy_url(self, driver: str = "psycopg") -> str:
        """The same as SQLAlchemy takes it: `create_engine(server.sqlalchemy_url("asyncpg"))`."""
        parts = self._parts(cluster.APPLICATION_USER, cluster.APPLICATION_DATABASE)
        return addresses.sqlalchemy_url(parts, driver)

    def django(self) -> dict[str, Any]:
        """The same as an entry of Django's DATABASES."""
        parts = self._parts(cluster.APPLICATION_USER, cluster.APPLICATION_DATABASE)
        return addresses.django_database(parts)

    def dsn_for(self, database: str) -> str:
        """How to connect to a database as the application: it may create databases and roles."""
        return self._conninfo(cluster.APPLICATION_USER, database)

    def superuser_dsn_for(self, database: str) -> str:
        """How to connect as superuser, for the few things that only a superuser may do."""
        return self._conninfo(cluster.SUPERUSER, database)

    def _conninfo(self, user: str, database: str) -> str:
        parts = self._parts(user, database)
        # hostaddr is spelled out because libpq would prefer PGHOSTADDR to our host.
        if self._tcp_port is None:
            return make_conninfo("", **parts, hostaddr="")
        return make_conninfo("", **parts, hostaddr="127.0.0.1", sslmode="disable")

    def _parts(self, user: str, database: str) -> dict[str, Any]:
        if self._use is None:
            raise EmbeddedServerError("the embedded server is not started; call start() first")
        socket_directory = self._use.record.socket_directory
        return {
            "host": socket_directory if self._tcp_port is None else "127.0.0.1",
            "port": self._use.record.port,
            "user": user,
            "password": cluster.read_password(self._use.folder, user),
            "dbname": database,
        }

    def _start(self) -> None:
        deadline = Deadline.after(self._start_timeout_seconds)
        found = find_binaries(self._binaries)
        path = self._data_dir or home_directory() / f"pg{found.major}"
        path = path.expanduser().absolute()
        folder = DataFolder(path, choose_account(path))
        folder.prepare()
        binaries = binaries_for(folder.account, found, home_directory)
        with folder.deciding(deadline):
            cluster.ensure_cluster(folder, binaries, deadline)
            users = self._use.users if self._use else folder.open_lock(folder.users_lock)
            try:
                is_alone = users.try_exclusive()
                # At once, because a failed upgrade has lost the shared lock. No race: all
                # others who would look at this lock wait for the decision lock.
                users.share()
                process, record = self._obtain_server(folder, binaries, is_alone, deadline)
            except BaseException:
                users.close()
                self._use = None
                raise
            self._use = _Use(folder, users, process, record)
        if self._stop_on_exit:
            atexit.unregister(self._stop_at_exit)
            atexit.register(self._stop_at_exit)

    def _obtain_server(
        self,
        folder: DataFolder,
        binaries: Binaries,
        is_alone: bool,
        deadline: Deadline,
    ) -> tuple[Process, ServerRecord]:
        tag = cluster.tag_of(folder)
        running = find_postmaster(tag, folder.account.uid)
        record = folder.read_record(tag)
        decision = decide(
            running=running,
            pid_in_file=server.read_pid_file(folder),
            record=record,
            tcp_port=self._tcp_port,
            settings=self._settings,
            is_alone=is_alone,
        )
        if decision is Decision.ADOPT and running is not None and record is not None:
            # It may be shutting down, or die in recovery: then another is launched.
            with suppress(server.ServerGoneError):
                server.wait_until_ready(folder, record, running, deadline)
                server.ensure_database(folder, record)
                return running, record
        if decision is Decision.REPLACE and running is not None:
            server.stop_server(running)
        return self._launch(folder, binaries, record, deadline)

    def _launch(
        self,
        folder: DataFolder,
        binaries: Binaries,
        last: ServerRecord | None,
        deadline: Deadline,
    ) -> tuple[Process, ServerRecord]:
        server.clear_leftovers(folder, last)
        port = self._tcp_port or SOCKET_PORT
        directory = sockets.choose_socket_directory(folder, last, port)
        has_tcp = self._tcp_port is not None
        record = ServerRecord(cluster.tag_of(folder), directory, port, has_tcp, self._settings)
        cluster.write_settings(folder, self._settings)
        folder.write_record(record)
        sockets.clear_socket(folder, record)
        process = server.launch(folder, binaries, record)
        try:
            server.wait_until_ready(folder, record, process, deadline)
            server.ensure_database(folder, record)
        except server.ServerGoneError:
            raise server.start_failure(folder) from None
        except server.ServerNotReadyError:
            raise
        except BaseException:
            server.stop_server(process)
            raise
        return process, record

    def _stop_at_exit(self) -> None:
        try:
            self.stop()
        except EmbeddedServerError as error:
            log.warning("%s", error)


@dataclass(frozen=True, slots=True)
class _Use:
    """That this process uses a server: the shared lock, and what is needed to leave."""

    folder: DataFolder
    users: FileLock
    process: Process
    record: ServerRecord
    #: The lock is shared with forked children; only the process that took it may leave.
    owner_pid: int = field(default_factory=os.getpid)

    def leave(self) -> None:
        """Give up the shared lock; stop the server if no other process has it."""
        if not self.folder.path.exists():
            # The folder was removed, with its locks: no other process can find this server.
            server.stop_server(self.process)
            self.users.close()
            return
        with self.folder.deciding(Deadline.after(STOP_TURN_SECONDS)):
            try:
                if self.users.try_exclusive():
                    self._stop()
            finally:
                self.users.close()

    def _stop(self) -> None:
        # Looked up anew: another user may have replaced the server since.
        running = find_postmaster(self.record.tag, self.folder.account.uid)
        if running is not None:
            server.stop_server(running)
        sockets.remove_socket_directory(self.folder, self.record)

"""The servers under fault: one of our own, with fsync on, and a pair for failovers.

Everything here blocks; the orchestrator calls it through `asyncio.to_thread`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus.embedded import EmbeddedPostgres, find_binaries
from commandbus.embedded.account import choose_account
from commandbus.embedded.binaries import binaries_for
from commandbus.embedded.cluster import tag_of
from commandbus.embedded.folder import DataFolder, home_directory
from commandbus.embedded.processes import Deadline, find_backends, find_postmaster, is_alive
from commandbus.errors import EmbeddedServerError

#: Room for 300 idle connections beside the workers. Durability is what is under test.
SETTINGS = {
    "max_connections": "450",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "2GB",
    # Nothing secret is sent here, and a deadlock should name both statements.
    "log_error_verbosity": "default",
    "log_min_error_statement": "error",
    "shared_buffers": "128MB",
}
PATIENCE_SECONDS = 60.0


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One embedded server that can be killed as a crash would: postmaster and children at once."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: dict[str, str] | None = None,
        tcp_port: int | None = None,
    ) -> None:
        self.folder = folder
        self.tcp_port = tcp_port
        self._postgres = EmbeddedPostgres(
            folder, settings={**SETTINGS, **(settings or {})}, tcp_port=tcp_port
        )

    def start(self) -> None:
        """Start it, or recover it after a kill; ready when this returns."""
        self._postgres.start()

    def stop(self) -> None:
        """Stop it."""
        self._postgres.stop()

    def remove(self) -> None:
        """Stop it and throw its data away."""
        with suppress(EmbeddedServerError):
            self._postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Whether the postmaster lives."""
        return self._postgres.is_running

    def kill(self) -> int:
        """SIGKILL the postmaster, then its children; returns how many processes that were."""
        data = self.data_folder()
        tag, uid = tag_of(data), data.account.uid
        postmaster = find_postmaster(tag, uid)
        victims = find_backends(tag, uid)
        for process in sorted(victims, key=lambda found: found != postmaster):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        # On a busy machine it takes a moment; a start in between would use the dying server.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(map(is_alive, victims)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(victims)

    def freeze(self) -> None:
        """SIGSTOP all its processes: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        data = self.data_folder()
        tag, uid = tag_of(data), data.account.uid
        postmaster = find_postmaster(tag, uid)
        # The postmaster first: it makes no more children then.
        for process in sorted(find_backends(tag, uid), key=lambda found: found != postmaster):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def data_folder(self) -> DataFolder:
        """Its data folder and whom it belongs to."""
        return DataFolder(self.folder, choose_account(self.folder))

    def dsn(self, database: str) -> str:
        """How the application connects."""
        return self._postgres.dsn_for(database)

    def superuser_dsn(self, database: str = "postgres") -> str:
        """For what only a superuser may do."""
        return self._postgres.superuser_dsn_for(database)

    def socket_path(self) -> Path:
        """The socket that a proxy forwards to."""
        options = conninfo_to_dict(self._postgres.dsn)
        return Path(str(options["host"]), f".s.PGSQL.{options['port']}")

    def create_database(self) -> str:
        """A database for one run; returns its name."""
        name = f"run_{secrets.token_hex(4)}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop the database of a run, even if sessions are still connected."""
        with psycopg.connect(self.superuser_dsn(), autocommit=True) as admin:
            query = sql.SQL("drop database if exists {} with (force)")
            admin.execute(query.format(sql.Identifier(name)))


class Pair:
    """A primary and its standby; after each failover the roles move on to fresh folders."""

    def __init__(self, folder: Path, *, is_synchronous: bool) -> None:
        self._folder = folder
        self._is_synchronous = is_synchronous
        self._ports = (free_port(), free_port())
        self._made = 0
        self.primary = self._new_server(self._ports[0])
        self.standby: Server | None = None

    def start(self) -> None:
        """Start the primary, then a standby that follows it."""
        self.primary.start()
        self.add_standby()

    def remove(self) -> None:
        """Stop both and throw their data away."""
        for server in (self.standby, self.primary):
            if server is not None:
                server.remove()

    def dsn(self, database: str) -> str:
        """Both addresses; the client takes the one that can write."""
        options = conninfo_to_dict(self.primary.dsn(database))
        return make_conninfo(
            "",
            host="127.0.0.1,127.0.0.1",
            port=",".join(str(port) for port in self._ports),
            user=options["user"],
            password=options["password"],
            dbname=database,
            sslmode="disable",
            target_session_attrs="read-write",
        )

    def add_standby(self) -> None:
        """Copy the primary, start the copy, and wait until it streams (and commits wait for it)."""
        source = self.primary
        port = next(port for port in self._ports if port != source.tcp_port)
        standby = self._new_server(port)
        data = standby.data_folder()
        data.prepare()
        with data.deciding(_deadline()):
            pass  # leaves the lock file, by which the folder is known as ours
        binaries = binaries_for(data.account, find_binaries(), home_directory)
        options = conninfo_to_dict(source.superuser_dsn())
        keys = ("host", "port", "user", "password", "sslmode")
        address = make_conninfo("", **{key: options[key] for key in keys})
        copied = data.account.run(
            [
                str(binaries.bin_directory / "pg_basebackup"),
                *("-D", str(data.cluster), "-d", address),
                *("-R", "-X", "stream", "-c", "fast", "--no-sync"),
            ],
            PATIENCE_SECONDS,
        )
        if copied.returncode:
            message = f"pg_basebackup failed: {copied.stderr.splitlines()[-1:]}"
            raise EmbeddedServerError(message)
        standby.start()
        self.standby = standby
        self._follow()

    def fail_over(self) -> tuple[float, float]:
        """Kill the primary, promote the standby; (when it was killed, when writes work again)."""
        old, new = self.primary, self.standby
        assert new is not None
        began = time.monotonic()
        old.kill()
        with psycopg.connect(new.superuser_dsn(), autocommit=True) as admin:
            admin.execute("select pg_promote(true, 60)")
            # Alone now: waiting for a standby that does not exist would stop every commit.
            admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")
        _wait_until_writable(new.superuser_dsn())
        ready = time.monotonic()
        self.primary, self.standby = new, None
        old.remove()
        return began, ready

    def _follow(self) -> None:
        with psycopg.connect(self.primary.superuser_dsn(), autocommit=True) as admin:
            if self._is_synchronous:
                admin.execute("alter system set synchronous_standby_names = '*'")
                admin.execute("select pg_reload_conf()")
            state = "sync" if self._is_synchronous else "async"
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                row = admin.execute(
                    "select count(*) from pg_stat_replication"
                    " where state = 'streaming' and sync_state = %s",
                    (state,),
                ).fetchone()
                if row and row[0]:
                    return
                time.sleep(0.05)
        raise EmbeddedServerError(f"the standby does not stream as {state}; look at its log")

    def _new_server(self, port: int) -> Server:
        self._made += 1
        return Server(self._folder / f"node-{self._made}", tcp_port=port)


def _deadline() -> Deadline:
    return Deadline.after(PATIENCE_SECONDS)


def _wait_until_writable(dsn: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with (
            suppress(psycopg.Error),
            psycopg.connect(dsn, autocommit=True, connect_timeout=2) as conn,
        ):
            row = conn.execute("select pg_is_in_recovery()").fetchone()
            if row == (False,):
                return
        time.sleep(0.02)
    raise EmbeddedServerError("the promoted server does not take writes; look at its log")

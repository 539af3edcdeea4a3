"""Where a run takes place: a server, a pair, a cluster, a server on a small disk, a pooler."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus.embedded.account import child_environment
from faults.patroni import Cluster, missing_parts
from faults.servers import Pair, Server, free_port

#: Bytes of the disk that is to run full.
DISK_BYTES = 256 * 1024 * 1024
#: WAL must not fill the disk by itself; what is left is for the ballast.
SMALL = {
    "min_wal_size": "32MB", "max_wal_size": "48MB",
    "shared_buffers": "32MB", "max_connections": "120",
}  # fmt: skip


class SkippedError(Exception):
    """This machine does not allow a run; the text says why."""


class Site:
    """A place with a database."""

    def __init__(
        self,
        *,
        server: Server | None = None,
        pair: Pair | None = None,
        disk: Path | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.server = server
        self.pair = pair
        self.cluster = cluster
        #: Where the small disk is mounted.
        self.disk = disk

    def _current(self) -> Server:
        server = self.pair.primary if self.pair is not None else self.server
        assert server is not None
        return server

    def create_database(self) -> str:
        """A database for one run."""
        return self._current().create_database()

    def drop_database(self, name: str) -> None:
        """Throw it away."""
        self._current().drop_database(name)

    def dsn(self, name: str) -> str:
        """How the parties connect."""
        return self.pair.dsn(name) if self.pair is not None else self._current().dsn(name)

    def direct_dsn(self, name: str) -> str:
        """How the harness connects: to the server that can be written."""
        return self._current().dsn(name)

    def superuser_dsn(self, name: str) -> str:
        """For what only a superuser may do."""
        return self._current().superuser_dsn(name)

    @asynccontextmanager
    async def pooler(self, name: str, folder: Path) -> AsyncIterator[str]:
        """PgBouncer in transaction mode in front of the database."""
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise SkippedError("there is no pgbouncer here; install the package")
        server = self._current()
        account = server.data_folder().account
        options = conninfo_to_dict(server.dsn(name))
        home = Path(tempfile.mkdtemp(prefix="commandbus-pooler-"))
        port = free_port()
        configuration = home / "pgbouncer.ini"
        configuration.write_text(
            "[databases]\n"
            f"{name} = host={options['host']} port={options['port']} dbname={name} "
            f"user={options['user']} password={options['password']}\n"
            "[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
            "max_client_conn = 400\ndefault_pool_size = 30\nlog_connections = 0\n"
            "log_disconnections = 0\nignore_startup_parameters = extra_float_digits\n"
        )
        for path in (home, configuration):
            if account.is_dropped:
                os.chown(path, account.uid, account.gid)
        with (folder / "pgbouncer.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603, ASYNC220  (no shell; returns at once)
                [program, str(configuration)], stdout=log, stderr=log,
                env=child_environment(), **account.popen_options(),
            )  # fmt: skip
        dsn = make_conninfo(
            "", host="127.0.0.1", hostaddr="127.0.0.1", port=port, user=options["user"],
            dbname=name, sslmode="disable", gssencmode="disable",
        )  # fmt: skip
        try:
            await asyncio.to_thread(_wait_for, dsn)
            yield dsn
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)
            shutil.rmtree(home, ignore_errors=True)

    def close(self) -> None:
        """Stop the servers and remove their data."""
        if self.pair is not None:
            self.pair.remove()
        if self.server is not None:
            self.server.remove()
        if self.disk is not None:
            _run("umount", str(self.disk))
            self.disk.rmdir()


class ClusterSite(Site):
    """Three servers under Patroni."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster=cluster)
        self._cluster = cluster

    def create_database(self) -> str:
        """A database for one run."""
        name = f"run_{secrets.token_hex(4)}"
        self._do(sql.SQL("create database {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Throw it away."""
        self._do(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _do(self, query: sql.Composed) -> None:
        with psycopg.connect(self._cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(query)

    def dsn(self, name: str) -> str:
        """How everybody connects: to the server that leads."""
        return self._cluster.dsn(name)

    direct_dsn = superuser_dsn = dsn

    def close(self) -> None:
        """Stop the servers and remove their data."""
        self._cluster.remove()


def _open_cluster(place: Path) -> Site:
    missing = missing_parts()
    if missing:
        raise SkippedError(missing)
    cluster = Cluster(place)
    try:
        cluster.start()
    except BaseException:
        cluster.remove()
        raise
    return ClusterSite(cluster)


def open_site(kind: str, folder: Path) -> Site:
    """Start what a run needs; blocks."""
    place = folder / f"{kind}-{secrets.token_hex(3)}"
    if kind == "cluster":
        return _open_cluster(place)
    if kind in {"sync_pair", "async_pair"}:
        pair = Pair(place, is_synchronous=kind == "sync_pair")
        pair.start()
        return Site(pair=pair)
    if kind == "small_disk":
        return _small_disk(place)
    server = Server(place)
    server.start()
    return Site(server=server)


def _small_disk(place: Path) -> Site:
    if os.geteuid() != 0:
        raise SkippedError("only root may mount a small disk (tmpfs)")
    place.mkdir(parents=True)
    failed = _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place))
    if failed:
        place.rmdir()
        raise SkippedError(f"a tmpfs cannot be mounted here: {failed}")
    place.chmod(0o755)
    server = Server(place / "data", settings=SMALL)
    server.start()
    return Site(server=server, disk=place)


def _run(*command: str) -> str:
    """Run a program of the system; what it complains about, or nothing."""
    done = subprocess.run(  # noqa: S603  (no shell; fixed programs)
        command, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return done.stderr.strip() if done.returncode else ""


def _wait_for(dsn: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.Error as error:
            if time.monotonic() > deadline:
                raise SkippedError(f"pgbouncer does not answer: {error}") from error
            time.sleep(0.05)
        else:
            return

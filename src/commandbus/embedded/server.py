"""The server process: launch it, wait until it accepts connections, stop it.

Everything here runs under the decision lock of the data folder.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from commandbus.embedded.account import child_environment
from commandbus.embedded.binaries import Binaries
from commandbus.embedded.cluster import (
    APPLICATION_DATABASE,
    APPLICATION_USER,
    SUPERUSER,
    read_password,
    tag_of,
)
from commandbus.embedded.folder import DataFolder, ServerRecord
from commandbus.embedded.processes import (
    Deadline,
    Process,
    cluster_name,
    find_backends,
    is_alive,
    look_up,
    send_signal,
)
from commandbus.embedded.sockets import clear_socket, quoted_directory
from commandbus.errors import EmbeddedServerError

FAST_SHUTDOWN_SECONDS = 30.0
#: PostgreSQL itself kills children after 5 s of an immediate shutdown.
IMMEDIATE_SHUTDOWN_SECONDS = 10.0
ORPHANS_SECONDS = 5.0
CONNECT_SECONDS = 5.0
FIRST_LIBPQ_WITH_REQUIRE_AUTH = 160000

#: Errors of connecting that will be the same however long we wait.
FINAL_ERRORS = ("password authentication failed", "definition of service")

#: The servers that this process launched. Kept so that they can be reaped by whichever
#: instance stops them, and so that no Popen is thrown away while its process lives.
_launched: dict[int, subprocess.Popen[bytes]] = {}


class ServerGoneError(Exception):
    """The server ended while we waited for it; the caller decides what that means."""


class ServerNotReadyError(EmbeddedServerError):
    """The server lives and works, but not yet for us."""


def launch(folder: DataFolder, binaries: Binaries, record: ServerRecord) -> Process:
    """Start the server; it does not accept connections yet when this returns."""
    environment = child_environment()
    stale_pid = read_pid_file(folder)
    if stale_pid is not None:
        # No server of this cluster runs, so this pid is another program's by now. PostgreSQL
        # would refuse to start while that one lives, but does not mind its own grandparent.
        # Unlike removing the file this keeps PostgreSQL's check of the shared memory in it.
        environment["PG_GRANDPARENT_PID"] = str(stale_pid)
    command = [
        str(binaries.postgres),
        *("-D", str(folder.cluster)),
        *("-p", str(record.port)),
        *("-k", quoted_directory(record.socket_directory)),
        *("-c", f"listen_addresses={'127.0.0.1' if record.has_tcp else ''}"),
        *("-c", cluster_name(record.tag)),
    ]
    log = folder.open_log()
    try:
        launched = subprocess.Popen(  # noqa: S603 - no shell; our own argument list
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            **folder.account.popen_options(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"cannot launch {binaries.postgres}: {error}; check the installation"
        raise EmbeddedServerError(message) from error
    finally:
        os.close(log)
    _launched[launched.pid] = launched
    process = look_up(launched.pid)
    if process is None:
        raise start_failure(folder)
    return process


def reap() -> None:
    """Collect the servers that ended; until then their pids stay taken."""
    for pid, launched in list(_launched.items()):
        if launched.poll() is not None:
            del _launched[pid]


def wait_until_ready(
    folder: DataFolder, record: ServerRecord, process: Process, deadline: Deadline
) -> None:
    """Wait, through crash recovery if need be, until the server accepts our password."""
    conninfo = checking_conninfo(folder, record, SUPERUSER, "postgres")
    said = ""

    def is_ready() -> bool:
        nonlocal said
        seconds = max(1, math.ceil(min(CONNECT_SECONDS, deadline.remaining_seconds)))
        try:
            psycopg.connect(conninfo, connect_timeout=seconds).close()
        except psycopg.OperationalError as error:
            said = " ".join(str(error).split())
        else:
            return True
        if any(final in said for final in FINAL_ERRORS):
            raise EmbeddedServerError(
                f"the server in {folder.path} cannot be used: {said[:300]}; "
                "restore its password files from a backup, or unset PGSERVICE"
            )
        if not is_alive(process):
            raise ServerGoneError
        return False

    if not deadline.wait_until(is_ready):
        # Left running on purpose: a recovery that is cut off has to begin again.
        raise ServerNotReadyError(
            f"the server in {folder.path} is not ready yet ({said[-200:]}); it goes on in the "
            "background: start again later, or allow more start_timeout_seconds"
        )


def ensure_database(folder: DataFolder, record: ServerRecord) -> None:
    """Create the application's user and database if they are missing, and connect as it."""
    password = read_password(folder, APPLICATION_USER)
    user, database = sql.Identifier(APPLICATION_USER), sql.Identifier(APPLICATION_DATABASE)
    superuser = checking_conninfo(folder, record, SUPERUSER, "postgres")
    try:
        with psycopg.connect(superuser, autocommit=True) as connection:
            query = "select from pg_roles where rolname = %s"
            if connection.execute(query, [APPLICATION_USER]).fetchone() is None:
                # Only the scram verifier travels: statements may end up in logs and statistics.
                verifier = connection.pgconn.encrypt_password(
                    password.encode(), APPLICATION_USER.encode(), b"scram-sha-256"
                )
                create = sql.SQL("create role {} login createdb createrole password {}")
                connection.execute(create.format(user, sql.Literal(verifier.decode())))
            query = "select from pg_database where datname = %s"
            if connection.execute(query, [APPLICATION_DATABASE]).fetchone() is None:
                connection.execute(sql.SQL("create database {} owner {}").format(database, user))
        application = checking_conninfo(folder, record, APPLICATION_USER, APPLICATION_DATABASE)
        psycopg.connect(application).close()
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise EmbeddedServerError(
            f"cannot open the database {APPLICATION_DATABASE!r} in {folder.path}: {said[:300]}; "
            f"fix that and start again (log: {folder.log})"
        ) from error


def checking_conninfo(folder: DataFolder, record: ServerRecord, user: str, database: str) -> str:
    """How to connect through the socket, whatever the PG* variables say.

    An empty value counts as given, so libpq does not look for PGHOSTADDR or PGOPTIONS.
    """
    options: dict[str, str | int] = {
        "host": record.socket_directory,
        "hostaddr": "",
        "port": record.port,
        "user": user,
        "password": read_password(folder, user),
        "dbname": database,
        "options": "",
        "client_encoding": "utf8",
        "connect_timeout": int(CONNECT_SECONDS),
        "sslmode": "disable",
        "gssencmode": "disable",
        "channel_binding": "disable",
        "target_session_attrs": "any",
        "application_name": "commandbus-embedded",
    }
    if psycopg.pq.version() >= FIRST_LIBPQ_WITH_REQUIRE_AUTH:
        # Another server on that socket must not be able to ask for the plain password.
        options["require_auth"] = "scram-sha-256"
    return make_conninfo("", **options)


def stop_server(process: Process) -> None:
    """Fast shutdown; if that takes too long, an immediate one (the next start recovers)."""
    for number, seconds in (
        (signal.SIGINT, FAST_SHUTDOWN_SECONDS),
        (signal.SIGQUIT, IMMEDIATE_SHUTDOWN_SECONDS),
    ):
        send_signal(process, number)
        if Deadline.after(seconds).wait_until(lambda: not is_alive(process)):
            reap()
            return
    message = f"the server does not stop; look at process {process.pid} and end it by hand"
    raise EmbeddedServerError(message)


def clear_leftovers(folder: DataFolder, record: ServerRecord | None) -> None:
    """Remove what a dead server left and what would keep the next one from starting.

    Called when no postmaster of this cluster was found. Its orphaned children may still be at
    work in the shared memory; the cluster goes through crash recovery anyway, so they are ended.
    """
    reap()
    tag, uid = tag_of(folder), folder.account.uid
    for number in (signal.SIGQUIT, signal.SIGKILL):
        for orphan in find_backends(tag, uid):
            send_signal(orphan, number)
        if Deadline.after(ORPHANS_SECONDS).wait_until(lambda: not find_backends(tag, uid)):
            break
    if record is not None:
        clear_socket(folder, record)
    pid_file = folder.cluster / "postmaster.pid"
    if pid_file.exists() and read_pid_file(folder) is None:
        # Empty or garbage: PostgreSQL would refuse to start each time. Kept under another name.
        pid_file.replace(folder.cluster / "postmaster.pid.broken")


def read_pid_file(folder: DataFolder) -> int | None:
    """The pid that postmaster.pid begins with; None if there is no such number."""
    try:
        first = folder.cluster.joinpath("postmaster.pid").read_bytes().split(b"\n")[0]
    except OSError:
        return None
    return int(first) if re.fullmatch(rb"[1-9][0-9]{0,8}", first.strip()) else None


def start_failure(folder: DataFolder) -> EmbeddedServerError:
    """The error for a server that ended by itself, with the last error in its log."""
    reap()
    lines = folder.read_new_log()
    # "the database system is starting up" was for us when we connected; it is not the cause.
    grave = [
        line for line in lines if re.search(r"\b(FATAL|PANIC): +(?!the database system)", line)
    ]
    words = (grave or lines or ["it said nothing"])[-1]
    words = re.sub(r"^.*?\b(FATAL|PANIC): +", "", words)
    return EmbeddedServerError(
        f"the server did not start: {words[:300]}; fix that and start again (log: {folder.log})"
    )

"""The cluster inside the data folder: initdb, passwords, settings.

A cluster appears by one rename. Until then it lies in a staging folder that no server ever
uses, so an initdb that was killed in the middle leaves only files to remove.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from commandbus.embedded.binaries import Binaries
from commandbus.embedded.folder import DataFolder
from commandbus.embedded.processes import Deadline
from commandbus.errors import EmbeddedServerError, InvalidSettingError

log = logging.getLogger(__name__)

SUPERUSER = "postgres"
APPLICATION_USER = "commandbus"
APPLICATION_DATABASE = "commandbus"

SETTINGS_FILE = "commandbus.conf"
#: There while an upgrade puts the new cluster in the place of the old one.
UPGRADE_NOTE = "upgrading.json"
FIRST_MAJOR_WITH_BUILTIN_LOCALE = 17

#: For a small machine. The rows of a queue are soon deleted, so autovacuum must run often.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "jit": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "wal_compression": "on",
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # Payloads must not reach the log: not as parameters, not as "Failing row contains (...)",
    # not as the text of a statement that failed.
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "password_encryption": "scram-sha-256",
    "unix_socket_permissions": "0700",
}

#: What we decide ourselves; with other values we could not find or reach the server.
RESERVED_SETTINGS = frozenset({
    "cluster_name", "config_file", "data_directory", "external_pid_file", "hba_file",
    "ident_file", "lc_messages", "listen_addresses", "log_destination", "logging_collector",
    "port", "unix_socket_directories",
})  # fmt: skip


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The user's settings, if they can be written into a settings file and are theirs to set."""
    for name, value in settings.items():
        if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name) or re.search(r"[\r\n\0]", value):
            message = f"the server setting {name!r} is malformed; give one name and one line"
            raise InvalidSettingError(message)
        if name in RESERVED_SETTINGS:
            message = f"the server setting {name!r} is made by commandbus itself; leave it out"
            raise InvalidSettingError(message)
    return dict(settings)


def ensure_cluster(folder: DataFolder, binaries: Binaries, deadline: Deadline) -> None:
    """Make the cluster if there is none; refuse one of another major version."""
    for leftover in folder.path.glob("staging-*"):
        # An initdb whose parent was killed may still write here: what it adds goes next time.
        shutil.rmtree(leftover, ignore_errors=True)
    if is_between(folder):
        raise EmbeddedServerError(
            f"an upgrade of {folder.path} was cut off; finish it with `commandbus db upgrade`"
        )
    if not folder.cluster.exists():
        _warn_of_older_cluster(folder, binaries)
        _create_cluster(folder, binaries, deadline)
    try:
        found = folder.cluster.joinpath("PG_VERSION").read_text().strip()
    except OSError as error:
        raise EmbeddedServerError(
            f"{folder.cluster} is not a whole PostgreSQL cluster (PG_VERSION is missing); "
            "restore it from a backup, or move it away to start empty"
        ) from error
    if found != str(binaries.major):
        raise EmbeddedServerError(
            f"{folder.path} was made by PostgreSQL {found} but the server is PostgreSQL "
            f"{binaries.version}; set COMMANDBUS_PG_BIN to a PostgreSQL {found}, or "
            "move the data to the new version with `commandbus db upgrade`"
        )


def is_between(folder: DataFolder) -> bool:
    """Whether an upgrade took the old cluster out and did not get to put the new one in."""
    return folder.path.joinpath(UPGRADE_NOTE).exists() and not folder.cluster.exists()


def write_settings(folder: DataFolder, settings: Mapping[str, str]) -> None:
    """Write our settings file, which postgresql.conf includes at its end."""
    lines = [
        f"{name} = {_quoted(value)}" for name, value in {**DEFAULT_SETTINGS, **settings}.items()
    ]
    text = "# Written by commandbus at every start; changes made here are lost.\n"
    folder.write_private(folder.cluster / SETTINGS_FILE, text + "\n".join(lines) + "\n")


def read_password(folder: DataFolder, user: str) -> str:
    """The password that was made with the cluster."""
    path = _password_file(folder.cluster, user)
    try:
        return path.read_text().strip()
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot read the password file {path}: {error.strerror}; "
            "restore it from a backup, or move the data folder away to start empty"
        ) from error


def tag_of(folder: DataFolder) -> str:
    """A name for the cluster that its processes carry.

    The inode, not the path: a folder that is moved keeps it, a folder that is copied does not.
    """
    found = folder.cluster.stat()
    return f"commandbus-{found.st_dev:x}-{found.st_ino:x}"


def _create_cluster(folder: DataFolder, binaries: Binaries, deadline: Deadline) -> None:
    staging = folder.path / f"staging-{secrets.token_hex(8)}"
    folder.make_private_folder(staging)
    try:
        _run_initdb(folder, binaries, staging, deadline)
        cluster = staging / "cluster"
        for user in (SUPERUSER, APPLICATION_USER):
            _password_file(staging, user).rename(_password_file(cluster, user))
        configuration = cluster.joinpath("postgresql.conf").read_text()
        folder.write_private(
            cluster / "postgresql.conf",
            f"{configuration}\ninclude_if_exists = '{SETTINGS_FILE}'\n",
        )
        sync_folder(cluster)
        cluster.rename(folder.cluster)
        sync_folder(folder.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_initdb(folder: DataFolder, binaries: Binaries, staging: Path, deadline: Deadline) -> None:
    for user in (SUPERUSER, APPLICATION_USER):
        folder.write_private(_password_file(staging, user), secrets.token_hex(32) + "\n")
    cluster = staging / "cluster"
    command = [
        str(binaries.initdb),
        f"--pgdata={cluster}",
        f"--username={SUPERUSER}",
        "--auth=scram-sha-256",
        f"--pwfile={_password_file(staging, SUPERUSER)}",
        "--data-checksums",
        "--encoding=UTF8",
        "--lc-messages=C",
    ]
    said = ""
    for locale in locale_options(binaries.major):
        # initdb removes what it made when it fails, so the next locale finds an empty place.
        try:
            done = folder.account.run([*command, *locale], deadline.remaining_seconds)
        except subprocess.TimeoutExpired as error:
            message = "initdb did not finish in time; allow more start_timeout_seconds"
            raise EmbeddedServerError(message) from error
        if done.returncode == 0:
            return
        said = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr)
    message = f"initdb failed in {folder.path}: {' '.join(said.split())[:300]}; fix that and retry"
    raise EmbeddedServerError(message)


def locale_options(major: int) -> tuple[tuple[str, ...], ...]:
    """The locales to try: the same order of text on every machine, and UTF-8 letters."""
    if major >= FIRST_MAJOR_WITH_BUILTIN_LOCALE:
        return (("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),)
    # Before 17 the locale comes from libc, and not every libc has C.UTF-8.
    return (("--locale=C.UTF-8",), ("--locale=C",))


def _password_file(directory: Path, user: str) -> Path:
    return directory / f"{user}.password"


def _quoted(value: str) -> str:
    doubled = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def sync_folder(path: Path) -> None:
    """Make renames in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _warn_of_older_cluster(folder: DataFolder, binaries: Binaries) -> None:
    """The default folder carries the major version: after an upgrade it is a new, empty one."""
    if folder.path.name != f"pg{binaries.major}":
        return
    for other in folder.path.parent.glob("pg*/cluster/PG_VERSION"):
        log.warning(
            "starting an empty cluster in %s; the data in %s stays there; to move it, remove the "
            "new folder and run `commandbus db upgrade`",
            folder.path,
            other.parents[1],
        )

"""Where the server's socket lies.

In the data folder, which is private already. A path of a socket is limited to about a hundred
bytes, so a deep data folder gets a private folder with a short path instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from commandbus.embedded.folder import DataFolder, ServerRecord
from commandbus.errors import EmbeddedServerError

#: sun_path has 108 bytes on Linux and 104 on macOS, with the closing zero.
LONGEST_SOCKET_PATH_BYTES = 103
PROBE_SECONDS = 5.0


def choose_socket_directory(folder: DataFolder, record: ServerRecord | None, port: int) -> str:
    """The data folder if the path fits, else a private folder with a short path."""
    if _fits(folder.path, port):
        return str(folder.path)
    if record is not None and _is_private(Path(record.socket_directory), folder):
        return record.socket_directory
    for base in _short_places():
        if not base.is_dir() or not _fits(base / "commandbus-12345678", port):
            continue
        directory = Path(tempfile.mkdtemp(prefix="commandbus-", dir=base))
        folder.account.own(directory)
        if folder.account.can_write_in(directory):
            return str(directory)
        directory.rmdir()
    message = "no place for the server's socket: the data folder's path is too long; shorten it"
    raise EmbeddedServerError(message)


def remove_socket_directory(folder: DataFolder, record: ServerRecord) -> None:
    """Remove the private folder that `choose_socket_directory` made, if it made one."""
    directory = Path(record.socket_directory)
    if directory != folder.path and _is_private(directory, folder):
        # Not recursive: should it hold anything but the socket, it is not ours to remove.
        _unlink_socket(directory, record.port)
        with contextlib.suppress(OSError):
            directory.rmdir()


def clear_socket(folder: DataFolder, record: ServerRecord) -> None:
    """Remove the socket of a dead server; refuse if a server still listens on it."""
    directory = Path(record.socket_directory)
    if not _is_private(directory, folder):
        return
    path = directory / f".s.PGSQL.{record.port}"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        if probe.connect_ex(str(path)) not in {errno.ENOENT, errno.ECONNREFUSED}:
            raise EmbeddedServerError(
                f"a server that cannot be seen from here (another container?) uses {folder.path}; "
                "stop it, or give every container its own data folder"
            )
    _unlink_socket(directory, record.port)


def quoted_directory(directory: str) -> str:
    """The directory as the one element of the list `unix_socket_directories`.

    In double quotes a comma or a space is part of the name.
    """
    doubled = directory.replace('"', '""')
    return f'"{doubled}"'


def _unlink_socket(directory: Path, port: int) -> None:
    # The lock file beside the socket holds a pid too, which may have been reused as well.
    for name in (f".s.PGSQL.{port}", f".s.PGSQL.{port}.lock"):
        directory.joinpath(name).unlink(missing_ok=True)


def _fits(directory: Path, port: int) -> bool:
    # libpq reads a comma in `host` as the border between two hosts.
    path = os.fsencode(directory / f".s.PGSQL.{port}")
    return len(path) <= LONGEST_SOCKET_PATH_BYTES and b"," not in path


def _is_private(directory: Path, folder: DataFolder) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    is_closed = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return found.st_uid == folder.account.uid and is_closed


def _short_places() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.geteuid() != 0:
        yield Path(runtime)
    yield Path(tempfile.gettempdir())
    yield Path("/tmp")  # noqa: S108 - mkdtemp makes a private folder with a random name

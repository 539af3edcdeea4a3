"""The data folder: where it is, what lies in it, and the two locks that guard it.

    <data folder>/        0700, owned by the account that runs the server
      commandbus.lock     exclusive: locked while a process decides to init, start or stop
      users.lock          shared: locked by every process as long as it uses the server
      server.json         how the running server was started: socket, port, settings
      server.log          what the server says
      cluster/            PGDATA, with the passwords and our settings file
      staging-<random>/   a cluster that initdb has not finished; never used, removed later
      .s.PGSQL.<port>     the socket, if the path is short enough

Both locks are `flock`, so the kernel frees them when a process dies, however it dies. Lock
order: commandbus.lock first. users.lock is taken and released only under commandbus.lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from commandbus.embedded.account import Account
from commandbus.embedded.processes import Deadline
from commandbus.errors import EmbeddedServerError

HOME_VARIABLE = "COMMANDBUS_HOME"
LOG_BYTES_BEFORE_ROTATION = 10_000_000
LOG_TAIL_BYTES = 65_536


@dataclass(frozen=True)
class ServerRecord:
    """How a server was started; the next process needs it to adopt that server."""

    #: Of the cluster it was written for. A folder that was copied brings a record along that
    #: speaks of the original's socket.
    tag: str
    socket_directory: str
    port: int
    has_tcp: bool
    settings: Mapping[str, str]


class FileLock:
    """One open lock file. Each instance locks for itself, also within one process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def try_exclusive(self) -> bool:
        """Take or upgrade to the exclusive lock, unless another instance has any lock."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Take or downgrade to the shared lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give the lock up, also on behalf of forked children that inherited it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


class DataFolder:
    """All access to the data folder, with files that only the account can read.

    As root we write into a folder that a lesser account owns. So no file is opened through
    a symbolic link, and files are replaced by rename, never written over.
    """

    def __init__(self, path: Path, account: Account) -> None:
        self.path = path
        self.account = account
        self.cluster = path / "cluster"
        self.log = path / "server.log"
        self._record = path / "server.json"
        self._decision_lock = path / "commandbus.lock"
        self.users_lock = path / "users.lock"
        self._log_start = 0

    def prepare(self) -> None:
        """Create the folder or check that it is ours, private and writable."""
        with self._reporting_errors():
            if not self.path.exists():
                self.account.make_folders(self.path.parent)
                self.path.mkdir(mode=0o700, exist_ok=True)
            self._check_kind()
            has_files = not self._decision_lock.exists() and any(self.path.iterdir())
            # Looked at twice: another process may have made its lock file in between.
            if has_files and not self._decision_lock.exists():
                raise EmbeddedServerError(
                    f"{self.path} holds files that are not of commandbus; "
                    "choose an empty or a new data folder"
                )
            self.account.own(self.path)
            self.path.chmod(0o700)
        if not self.account.can_write_in(self.path):
            raise EmbeddedServerError(
                f"the account {self.account.name!r} cannot reach or write {self.path}; "
                "choose a folder that it can reach, or run the application as its owner"
            )

    @contextmanager
    def deciding(self, deadline: Deadline) -> Iterator[None]:
        """Be the only process that inits, starts or stops a server in this folder."""
        lock = self.open_lock(self._decision_lock)
        try:
            if not deadline.wait_until(lock.try_exclusive):
                raise EmbeddedServerError(
                    f"another process is still starting or stopping the server in {self.path}; "
                    "try again, or allow more start_timeout_seconds"
                )
            yield
        finally:
            lock.close()

    def read_record(self, tag: str) -> ServerRecord | None:
        """How the last server of this cluster was started; None if that cannot be told."""
        try:
            found = json.loads(self._record.read_text())
            record = ServerRecord(
                str(found["tag"]),
                str(found["socket_directory"]),
                int(found["port"]),
                bool(found["has_tcp"]),
                dict(found["settings"]),
            )
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return record if record.tag == tag else None

    def write_record(self, record: ServerRecord) -> None:
        """Note how the server is about to be started."""
        self.write_private(self._record, json.dumps(asdict(record)))

    def write_private(self, path: Path, text: str) -> None:
        """Write a file that only the account can read; it appears whole or not at all."""
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with self._reporting_errors():
            descriptor = self._open(unfinished, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)

    def make_private_folder(self, path: Path) -> None:
        """Create a folder that only the account can enter."""
        with self._reporting_errors():
            path.mkdir(mode=0o700)
            if self.account.is_dropped:
                os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def open_log(self) -> int:
        """The descriptor that becomes the server's standard output and error."""
        with self._reporting_errors():
            if self.log.exists() and self.log.stat().st_size > LOG_BYTES_BEFORE_ROTATION:
                self.log.replace(self.log.with_name("server.log.1"))
            descriptor = self._open(self.log, os.O_WRONLY | os.O_APPEND)
            self._log_start = os.fstat(descriptor).st_size
            return descriptor

    def read_new_log(self) -> list[str]:
        """What the server said since `open_log`, at most the last part of it."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def _check_kind(self) -> None:
        if not self.path.is_dir():
            message = f"{self.path} is not a folder; move it away or choose another data folder"
            raise EmbeddedServerError(message)
        found = self.path.stat()
        owners = {self.account.uid, os.geteuid()}
        if found.st_uid not in owners or found.st_mode & stat.S_ISVTX:
            raise EmbeddedServerError(
                f"{self.path} belongs to somebody else (uid {found.st_uid}); "
                "choose another data folder, or run the application as its owner"
            )
        if not found.st_mode & stat.S_IWUSR:
            message = f"{self.path} is read-only; make it writable or choose another data folder"
            raise EmbeddedServerError(message)

    def open_lock(self, path: Path) -> FileLock:
        """One of the two locks; not yet taken."""
        with self._reporting_errors():
            return FileLock(self._open(path, os.O_RDWR))

    def _open(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.account.own(descriptor)
        return descriptor

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EmbeddedServerError(
                f"cannot use the data folder {self.path}: {error.strerror}; "
                f"choose a writable folder (argument data_dir, or {HOME_VARIABLE})"
            ) from error


def home_directory() -> Path:
    """Where commandbus keeps its own state, by the convention of the platform."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/commandbus")
    try:
        user_home = Path.home()
    except RuntimeError as error:
        message = f"this user has no home folder; set {HOME_VARIABLE} to a writable folder"
        raise EmbeddedServerError(message) from error
    if sys.platform == "darwin":
        return user_home / "Library" / "Application Support" / "commandbus"  # pragma: no cover
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG convention says to ignore a relative path.
    return (state if state.is_absolute() else user_home / ".local" / "state") / "commandbus"

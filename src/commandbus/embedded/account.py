"""Who the server runs as: ourselves, or as root an unprivileged account that already exists.

PostgreSQL refuses to run as root. Nothing here creates an account, and nothing here changes
the permissions of a folder: it only chooses, and asks the kernel what the account may do.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commandbus.errors import EmbeddedServerError

#: In this order; both exist on common systems, and neither has rights of its own.
UNPRIVILEGED_ACCOUNTS = ("postgres", "nobody")

#: The only variables that a child inherits. An allow-list, because PGPORT, PGDATA, PGOPTIONS,
#: LC_MESSAGES and the like all change what initdb and the server do, and because secrets of
#: the application have no business in the environment of another account's process.
INHERITED_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

#: For a command that took too long, between the request to end and the kill.
END_SECONDS = 5.0


@dataclass(frozen=True)
class Account:
    """The owner of the data folder and of the server process."""

    name: str
    uid: int
    gid: int
    #: True if we are root and the server must not be.
    is_dropped: bool

    def popen_options(self) -> dict[str, Any]:
        """Everything about a child that must not come from us: identity, folder, terminal."""
        identity: dict[str, Any] = {}
        if self.is_dropped:
            identity = {"user": self.uid, "group": self.gid, "extra_groups": []}
        # cwd: the account may not be allowed to enter ours. New session: Ctrl-C in the
        # terminal of the application must not reach the server.
        return {"cwd": "/", "start_new_session": True, "close_fds": True, **identity}

    def run(
        self, command: Sequence[str], timeout_seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end as this account; its output is captured."""
        with subprocess.Popen(  # noqa: S603 - no shell; the callers build the argument list
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=child_environment(),
            **self.popen_options(),
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout_seconds)
            except BaseException:
                _end_session(process)
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def can_run(self, program: Path) -> bool:
        """Whether the program and its libraries can be loaded, found out by doing it."""
        return self._succeeds(str(program), "--version")

    def can_write_in(self, folder: Path) -> bool:
        """Whether the account can reach the folder and create files in it."""
        if not self.is_dropped:
            return os.access(folder, os.W_OK | os.X_OK)
        # The kernel answers for the account itself: mode bits alone would miss parents and ACLs.
        script = 'test -w "$1" && test -x "$1"'
        return self._succeeds("/bin/sh", "-c", script, "sh", str(folder))

    def _succeeds(self, *command: str) -> bool:
        try:
            return self.run(command, timeout_seconds=10).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False

    def make_folders(self, folder: Path) -> None:
        """Create what is missing of the path; what exists is left alone."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            if self.is_dropped:
                # New and ours; a private umask of root would lock the account out.
                path.chmod(0o755)

    def own(self, file: int | Path) -> None:
        """Hand a file or folder over to the account, so that it and we can both use it later."""
        if self.is_dropped:
            os.chown(file, self.uid, self.gid)


def _end_session(process: subprocess.Popen[str]) -> None:
    """Ask a command to end; if it does not, kill it with its children (they share its session).

    Only the command is asked. A server that initdb runs has no handler for signals and would
    leave its shared memory behind; initdb lets it finish its step first.
    """
    process.terminate()
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def child_environment() -> dict[str, str]:
    """The whole environment of every child; messages in English, because we read them."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {"LC_ALL": "C", **inherited}


def choose_account(folder: Path) -> Account:
    """Ourselves; as root the owner of the folder if it has one, else an unprivileged account."""
    if os.geteuid() != 0:
        return Account(str(os.geteuid()), os.geteuid(), os.getegid(), is_dropped=False)
    if folder.exists() and (owner := folder.stat()).st_uid != 0:
        # A folder keeps its owner, also if it is 'nobody' and 'postgres' was installed later.
        return _dropped_to(owner.st_uid, owner.st_gid)
    for name in UNPRIVILEGED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid, is_dropped=True)
    raise EmbeddedServerError(
        "PostgreSQL does not run as root and there is no account "
        f"{' or '.join(UNPRIVILEGED_ACCOUNTS)} to drop to; run the application as a plain user"
    )


def _dropped_to(uid: int, gid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        # A folder on a volume may belong to a uid that this container has no name for.
        return Account(str(uid), uid, gid, is_dropped=True)
    return Account(entry.pw_name, uid, entry.pw_gid, is_dropped=True)

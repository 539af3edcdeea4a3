"""How the server of a data folder stands: whether it runs, and who holds it.

A process holds a server as long as it has the lock file `users.lock` open. `commandbus up` leaves a
note beside it, so that `commandbus down` can ask it to end; others that hold it are named.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from commandbus.embedded import cluster, server
from commandbus.embedded.account import choose_account
from commandbus.embedded.folder import DataFolder, ServerRecord
from commandbus.embedded.processes import PROC, Process, find_postmaster, look_up
from commandbus.errors import EmbeddedServerError
from commandbus.privacy.redaction import redact_text

#: Words of a command line that are shown: the rest may hold what is nobody else's business.
SHOWN_WORDS = 4
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Holder:
    """A process that uses the server."""

    process: Process
    #: Whether it is a `commandbus up`, which `down` may end.
    is_up: bool

    def __str__(self) -> str:
        words = shlex.join(self.process.arguments[:SHOWN_WORDS])
        return f"process {self.process.pid} ({redact_text(words, SHOWN_CHARACTERS)})"


@dataclass(frozen=True)
class Standing:
    """A data folder with a cluster in it."""

    folder: DataFolder

    @classmethod
    def of(cls, path: Path) -> Standing | None:
        """That of a folder; None if no server was ever started in it."""
        folder = DataFolder(path, choose_account(path))
        return cls(folder) if folder.cluster.exists() else None

    @property
    def tag(self) -> str:
        """The name that the processes of its server carry."""
        return cluster.tag_of(self.folder)

    @property
    def running(self) -> Process | None:
        """The server, if it runs."""
        return find_postmaster(self.tag, self.folder.account.uid)

    @property
    def record(self) -> ServerRecord | None:
        """How the server was started last."""
        return self.folder.read_record(self.tag)

    @property
    def major(self) -> int:
        """The version of PostgreSQL that made the cluster."""
        try:
            return int(self.folder.cluster.joinpath("PG_VERSION").read_text())
        except (OSError, ValueError) as error:
            message = f"{self.folder.cluster} is no PostgreSQL cluster (PG_VERSION is missing)"
            raise EmbeddedServerError(f"{message}; restore it from a backup") from error

    def parts(self) -> dict[str, Any]:
        """The address of the application's database, by its parts."""
        record = self.record
        if record is None:
            message = f"the server in {self.folder.path} was never started; start it with"
            raise EmbeddedServerError(f"{message} `commandbus up`")
        return {
            "host": record.socket_directory,
            "port": record.port,
            "user": cluster.APPLICATION_USER,
            "password": cluster.read_password(self.folder, cluster.APPLICATION_USER),
            "dbname": cluster.APPLICATION_DATABASE,
        }

    def holders(self) -> list[Holder]:
        """The processes that hold the server, but for this one, as far as they can be seen."""
        marked = self._marked()
        pids = _openers(self.folder.users_lock) | marked.keys()
        found = [process for pid in sorted(pids) if (process := look_up(pid)) is not None]
        return [
            Holder(process, is_up=marked.get(process.pid) == process.started)
            for process in found
            if process.pid != os.getpid()
        ]

    def clients(self) -> list[str]:
        """The programs that are connected to the server, by the names that they gave."""
        record = self.record
        if record is None or self.running is None:
            return []
        address = server.checking_conninfo(self.folder, record, cluster.SUPERUSER, "postgres")
        query = (
            "select coalesce(nullif(application_name, ''), 'a client without a name')"
            "  from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid() order by 1"
        )
        with suppress(psycopg.Error), psycopg.connect(address) as connection:
            return [str(name) for (name,) in connection.execute(query)]
        return []

    @contextmanager
    def marked_up(self) -> Iterator[None]:
        """Say that this process is a `commandbus up`, while it is."""
        mine = look_up(os.getpid())
        path = self.folder.path / f"up-{os.getpid()}.json"
        self.folder.write_private(path, json.dumps({"started": mine.started if mine else ""}))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _marked(self) -> dict[int, str]:
        """The start times that were noted, by pid. The note of one that was killed stays."""
        found = {}
        for path in self.folder.path.glob("up-*.json"):
            with suppress(OSError, ValueError, LookupError, TypeError):
                pid, started = int(path.stem[3:]), str(json.loads(path.read_text())["started"])
                process = look_up(pid)
                if process is None or process.started != started:
                    path.unlink(missing_ok=True)
                else:
                    found[pid] = started
        return found


def _openers(path: Path) -> set[int]:
    """Who has a file open. Without /proc nobody is seen; others' processes are not seen either."""
    found: set[int] = set()
    try:
        wanted = path.stat()
        entries = [entry for entry in PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return found
    for entry in entries:
        with suppress(OSError):
            for descriptor in entry.joinpath("fd").iterdir():
                with suppress(OSError):
                    opened = descriptor.stat()
                    if (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino):
                        found.add(int(entry.name))
                        break
    return found

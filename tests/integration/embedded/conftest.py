"""Real servers in folders of their own; a child process plays the application that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus.embedded import Binaries, EmbeddedPostgres, find_binaries

WAIT_SECONDS = 30.0

APPLICATION = """
import json, sys
from pathlib import Path
from commandbus.embedded import EmbeddedPostgres

options = json.loads(sys.argv[1])
inherited = open(options.pop("held_open")) if "held_open" in options else None
if inherited:
    import os
    os.set_inheritable(inherited.fileno(), True)
server = EmbeddedPostgres(Path(options.pop("data_dir")), **options)
print(server.start(), flush=True)
sys.stdin.read()
"""


def wait_until(condition: Callable[[], Any]) -> None:
    """Poll a condition; the test fails if it does not come true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def postmaster_pid(data_dir: Path) -> int:
    """The pid in the pid file, which a server on a busy machine may take a moment to write."""
    wait_until((data_dir / "cluster" / "postmaster.pid").exists)
    return int((data_dir / "cluster" / "postmaster.pid").read_text().splitlines()[0])


def living_servers(data_dir: Path) -> list[int]:
    """The servers that run on the folder, found independently of the code under test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if os.fsencode(data_dir / "cluster") in command and state != "Z":
                found.append((int(entry.name), parent))
    pids = {pid for pid, _ in found}
    # A child that was just forked shows its parent's command line for a moment.
    return [pid for pid, parent in found if parent not in pids]


class App:
    """An application process that uses the embedded server until its stdin is closed."""

    def __init__(
        self, data_dir: Path, environment: dict[str, str], options: dict[str, Any]
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, json.dumps({"data_dir": str(data_dir), **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )

    def wait_for_dsn(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def leave(self) -> None:
        """End normally: exit handlers run."""
        self.process.communicate("")
        assert self.process.returncode == 0


@pytest.fixture
def helpers() -> type[Helpers]:
    return Helpers


class Helpers:
    """Plain functions for the tests; fixtures work under every import mode of pytest."""

    wait_until = staticmethod(wait_until)
    postmaster_pid = staticmethod(postmaster_pid)
    living_servers = staticmethod(living_servers)

    @staticmethod
    def query(dsn: str, statement: str) -> Any:
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return find_binaries()


def _fast_place() -> Path:
    """Memory if there is plenty: copying a cluster takes a tenth of the time there."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        has_room = shutil.disk_usage(memory).free > 2_000_000_000
        if has_room and not os.statvfs(memory).f_flag & os.ST_NOEXEC:
            return memory
    return Path("/tmp")


def _reachable_folder() -> Path:
    # pytest's tmp_path lies under a folder that only its owner may pass; when the tests run
    # as root the server's account could not reach it.
    folder = Path(tempfile.mkdtemp(prefix="cb-test-", dir=_fast_place()))
    folder.chmod(0o711)
    return folder


def _remove(folder: Path) -> None:
    data_dirs = {path.parents[1] for path in folder.rglob("cluster/PG_VERSION")}
    for pid in (pid for data_dir in data_dirs for pid in living_servers(data_dir)):
        os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not any(living_servers(data_dir) for data_dir in data_dirs))
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o700)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    folder = _reachable_folder()
    yield folder
    _remove(folder)


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A data folder that was started and stopped once; copied instead of running initdb again."""
    folder = _reachable_folder()
    with EmbeddedPostgres(folder / "template"):
        pass
    yield folder / "template"
    _remove(folder)


@pytest.fixture
def data_dir(template: Path, reachable_folder: Path) -> Path:
    copy = reachable_folder / "data"
    subprocess.run(["cp", "-a", "--reflink=auto", template, copy], check=True)
    return copy


@pytest.fixture
def start_app() -> Iterator[Callable[..., App]]:
    apps: list[App] = []

    def start(data_dir: Path, environment: dict[str, str] | None = None, **options: Any) -> App:
        apps.append(App(data_dir, environment or {}, options))
        return apps[-1]

    yield start
    for app in apps:
        app.kill()

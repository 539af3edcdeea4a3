"""Fault run F19: whatever was killed or broken, the next start works or says why."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus.embedded import EmbeddedPostgres, processes, server
from commandbus.errors import EmbeddedServerError


@contextmanager
def sleeper_of(owner: Path) -> Iterator[int]:
    """A live process under the account of the server that has nothing to do with it."""
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        found = owner.stat()
        identity = {"user": found.st_uid, "group": found.st_gid, "extra_groups": []}
    process = subprocess.Popen(["sleep", "600"], cwd="/", **identity)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def kill_server(data_dir: Path, helpers: Any) -> None:
    os.kill(helpers.postmaster_pid(data_dir), signal.SIGKILL)
    helpers.wait_until(lambda: not helpers.living_servers(data_dir))


def test_next_app_adopts_the_server_when_the_first_was_killed(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    dsn = app.wait_for_dsn()
    helpers.query(dsn, "create table t as select 42 as answer")
    pid = helpers.postmaster_pid(data_dir)
    app.kill()
    with EmbeddedPostgres(data_dir) as server:
        assert server.dsn == dsn
        assert helpers.living_servers(data_dir) == [pid]
        assert helpers.query(server.dsn, "select answer from t") == 42
    assert helpers.living_servers(data_dir) == []


@pytest.mark.parametrize("has_proc", [True, False])
def test_start_recovers_committed_rows_when_the_server_was_killed(
    data_dir: Path, has_proc: bool, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_proc:
        # As on macOS: processes are listed by `ps`, and a space in the path must not confuse it.
        monkeypatch.setattr(processes, "PROC", data_dir / "no-proc")
        data_dir = data_dir.rename(data_dir.with_name("with -D space"))
    with EmbeddedPostgres(data_dir) as server:
        helpers.query(server.dsn, "create table t as select 42 as answer")
        first = helpers.postmaster_pid(data_dir)
        kill_server(data_dir, helpers)
        assert server.is_running is False
        server.start()
        helpers.wait_until(lambda: server.is_running)
        assert helpers.postmaster_pid(data_dir) != first
        assert helpers.query(server.dsn, "select answer from t") == 42
        with EmbeddedPostgres(data_dir) as second:
            assert second.dsn == server.dsn
            assert len(helpers.living_servers(data_dir)) == 1
    assert helpers.living_servers(data_dir) == []


def test_start_works_when_app_and_server_were_killed_and_the_pid_lives_again(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    app.wait_for_dsn()
    app.kill()
    kill_server(data_dir, helpers)
    pid_file = data_dir / "cluster" / "postmaster.pid"
    socket_lock = data_dir / ".s.PGSQL.5432.lock"
    with sleeper_of(data_dir) as pid:
        for path in (pid_file, socket_lock):
            rest = path.read_text().split("\n", 1)[1]
            path.write_text(f"{pid}\n{rest}")
        with EmbeddedPostgres(data_dir) as server:
            assert helpers.query(server.dsn, "select 1") == 1
            assert helpers.postmaster_pid(data_dir) != pid
        os.kill(pid, 0)  # the stranger was left in peace


def test_start_works_when_the_reused_pid_is_that_of_init_or_of_the_app_itself(
    data_dir: Path, helpers: Any
) -> None:
    for pid in (1, os.getpid(), threading.get_native_id()):
        lines = [
            pid,
            data_dir / "cluster",
            1_700_000_000,
            5432,
            data_dir,
            "",
            "  1234567  0",
            "ready",
        ]
        (data_dir / "cluster" / "postmaster.pid").write_text("".join(f"{line}\n" for line in lines))
        with EmbeddedPostgres(data_dir) as server:
            assert helpers.query(server.dsn, "select 1") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"garbage\n",
        b"\x00\xff\xfe",
        b"-1\n",
        b"99999999999999999999\n",
        b"123",
        b"1\n2\n",
    ],
)
def test_start_works_when_the_pid_file_is_broken(
    data_dir: Path, content: bytes, helpers: Any
) -> None:
    (data_dir / "cluster" / "postmaster.pid").write_bytes(content)
    with EmbeddedPostgres(data_dir) as server:
        assert helpers.query(server.dsn, "select 1") == 1


@pytest.mark.parametrize("lost", ["cluster/postmaster.pid", "server.json"])
def test_start_replaces_a_live_server_when_its_papers_are_lost(
    data_dir: Path, lost: str, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    app.wait_for_dsn()
    pid = helpers.postmaster_pid(data_dir)
    app.kill()
    (data_dir / lost).write_text("")
    with EmbeddedPostgres(data_dir) as server:
        assert helpers.query(server.dsn, "select 1") == 1
        assert helpers.living_servers(data_dir) == [helpers.postmaster_pid(data_dir)]
        assert helpers.postmaster_pid(data_dir) != pid


@pytest.mark.parametrize("is_frozen", [False, True])
def test_start_ends_orphaned_backends_when_the_server_was_killed(
    data_dir: Path, is_frozen: bool, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy backend does not notice the death of its server; a frozen one takes no SIGQUIT."""
    monkeypatch.setattr(server, "ORPHANS_SECONDS", 1.0)
    with EmbeddedPostgres(data_dir) as embedded, psycopg.connect(embedded.dsn) as connection:
        orphan = connection.info.backend_pid
        with ThreadPoolExecutor() as threads:
            busy = threads.submit(
                connection.execute, "select count(*) from generate_series(1, 1e15)"
            )
            active = f"select state = 'active' from pg_stat_activity where pid = {orphan}"
            helpers.wait_until(lambda: helpers.query(embedded.dsn, active))
            if is_frozen:
                os.kill(orphan, signal.SIGSTOP)
            kill_server(data_dir, helpers)
            embedded.start()
            assert isinstance(busy.exception(), psycopg.OperationalError)
        assert helpers.query(embedded.dsn, "select 1") == 1


def blocked_recovery(data_dir: Path) -> tuple[Path, dict[str, str]]:
    """Make the next start hang in recovery until the returned file appears."""
    go = data_dir.parent / "go"
    signal_file = data_dir / "cluster" / "recovery.signal"
    signal_file.touch()
    if os.geteuid() == 0:
        shutil.chown(signal_file, data_dir.stat().st_uid)
    wait = f"while ! test -e {go}; do sleep 0.05; done; false"
    return go, {"restore_command": wait}


def test_start_waits_when_recovery_takes_long(data_dir: Path, helpers: Any) -> None:
    go, settings = blocked_recovery(data_dir)
    embedded = EmbeddedPostgres(data_dir, settings=settings)
    with ThreadPoolExecutor() as threads:
        started = threads.submit(embedded.start)
        log = data_dir / "server.log"
        helpers.wait_until(lambda: "the database system is starting up" in log.read_text())
        assert not started.done()
        go.touch()
        assert helpers.query(started.result(), "select 1") == 1
    embedded.stop()


def test_start_gives_up_without_harm_when_recovery_outlasts_the_timeout(
    data_dir: Path, helpers: Any
) -> None:
    go, settings = blocked_recovery(data_dir)
    impatient = EmbeddedPostgres(data_dir, settings=settings, start_timeout_seconds=0.5)
    with pytest.raises(EmbeddedServerError, match=r"not ready yet .* in the background"):
        impatient.start()
    pid = helpers.postmaster_pid(data_dir)
    go.touch()
    with EmbeddedPostgres(data_dir, settings=settings):
        assert helpers.living_servers(data_dir) == [pid]


def test_start_launches_another_server_when_the_one_found_is_shutting_down(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    dsn = app.wait_for_dsn()
    first = helpers.postmaster_pid(data_dir)
    with psycopg.connect(dsn):
        # A smart shutdown: it waits for this connection and refuses all others.
        os.kill(first, signal.SIGTERM)
        app.kill()
        status = data_dir / "cluster" / "postmaster.pid"
        helpers.wait_until(lambda: "stopping" in status.read_text())
        with ThreadPoolExecutor() as threads:
            embedded = EmbeddedPostgres(data_dir)
            started = threads.submit(embedded.start)
            log = data_dir / "server.log"
            helpers.wait_until(lambda: "system is shutting down" in log.read_text())
            os.kill(first, signal.SIGINT)
            assert helpers.query(started.result(), "select 1") == 1
    assert helpers.postmaster_pid(data_dir) != first
    embedded.stop()


def test_start_refuses_when_a_server_answers_that_cannot_be_seen(
    data_dir: Path, helpers: Any
) -> None:
    """As from another container: the folder is shared, the processes are not."""
    path = data_dir / ".s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(EmbeddedServerError, match="cannot be seen from here"):
            EmbeddedPostgres(data_dir).start()
    assert path.exists()
    assert helpers.living_servers(data_dir) == []


def test_start_works_when_initdb_was_killed_in_the_middle(
    reachable_folder: Path, start_app: Any, helpers: Any
) -> None:
    data_dir = reachable_folder / "data"
    app = start_app(data_dir)
    helpers.wait_until(lambda: list(data_dir.glob("staging-*/cluster/base")))
    app.kill()
    assert not (data_dir / "cluster").exists()
    with EmbeddedPostgres(data_dir) as server:
        assert helpers.query(server.dsn, "select 1") == 1
    # The orphaned initdb may still add files for a moment: they go at a later start.
    deadline = time.monotonic() + 30
    while list(data_dir.glob("staging-*")) and time.monotonic() < deadline:
        with EmbeddedPostgres(data_dir):
            pass
    assert not list(data_dir.glob("staging-*"))


@pytest.mark.long
def test_stop_falls_back_to_an_immediate_shutdown_when_the_fast_one_hangs(
    data_dir: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FAST_SHUTDOWN_SECONDS", 0.2)
    embedded = EmbeddedPostgres(data_dir)
    dsn = embedded.start()
    with psycopg.connect(dsn) as connection:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        embedded.stop()
    assert helpers.living_servers(data_dir) == []


def test_stop_says_which_process_when_the_server_does_not_stop(
    data_dir: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "FAST_SHUTDOWN_SECONDS", 0.1)
    monkeypatch.setattr(server, "IMMEDIATE_SHUTDOWN_SECONDS", 0.1)
    embedded = EmbeddedPostgres(data_dir)
    embedded.start()
    pid = helpers.postmaster_pid(data_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        # At exit there is nobody to catch an error: it goes to the log.
        embedded._stop_at_exit()
        assert f"process {pid}" in caplog.text
    finally:
        os.kill(pid, signal.SIGCONT)
    helpers.wait_until(lambda: not helpers.living_servers(data_dir))


def test_stop_ends_the_server_when_its_folder_was_removed(
    data_dir: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = EmbeddedPostgres(data_dir)
    embedded.start()
    shutil.rmtree(data_dir)
    embedded.stop()
    assert helpers.living_servers(data_dir) == []


def test_start_leaves_the_original_alone_when_the_folder_is_a_copy(
    data_dir: Path, helpers: Any
) -> None:
    """The copy brings along a record, a pid file and a lock that speak of the original."""
    long = data_dir.with_name("z" * 120)
    with EmbeddedPostgres(data_dir) as original:
        subprocess.run(["cp", "-a", data_dir, long], check=True)
        with EmbeddedPostgres(long) as copy:
            assert copy.dsn != original.dsn
            assert helpers.query(copy.dsn, "select 1") == 1
        assert helpers.query(original.dsn, "select 1") == 1
        assert (data_dir / ".s.PGSQL.5432").exists()

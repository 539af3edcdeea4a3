"""Several users of one folder: one server, and the last one to leave stops it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from commandbus.embedded import EmbeddedPostgres
from commandbus.embedded.account import choose_account
from commandbus.embedded.folder import DataFolder
from commandbus.embedded.processes import Deadline
from commandbus.errors import EmbeddedServerError


def test_two_apps_share_one_server_when_they_start_at_once(
    reachable_folder: Path, start_app: Any, helpers: Any
) -> None:
    data_dir = reachable_folder / "data"
    apps = [start_app(data_dir) for _ in range(3)]
    dsns = [app.wait_for_dsn() for app in apps]
    assert dsns[0]
    assert len(set(dsns)) == 1
    assert helpers.living_servers(data_dir) == [helpers.postmaster_pid(data_dir)]
    for app in apps:
        assert helpers.query(dsns[0], "select 1") == 1
        app.leave()
    assert helpers.living_servers(data_dir) == []


def test_threads_share_one_server_when_they_start_at_once(data_dir: Path, helpers: Any) -> None:
    users = [EmbeddedPostgres(data_dir) for _ in range(4)]
    with ThreadPoolExecutor() as threads:
        assert len(set(threads.map(EmbeddedPostgres.start, users))) == 1
        assert len(helpers.living_servers(data_dir)) == 1
        list(threads.map(EmbeddedPostgres.stop, users))
    assert helpers.living_servers(data_dir) == []


def test_server_runs_on_when_a_user_leaves_who_is_not_the_last(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    app.wait_for_dsn()
    with EmbeddedPostgres(data_dir) as server:
        app.leave()
        assert server.is_running
        assert helpers.query(server.dsn, "select 1") == 1
    assert helpers.living_servers(data_dir) == []


def test_a_killed_user_does_not_count(data_dir: Path, start_app: Any, helpers: Any) -> None:
    app = start_app(data_dir)
    app.wait_for_dsn()
    with EmbeddedPostgres(data_dir):
        app.kill()
    assert helpers.living_servers(data_dir) == []


def test_server_outlives_the_app_when_it_was_told_so(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir, stop_on_exit=False)
    app.wait_for_dsn()
    pid = helpers.postmaster_pid(data_dir)
    app.leave()
    with EmbeddedPostgres(data_dir, stop_on_exit=False):
        assert helpers.living_servers(data_dir) == [pid]
    assert helpers.living_servers(data_dir) == []


def test_server_shares_neither_terminal_nor_files_with_the_app(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    held = data_dir.parent / "held-open"
    held.touch()
    app = start_app(data_dir, held_open=str(held))
    app.wait_for_dsn()
    pid = helpers.postmaster_pid(data_dir)
    assert os.getsid(pid) == pid
    files = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    assert not files & {str(held), str(data_dir / "users.lock"), str(data_dir / "commandbus.lock")}
    app.leave()


def test_server_is_left_alone_when_a_forked_child_stops(data_dir: Path, helpers: Any) -> None:
    with EmbeddedPostgres(data_dir) as server:
        child = os.fork()
        if child == 0:
            try:
                server.stop()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert helpers.query(server.dsn, "select 1") == 1
    assert helpers.living_servers(data_dir) == []


def test_server_is_replaced_when_its_only_user_asks_for_more(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    app = start_app(data_dir)
    app.wait_for_dsn()
    pid = helpers.postmaster_pid(data_dir)
    app.kill()
    with EmbeddedPostgres(data_dir, settings={"work_mem": "7MB"}) as server:
        assert helpers.query(server.dsn, "show work_mem") == "7MB"
        assert helpers.postmaster_pid(data_dir) != pid


def test_server_in_use_is_kept_when_another_user_asks_for_settings(
    data_dir: Path, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedPostgres(data_dir) as first:
        with EmbeddedPostgres(data_dir, settings={"work_mem": "7MB"}) as second:
            assert helpers.query(second.dsn, "show work_mem") == "4MB"
        assert "wait for a restart" in caplog.text
        assert first.is_running


def test_server_in_use_is_kept_when_another_user_asks_for_tcp(data_dir: Path, helpers: Any) -> None:
    with EmbeddedPostgres(data_dir) as first:
        with pytest.raises(EmbeddedServerError, match="port 54999 and others use it"):
            EmbeddedPostgres(data_dir, tcp_port=54_999).start()
        assert helpers.query(first.dsn, "select 1") == 1
    assert helpers.living_servers(data_dir) == []


def test_start_says_so_when_another_process_keeps_the_folder_busy(data_dir: Path) -> None:
    folder = DataFolder(data_dir, choose_account(data_dir))
    with (
        folder.deciding(Deadline.after(5)),
        pytest.raises(EmbeddedServerError, match="another process is still starting"),
    ):
        EmbeddedPostgres(data_dir, start_timeout_seconds=0.1).start()

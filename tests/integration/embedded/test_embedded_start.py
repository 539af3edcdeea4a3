"""A first start: what is made, who may connect, and what the environment must not change."""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus.embedded import Binaries, EmbeddedPostgres
from commandbus.embedded.account import child_environment
from commandbus.errors import EmbeddedServerError, InvalidSettingError


def listening_addresses(pid: int) -> set[str]:
    """The local ends of the TCP listeners of a process, as hex of address and port."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if match := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
            inodes.add(match[1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        if Path("/proc/net", table).exists()
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_start_creates_database_and_plain_user_when_the_folder_is_new(
    reachable_folder: Path, helpers: Any
) -> None:
    with EmbeddedPostgres(reachable_folder / "new" / "deep" / "data") as server:
        who = "select concat_ws(' ', current_user, current_database(), usesuper) from pg_user"
        assert helpers.query(server.dsn, f"{who} where usename = current_user") == (
            "commandbus commandbus f"
        )
        helpers.query(server.dsn, "create database another")
        helpers.query(server.dsn, "create role somebody")
        assert helpers.query(server.dsn_for("another"), "select current_database()") == "another"
        superuser = server.superuser_dsn_for("postgres")
        assert helpers.query(superuser, "select current_setting('is_superuser')") == "on"


def test_cluster_is_safe_for_data_and_for_payloads(
    reachable_folder: Path, binaries: Binaries, helpers: Any
) -> None:
    with EmbeddedPostgres(reachable_folder / "data") as server:
        expected = {
            "data_checksums": "on",
            "fsync": "on",
            "full_page_writes": "on",
            "listen_addresses": "",
            "log_parameter_max_length": "0",
            "log_parameter_max_length_on_error": "0",
            "password_encryption": "scram-sha-256",
            "server_encoding": "UTF8",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "jit": "off",
            "autovacuum_naptime": "10s",
            "TimeZone": "UTC",
        }
        superuser = server.superuser_dsn_for("postgres")
        assert expected == {name: helpers.query(superuser, f"show {name}") for name in expected}
        assert helpers.query(server.dsn, "select upper('é')") == "É"
        provider = "select datlocprovider from pg_database where datname = 'commandbus'"
        assert helpers.query(server.dsn, provider) == ("b" if binaries.major >= 17 else "c")


def test_server_log_shows_neither_parameters_nor_rows_when_a_statement_fails(
    data_dir: Path,
) -> None:
    with EmbeddedPostgres(data_dir) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("create table t (payload text, check (length(payload) < 3))")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("insert into t values (%s)", ["hush-parameter"])
        connection.rollback()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select 'hush-literal' from nowhere")
    said = (data_dir / "server.log").read_text()
    assert "does not exist" in said
    assert "hush" not in said


def test_files_are_private_and_owned_by_the_account_of_the_server(
    reachable_folder: Path, helpers: Any
) -> None:
    data_dir = reachable_folder / "data"
    with EmbeddedPostgres(data_dir):
        owner = Path(f"/proc/{helpers.postmaster_pid(data_dir)}").stat().st_uid
        assert owner != 0
        for path in (data_dir, data_dir / "cluster"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for name in ("commandbus", "postgres"):
            path = data_dir / "cluster" / f"{name}.password"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert re.fullmatch(r"[0-9a-f]{64}\n", path.read_text())
        for path in data_dir.rglob("*"):
            assert path.lstat().st_uid == owner
            assert not path.is_file() or not path.stat().st_mode & 0o077
    assert not list(data_dir.glob("staging-*"))


def test_connection_is_refused_when_the_password_is_wrong(data_dir: Path) -> None:
    port = free_port()
    with EmbeddedPostgres(data_dir, tcp_port=port) as server:
        for user in ("commandbus", "postgres"):
            for host in (str(data_dir), "127.0.0.1"):
                wrong = make_conninfo(
                    "", host=host, port=port, user=user, password="guess", dbname="postgres"
                )
                with pytest.raises(psycopg.OperationalError, match="password authentication"):
                    psycopg.connect(wrong)
        hba = (data_dir / "cluster" / "pg_hba.conf").read_text()
        assert "trust" not in re.sub(r"#.*", "", hba)
        assert server.is_running


def test_server_has_no_tcp_listener_when_none_is_asked(data_dir: Path, helpers: Any) -> None:
    with EmbeddedPostgres(data_dir):
        assert listening_addresses(helpers.postmaster_pid(data_dir)) == set()


def test_server_listens_on_loopback_only_when_tcp_is_asked(data_dir: Path, helpers: Any) -> None:
    port = free_port()
    with EmbeddedPostgres(data_dir, tcp_port=port) as server:
        assert conninfo_to_dict(server.dsn)["host"] == "127.0.0.1"
        assert helpers.query(server.dsn, "select host(inet_server_addr())") == "127.0.0.1"
        listening = listening_addresses(helpers.postmaster_pid(data_dir))
        assert listening == {f"0100007F:{port:04X}"}


def test_start_says_why_when_the_tcp_port_is_taken(data_dir: Path) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = EmbeddedPostgres(data_dir, tcp_port=holder.getsockname()[1])
        with pytest.raises(EmbeddedServerError, match=r"^the server did not start: .*TCP"):
            server.start()
    assert not server.is_running


def test_users_settings_win_over_the_defaults(data_dir: Path, helpers: Any) -> None:
    settings = {"max_connections": "23", "search_path": r"'it\s', public"}
    with EmbeddedPostgres(data_dir, settings=settings) as server:
        assert helpers.query(server.dsn, "show max_connections") == "23"
        assert helpers.query(server.dsn, "show search_path") == r"'it\s', public"


def test_start_says_why_when_the_server_refuses_a_setting(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedServerError, match=r"did not start: .*commandbus\.conf") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    with EmbeddedPostgres(data_dir) as mended:
        assert mended.is_running


@pytest.mark.parametrize(
    "arguments",
    [
        {"tcp_port": 0},
        {"tcp_port": 70_000},
        {"start_timeout_seconds": 0},
        {"settings": {"listen_addresses": "*"}},
        {"settings": {"Bad Name": "1"}},
        {"settings": {"work_mem": "1MB\nfsync = off"}},
    ],
)
def test_instance_is_refused_when_an_argument_makes_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError):
        EmbeddedPostgres(**arguments)


def test_dsn_is_refused_when_the_server_is_not_started(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.stop()
    assert not server.is_running
    with pytest.raises(EmbeddedServerError, match="call start"):
        _ = server.dsn


def test_start_returns_the_same_server_when_called_twice(data_dir: Path, helpers: Any) -> None:
    with EmbeddedPostgres(data_dir) as server:
        pid = helpers.postmaster_pid(data_dir)
        assert server.start() == server.dsn
        assert helpers.postmaster_pid(data_dir) == pid
    assert helpers.living_servers(data_dir) == []


def test_start_ignores_the_pg_variables_of_the_environment(
    reachable_folder: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    misleading = {
        "PGPORT": "1",
        "PGHOST": "/nowhere",
        "PGHOSTADDR": "192.0.2.1",
        "PGDATA": "/nowhere",
        "PGUSER": "nobody",
        "PGDATABASE": "nowhere",
        "PGPASSWORD": "wrong",
        "PGOPTIONS": "-c nonsense=1",
        "PGSSLMODE": "require",
        "PGCHANNELBINDING": "require",
        "PGTARGETSESSIONATTRS": "standby",
        "PGREQUIREAUTH": "none",
        "PGCLIENTENCODING": "nonsense",
        "LC_ALL": "tlh_KX.UTF-8",
    }
    for name, value in misleading.items():
        monkeypatch.setenv(name, value)
    assert not set(misleading) - {"LC_ALL"} & set(child_environment())
    with EmbeddedPostgres(reachable_folder / "data") as server:
        assert server.is_running
        environment = Path(f"/proc/{helpers.postmaster_pid(reachable_folder / 'data')}/environ")
        assert b"PGPORT" not in environment.read_bytes()
        for name in ("PGOPTIONS", "PGTARGETSESSIONATTRS", "PGREQUIREAUTH", "PGCLIENTENCODING"):
            # These are the user's own wishes for the user's own connections.
            monkeypatch.delenv(name)
        monkeypatch.delenv("PGCHANNELBINDING")
        assert helpers.query(server.dsn, "select current_user") == "commandbus"


def test_start_says_why_at_once_when_pgservice_names_no_service(
    data_dir: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICE", "nowhere")
    with pytest.raises(EmbeddedServerError, match="service"):
        EmbeddedPostgres(data_dir).start()
    assert helpers.living_servers(data_dir) == []


@pytest.mark.parametrize("name", ["x" * 120, "comma,name", 'quo\'te "and" space'])
def test_start_finds_a_place_for_the_socket_when_the_path_is_awkward(
    data_dir: Path, name: str, helpers: Any
) -> None:
    awkward = data_dir.rename(data_dir.with_name(name))
    with EmbeddedPostgres(awkward) as server:
        assert helpers.query(server.dsn, "select 1") == 1
        socket_directory = Path(str(conninfo_to_dict(server.dsn)["host"]))
        found = socket_directory.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == awkward.stat().st_uid
        with EmbeddedPostgres(awkward) as second:
            assert second.dsn == server.dsn
    assert (socket_directory == awkward) == socket_directory.exists()


def test_socket_folder_is_used_again_when_the_path_is_long_and_the_app_was_killed(
    data_dir: Path, start_app: Any, helpers: Any
) -> None:
    long = data_dir.rename(data_dir.with_name("y" * 120))
    app = start_app(long)
    dsn = app.wait_for_dsn()
    app.kill()
    os.kill(helpers.postmaster_pid(long), 9)
    with EmbeddedPostgres(long) as server:
        assert server.dsn == dsn
        directory = Path(str(conninfo_to_dict(dsn)["host"]))
        assert directory != long
    assert not directory.exists()


def test_default_folder_lies_in_the_home_of_commandbus(
    reachable_folder: Path,
    binaries: Binaries,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    older = reachable_folder / "pg9" / "cluster"
    older.mkdir(parents=True)
    (older / "PG_VERSION").write_text("9\n")
    monkeypatch.setenv("COMMANDBUS_HOME", str(reachable_folder))
    with EmbeddedPostgres():
        assert (reachable_folder / f"pg{binaries.major}" / "cluster").is_dir()
    assert str(older.parent) in caplog.text
    (older / "PG_VERSION").unlink()


def test_server_runs_as_a_plain_user_when_the_application_does(
    reachable_folder: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked, not executed: the interpreter of root may lie where nobody else can go."""
    home = reachable_folder / "home"
    home.mkdir()
    nobody = pwd.getpwnam("nobody")
    if os.geteuid() == 0:
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
    for name in ("COMMANDBUS_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            with EmbeddedPostgres() as server:
                assert helpers.query(server.dsn, "select current_user") == "commandbus"
                found = list((home / ".local/state/commandbus").glob("pg*/cluster/PG_VERSION"))
                assert len(found) == 1
                assert found[0].stat().st_uid == os.geteuid()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""`db upgrade`: a folder of an older PostgreSQL becomes one of ours, and the old data stay."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.cli.main import app
from commandbus.embedded import EmbeddedPostgres, find_binaries, upgrading
from commandbus.embedded.cluster import UPGRADE_NOTE
from commandbus.errors import EmbeddedServerError

OLD = Path("/usr/lib/postgresql/15/bin")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.long,
    pytest.mark.skipif(
        not OLD.joinpath("postgres").exists(), reason="the server of PostgreSQL 15 is missing"
    ),
]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Not under tmp_path: as root the server runs as another account, which must get there."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="commandbus-upgrade-"))
    folder.chmod(0o755)
    monkeypatch.setenv("COMMANDBUS_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def fill(folder: Path, *, more: str = "select") -> None:
    """An installation on PostgreSQL 15, with roles and an open command."""
    server = EmbeddedPostgres(folder, binaries=OLD)
    address = await asyncio.to_thread(server.start)
    try:
        migrated = await run("db", "migrate", "--dsn", address)
        assert migrated.exit_code == 0, migrated.stderr
        async with CommandBus.connect(address) as bus:
            await bus.send("shop", "Sell", uuid4(), {"n": 1})
        assert (await run("db", "roles", "--apply", "--dsn", address)).exit_code == 0
        with psycopg.connect(address, autocommit=True) as conn:
            conn.execute("create role seller login password 'old-secret'")
            conn.execute("grant commandbus_sender to seller")
            conn.execute(more.encode())
    finally:
        await asyncio.to_thread(server.stop)


async def run(*arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


def version(folder: Path) -> str:
    return folder.joinpath("cluster", "PG_VERSION").read_text().strip()


async def test_upgrade_moves_commands_roles_and_rights_and_keeps_the_old_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, new = home / "data", str(find_binaries().major)
    await fill(folder)
    place = ("--data-dir", str(folder))
    with pytest.raises(EmbeddedServerError, match="commandbus db upgrade"):
        EmbeddedPostgres(folder).start()

    done = await run("db", "upgrade", *place, "--json")

    assert done.exit_code == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert (document["from_major"], document["kept"]) == (15, str(folder / "pg15"))
    assert (version(folder), version(folder / "pg15")) == (new, "15")
    assert not folder.joinpath("upgrading").exists()
    assert not folder.joinpath(UPGRADE_NOTE).exists()
    async with CommandBus.connect(data_dir=folder) as bus:
        assert len((await bus.search.commands(domain="shop")).items) == 1
    assert (await run("db", "roles", *place)).exit_code == 0
    with EmbeddedPostgres(folder) as server:
        address = psycopg.conninfo.make_conninfo(server.dsn, user="seller", password="old-secret")
        with psycopg.connect(address) as conn:
            assert conn.execute(
                "select pg_has_role(current_user, 'commandbus_sender', 'usage')"
            ).fetchone() == (True,)
    again = await run("db", "upgrade", *place)
    assert "Nothing to do" in again.stdout
    # The way back.
    monkeypatch.setenv("COMMANDBUS_PG_BIN", str(OLD))
    listed = await run("list", "--domain", "shop", "--data-dir", str(folder / "pg15"), "--json")
    assert len(json.loads(listed.stdout)["commands"]) == 1


async def test_upgrade_takes_the_older_default_folder_and_leaves_it_where_it_is(home: Path) -> None:
    await fill(home / "pg15")

    done = await run("db", "upgrade", "--old-bin", str(OLD))

    assert done.exit_code == 0, done.stderr + done.stdout
    assert version(home / "pg15") == "15"
    listed = await run("list", "--domain", "shop", "--json")
    assert len(json.loads(listed.stdout)["commands"]) == 1


async def test_upgrade_begins_anew_or_goes_on_after_it_was_cut_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "data"
    await fill(folder)
    place = ("--data-dir", str(folder))

    async def cut_off(*_: object, **__: object) -> None:
        raise EmbeddedServerError("cut off")

    for name in ("read_backup", "write_backup"):
        with monkeypatch.context() as patch:
            patch.setattr(upgrading, name, cut_off)
            assert (await run("db", "upgrade", *place)).exit_code == 4
        assert version(folder) == "15"
    # After each rename of the change of places, as a kill would leave it.
    rename = Path.rename
    with monkeypatch.context() as patch:

        def rename_old_only(path: Path, to: Path) -> Path:
            if path.parent.name == "upgrading":
                raise EmbeddedServerError("cut off")
            return rename(path, to)

        patch.setattr(Path, "rename", rename_old_only)
        assert (await run("db", "upgrade", *place)).exit_code == 4
    assert version(folder / "pg15") == "15"
    assert not folder.joinpath("cluster").exists()
    with pytest.raises(EmbeddedServerError, match="was cut off"):
        EmbeddedPostgres(folder).start()

    done = await run("db", "upgrade", *place)

    assert done.exit_code == 0, done.stderr + done.stdout
    listed = await run("list", "--domain", "shop", *place, "--json")
    assert len(json.loads(listed.stdout)["commands"]) == 1


async def test_upgrade_is_refused_while_others_use_the_server_or_other_databases_are_there(
    home: Path,
) -> None:
    folder = home / "data"
    await fill(folder, more="create database reports")
    place = ("--data-dir", str(folder))
    other = await run("db", "upgrade", *place)
    assert other.exit_code == 1
    assert "reports" in other.stderr
    with (
        EmbeddedPostgres(folder, binaries=OLD) as server,
        psycopg.connect(server.dsn, application_name="a report"),
    ):
        used = await run("db", "upgrade", *place)
    assert used.exit_code == 1
    assert "a report (connected)" in used.stderr
    assert version(folder) == "15"
    wrong = await run("db", "upgrade", *place, "--old-bin", str(find_binaries().bin_directory))
    assert wrong.exit_code == 4
    assert "--old-bin" in wrong.stderr


async def test_upgrade_says_what_is_missing(home: Path) -> None:
    assert (await run("db", "upgrade", "--dsn", "host=db.example")).exit_code == 2
    missing = await run("db", "upgrade")
    assert missing.exit_code == 4
    assert "--data-dir" in missing.stderr

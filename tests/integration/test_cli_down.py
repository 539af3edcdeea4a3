"""`down`, `up` again, and `db url`: an embedded server as a newcomer meets it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.cli.main import app
from commandbus.embedded import EmbeddedPostgres
from commandbus.embedded.standing import Standing
from tests.waiting import until_sync

pytestmark = pytest.mark.postgres

APP = """
from commandbus import CommandBus

def setup(bus: CommandBus) -> None:
    async def sell(command, ctx): ...
    bus.register_handler("shop", "Sell", sell)
"""


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Not under tmp_path: as root the server runs as another account, which must get there."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="commandbus-down-"))
    folder.chmod(0o755)
    folder.joinpath("shop_app.py").write_text(APP)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def is_running(data_dir: Path) -> bool:
    standing = Standing.of(data_dir)
    return standing is not None and standing.running is not None


@contextmanager
def up(data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`up` in a process of its own, once it says that it is."""
    log = data_dir.with_name("up.log")
    command = [sys.executable, "-m", "commandbus", "up", "shop_app:setup", "--no-http"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(data_dir)],
            cwd=data_dir.parent, stdout=output, stderr=output, env={**os.environ},
        )  # fmt: skip
    try:
        until_sync(lambda: "Stop with" in log.read_text(), timeout=60)
        yield process
    finally:
        process.kill()
        process.wait()


def test_down_ends_up_and_the_server_and_up_works_again(data_dir: Path) -> None:
    place = ("--data-dir", str(data_dir))
    assert "Nothing to stop" in run("down", *place).stdout
    with up(data_dir) as first:
        assert f"commandbus down --data-dir {data_dir}" in data_dir.with_name("up.log").read_text()
        went = run("down", "--json", *place)
        assert went.exit_code == 0, went.stderr
        assert json.loads(went.stdout)["ups"] == [first.pid]
        assert first.wait(30) == 0
    assert not is_running(data_dir)
    assert "Nothing to stop" in run("down", *place).stdout
    with up(data_dir):
        assert is_running(data_dir)
        assert run("down", *place).exit_code == 0
    assert not list(data_dir.glob("up-*"))


def test_down_refuses_while_others_hold_the_server_and_names_them(data_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from commandbus.embedded import EmbeddedPostgres\n"
        "EmbeddedPostgres(Path(sys.argv[1])).start(); print('here', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"here\n"
        refused = run("down", "--data-dir", str(data_dir))
        assert refused.exit_code == 1
        assert f"process {other.pid} (" in refused.stderr
        assert "--force" in refused.stderr
        assert run("down", "--force", "--data-dir", str(data_dir)).exit_code == 0
        assert not is_running(data_dir)


def test_down_refuses_while_a_client_is_connected_to_a_server_that_was_left(data_dir: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from commandbus.embedded import EmbeddedPostgres\n"
        "EmbeddedPostgres(Path(sys.argv[1])).start(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(data_dir)], check=False)
    address = json.loads(
        run("db", "url", "--show-password", "--json", "--data-dir", str(data_dir)).stdout
    )
    with psycopg.connect(address["url"], application_name="a report"):
        refused = run("down", "--data-dir", str(data_dir))
        assert refused.exit_code == 1
        assert "a report (connected)" in refused.stderr
    assert run("down", "--data-dir", str(data_dir)).exit_code == 0


def test_down_is_refused_for_a_server_that_is_not_ours() -> None:
    refused = run("down", "--dsn", "host=127.0.0.1 port=1")

    assert refused.exit_code == 2
    assert "embedded" in refused.stderr


async def test_the_urls_of_a_server_work_where_they_are_meant_to(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        with psycopg.connect(server.url) as conn:
            assert conn.execute("select current_database()").fetchone() == ("commandbus",)
        engine = sqlalchemy.create_engine(server.sqlalchemy_url())
        with engine.connect() as connected:
            assert connected.scalar(sqlalchemy.text("select 1")) == 1
        engine.dispose()
        lazy = create_async_engine(server.sqlalchemy_url("asyncpg"))
        async with lazy.connect() as one:
            assert await one.scalar(sqlalchemy.text("select 1")) == 1
        await lazy.dispose()
        entry = server.django()
        names = {
            "NAME": "dbname",
            "USER": "user",
            "PASSWORD": "password",
            "HOST": "host",
            "PORT": "port",
        }
        psycopg.connect(**{theirs: entry[ours] for ours, theirs in names.items()}).close()
        async with CommandBus.connect(server.sqlalchemy_url("asyncpg")) as bus:
            assert await bus.search.domains(uuid4()) == []
        place = ("--data-dir", str(data_dir))
        shown = await asyncio.to_thread(
            run, "db", "url", "--sqlalchemy", "--driver", "asyncpg", *place
        )
        assert shown.stdout.startswith("postgresql+asyncpg://commandbus:***@/commandbus?host=")
        assert server.django()["PASSWORD"] not in shown.stdout
        django = await asyncio.to_thread(run, "db", "url", "--django", "--show-password", *place)
        assert json.loads(django.stdout) == server.django()
    stopped = await asyncio.to_thread(run, "db", "url", *place)
    assert "does not run now" in stopped.stderr


def test_the_url_of_an_address_is_that_address(data_dir: Path) -> None:
    shown = run("db", "url", "--dsn", "host=db.example user=me password=secret dbname=d")
    assert shown.stdout == "postgresql://me:***@db.example/d\n"
    assert run("db", "url", "--data-dir", str(data_dir)).exit_code == 4
    assert run("db", "url", "--sqlalchemy", "--django").exit_code == 2
    assert run("db", "url", "--driver", "asyncpg").exit_code == 2
    assert run("db", "url", "--dsn", "postgresql://a:secret@[h/d").exit_code == 4

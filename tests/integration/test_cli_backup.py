"""`backup` and `restore`: a backup under traffic comes back whole, and every command ends once."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from commandbus import Command, CommandBus, HandlerContext
from commandbus.cli.main import app
from commandbus.embedded import tools
from commandbus.embedded.standing import Standing
from commandbus.embedded.tools import Tools, find_tools
from commandbus.errors import EmbeddedServerError
from tests.conftest import Server
from tests.waiting import until

pytestmark = pytest.mark.postgres


async def run(*arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


@pytest.fixture
def new_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Not under tmp_path: as root the server runs as another account, which must get there."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="commandbus-restore-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_backup_under_traffic_restores_to_a_healthy_database(
    bus: CommandBus, dsn: str, tmp_path: Path, new_folder: Path
) -> None:
    file = tmp_path / "shop.backup"
    ran: list[UUID] = []

    async def sell(command: Command, ctx: HandlerContext) -> None:
        ran.append(command.command_id)

    bus.register_handler("shop", "Sell", sell)
    sent = [uuid4() for _ in range(300)]

    async def send_all() -> None:
        for command_id in sent:
            await bus.send("shop", "Sell", command_id, {"secret": "canary"})

    async with bus.worker("shop", concurrency=5):
        sending = asyncio.create_task(send_all())
        await until(lambda: len(ran) > 20)
        written = await run("backup", str(file), "--dsn", dsn, "--json")
        assert written.exit_code == 0, written.stderr
        await sending
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(written.stdout)["bytes"] == file.stat().st_size

    place = ("--data-dir", str(new_folder))
    restored = await run("restore", str(file), *place, "--json")
    assert restored.exit_code == 0, restored.stderr + restored.stdout
    assert json.loads(restored.stdout)["findings"] == []

    again: list[UUID] = []
    async with CommandBus.connect(data_dir=new_folder) as copy:
        page = await copy.search.commands(domain="shop", limit=500)
        known = {each.command_id for each in page.items}
        is_done = {each.command_id for each in page.items if each.status == "COMPLETED"}
        assert 20 < len(known) <= 300

        async def sell_again(command: Command, ctx: HandlerContext) -> None:
            again.append(command.command_id)

        # Leases in the backup run out by themselves; a test does not wait for that.
        standing = Standing.of(new_folder)
        assert standing is not None
        with psycopg.connect(**standing.parts()) as conn:
            conn.execute("update pgmq.q_shop__commands set vt = now()")
        copy.register_handler("shop", "Sell", sell_again)
        await copy.run_worker("shop", until_empty=True)
        page = await copy.search.commands(domain="shop", limit=500)
        assert {each.status for each in page.items} == {"COMPLETED"}
        assert sorted(again) == sorted(known - is_done)
        assert (await copy.upkeep.doctor(full=True)).findings == ()

    refused = await run("restore", str(file), *place)
    assert refused.exit_code == 1
    assert "not empty" in refused.stderr


async def test_a_backup_goes_back_into_an_empty_database_with_rights_or_without(
    bus: CommandBus, dsn: str, empty_dsn: str, tmp_path: Path, server: Server
) -> None:
    file, role = tmp_path / "one", f"commandbus_role_{uuid4().hex[:8]}"
    await bus.send("shop", "Sell", uuid4(), {})
    name = sql.Identifier(role)
    with server.admin() as admin:
        admin.execute(sql.SQL("create role {}").format(name))
    try:
        with psycopg.connect(dsn) as conn:
            conn.execute("create table mine (id int)")
            conn.execute(sql.SQL("grant select on mine to {}").format(name))
        assert (await run("backup", str(file), "--dsn", dsn)).exit_code == 0
        existing = await run("backup", str(file), "--dsn", dsn)
        assert existing.exit_code == 2
        assert "name a new file" in existing.stderr
        with psycopg.connect(dsn) as conn:
            conn.execute("drop table mine")
    finally:
        with server.admin() as admin:
            admin.execute(sql.SQL("drop role {}").format(name))
    refused = await run("restore", str(file), "--dsn", empty_dsn)
    assert refused.exit_code == 1
    assert role in refused.stderr

    restored = await run("restore", str(file), "--dsn", empty_dsn, "--no-rights")

    assert restored.exit_code == 0, restored.stderr
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select count(*) from mine").fetchone() == (0,)
        row = conn.execute("select commandbus.scale_metric('shop')").fetchone()
        assert row == (1,)


async def test_what_is_no_backup_and_what_is_no_database_is_refused(
    empty_dsn: str, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"PGDMP but not really")

    for refused, text in (
        (await run("restore", str(wrong), "--dsn", empty_dsn), "cannot be read by pg_restore"),
        (await run("restore", str(tmp_path / "none"), "--dsn", empty_dsn), "there is no file"),
        (await run("backup", str(tmp_path / "no" / "x"), "--dsn", empty_dsn), "no schema"),
    ):
        assert refused.exit_code in {2, 3}
        assert text in refused.stderr
    assert await asyncio.to_thread(lambda: [*tmp_path.iterdir()]) == [wrong]


def test_the_tools_are_of_the_version_of_the_server_or_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [Tools(Path("/a"), 18), Tools(Path("/b"), 15), Tools(Path("/c"), 16)]
    monkeypatch.setattr(tools, "_installed", lambda: iter(there))

    assert find_tools(15) == there[1]
    assert find_tools(17) == there[0]
    with pytest.raises(EmbeddedServerError, match=r"PostgreSQL 19.*found: 15, 16, 18"):
        find_tools(19)


async def test_a_password_is_in_no_argument_and_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    told = folder / "told"
    program = folder / "pg_dump"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {told}\necho "error: password=canary1" >&2\nexit 1\n'
    )
    program.chmod(0o755)

    with pytest.raises(tools.ToolError) as failed:
        await Tools(folder, 18).run("pg_dump", "host=h password=canary1 dbname=d", ["--format=c"])

    assert "canary1" not in str(failed.value)
    assert "canary1" not in told.read_text()
    assert conninfo_to_dict(told.read_text().partition("--dbname ")[2].strip())["host"] == "h"

"""An audit in several parts: saved and restored, reset by Django's tests, and dropped with all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import TupleRow
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.cli.main import app
from commandbus.django.resetting import _EMPTY
from tests.sql.faults import codes

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[TupleRow]
EVENTS = "select audit_id, event_type, ts from commandbus.command_bus_audit order by 1"
PARTS = "select name, first_id, below_id from commandbus.audit_parts()"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "keys"))


async def run(*words: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, list(words))


async def rows(conn: Connection, text: str) -> list[TupleRow]:
    return await (await conn.execute(text.encode())).fetchall()


async def write(conn: Connection, count: int, age: str, of: UUID | None = None) -> None:
    await conn.execute(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)"
        " select 'shop', coalesce(%s, gen_random_uuid()), 'NOTE',"
        " now() - cast(%s as interval) from generate_series(1, %s)",
        (of, age, count),
    )


@pytest.fixture
async def divided(bus: CommandBus, conn: Connection) -> list[TupleRow]:
    """Parts that were dropped, one of what was kept, full ones, and the tail; all of it sealed."""
    command = uuid4()
    await bus.send("shop", "Sell", command, {})
    await conn.execute(
        "update commandbus.command_bus_setting set value = '20' where name = 'audit_part_rows'"
    )
    await bus.upkeep.tend_audit()
    await write(conn, 1, "40 days", command)
    for age in ("40 days", "40 days", "1 day", "1 day"):
        await write(conn, 30, age)
        await bus.upkeep.tend_audit()
    await bus.upkeep.seal_audit()
    await bus.upkeep.set_retention("audit", timedelta(days=30))
    # The event of sending is young: without it the first part is old as a whole.
    await conn.execute(
        "update commandbus.command_bus_audit_part set newest_ts = now() - interval '40 days'"
        " where first_id < 0"
    )
    assert await bus.upkeep.tend_audit()
    await bus.upkeep.seal_audit()
    found = await rows(conn, PARTS)
    assert len(found) > 3
    assert found[0][0].startswith("command_bus_audit_kept_")
    return found


async def test_a_backup_has_all_parts_and_they_are_tended_where_it_is_restored(
    divided: list[TupleRow], conn: Connection, dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    before = await rows(conn, EVENTS)
    file = str(tmp_path / "shop.backup")
    assert (await run("backup", file, "--dsn", dsn)).exit_code == 0

    restored = await run("restore", file, "--dsn", empty_dsn)

    assert restored.exit_code == 0, restored.stderr
    assert (await run("db", "status", "--dsn", empty_dsn)).exit_code == 0
    async with (
        CommandBus.connect(empty_dsn) as copy,
        await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as other,
    ):
        assert await rows(other, EVENTS) == before
        assert await rows(other, PARTS) == divided
        found = await copy.upkeep.verify_audit()
        assert (found.is_intact, found.dropped > 0) == (True, True), found.places
        assert codes(await copy.upkeep.doctor(full=True)) == set()
        await write(other, 60, "1 day")
        await copy.upkeep.tend_audit()
        assert len(await rows(other, PARTS)) > len(divided)


async def test_an_installation_with_parts_is_dropped_whole(
    divided: list[TupleRow], conn: Connection, dsn: str
) -> None:
    await conn.execute("update commandbus.command_bus_command set status = 'CANCELED'")

    done = await run("db", "drop", "--dsn", dsn, "--yes-delete", "shop")

    assert done.exit_code == 0, done.stderr
    assert await rows(conn, "select to_regnamespace('commandbus')") == [(None,)]


async def test_parts_are_emptied_for_tests_of_django_and_work_on(
    divided: list[TupleRow], conn: Connection, bus: CommandBus
) -> None:
    await conn.execute(_EMPTY.replace("{schema}", "commandbus").encode())

    assert await rows(conn, EVENTS) == []
    await bus.send("shop", "Sell", uuid4(), {})
    await bus.upkeep.tend_audit()
    assert (await rows(conn, "select o_safe_to from commandbus.move_audit_horizon()")) != [(None,)]
    assert await rows(conn, PARTS) != []

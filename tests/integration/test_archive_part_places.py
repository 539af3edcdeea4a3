"""An archive in several parts: saved and restored, moved, reset by Django's tests, and dropped."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow
from typer.testing import CliRunner

from commandbus import Command, CommandBus, HandlerContext, PermanentCommandError, new_id
from commandbus.cli.main import app
from commandbus.django.resetting import _EMPTY
from commandbus.settings import Settings
from commandbus.shards import ShardMap, apply_map, move_domain
from commandbus.worker.tending import Tending
from tests.sql.faults import codes

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[TupleRow]
MESSAGES = "select msg_id, archived_at, message from pgmq.a_mail__commands order by 1"
PARTS = (
    "select piece::text, first_id, below_id from commandbus.archive_pieces('pgmq.a_mail__commands')"
)
SMALL = "update commandbus.command_bus_setting set value = '20' where name = 'archive_part_rows'"


async def run(*words: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, list(words))


async def rows(conn: Connection, text: str) -> list[TupleRow]:
    return await (await conn.execute(text.encode())).fetchall()


async def archive(conn: Connection, count: int, age: str) -> None:
    await conn.execute(
        "insert into pgmq.a_mail__commands (msg_id, vt, archived_at, message)"
        " select nextval('pgmq.q_mail__commands_msg_id_seq'), now(), now() - cast(%s as interval),"
        " jsonb_build_object('command_id', gen_random_uuid()) from generate_series(1, %s)",
        (age, count),
    )


@pytest.fixture
async def divided(bus: CommandBus, conn: Connection) -> list[TupleRow]:
    """Parts that were dropped, one of what was kept, full ones, and the tail."""
    await conn.execute(SMALL)
    await bus.send("mail", "Post", new_id(), {"to": "ada"})

    @bus.handler("mail", "Post")
    async def post(command: Command, context: HandlerContext) -> None:
        raise PermanentCommandError("NO", "no such address")

    await bus.run_worker("mail", until_empty=True)
    for age in ("40 days", "40 days", "1 day", "1 day"):
        await archive(conn, 30, age)
        await bus.upkeep.tend_archives()
    await conn.execute(
        "update pgmq.a_mail__commands set archived_at = now() - interval '40 days' where msg_id = 1"
    )
    await bus.upkeep.set_retention("archives", timedelta(days=30))
    assert await bus.upkeep.tend_archives()
    found = await rows(conn, PARTS)
    assert len(found) > 3
    assert "#k" in found[0][0]
    assert (await rows(conn, MESSAGES))[0][0] == 1
    return found


@pytest.mark.long
async def test_a_backup_has_all_parts_and_they_are_tended_where_it_is_restored(
    divided: list[TupleRow], conn: Connection, dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    before = await rows(conn, MESSAGES)
    file = str(tmp_path / "mail.backup")
    assert (await run("backup", file, "--dsn", dsn)).exit_code == 0

    restored = await run("restore", file, "--dsn", empty_dsn)

    assert restored.exit_code == 0, restored.stderr
    async with (
        CommandBus.connect(empty_dsn) as copy,
        await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as other,
    ):
        assert await rows(other, MESSAGES) == before
        assert await rows(other, PARTS) == divided
        gone = []
        for _ in range(3):
            await archive(other, 60, "40 days")
            gone += await copy.upkeep.tend_archives()
        assert sum(each.pruned["archived messages"] for each in gone) > 0
        assert (await rows(other, MESSAGES))[0][0] == 1


async def test_a_domain_whose_archive_is_in_parts_moves_there_and_back(
    dsn: str, empty_dsn: str
) -> None:
    known = ShardMap({"one": dsn, "two": empty_dsn}, {"mail": "one"}, "two", 1)
    await apply_map(known)
    async with (
        CommandBus.connect(dsn) as bus,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one,
        await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as two,
    ):
        await one.execute(SMALL)
        await bus.send("mail", "Post", command := new_id(), {})
        await bus.cancel("mail", command, "not wanted")
        for age in ("40 days", "40 days", "1 day"):
            await archive(one, 30, age)
            await bus.upkeep.tend_archives()
        await one.execute(
            "update pgmq.a_mail__commands set archived_at = '2020-01-01' where msg_id = 1"
        )
        await bus.upkeep.set_retention("archives", timedelta(days=30))
        assert await bus.upkeep.tend_archives()
        before = await rows(one, MESSAGES)
        assert len(await rows(one, PARTS)) > 3

        await move_domain(known, "mail", "two")
        assert await rows(two, MESSAGES) == before
        assert await rows(one, MESSAGES) == []
        # numbers of parts that are not there any more come back as well
        await two.execute(
            "insert into pgmq.a_mail__commands (msg_id, vt, message) values (2, now(), '{}')"
        )
        before = await rows(two, MESSAGES)
        await move_domain(known, "mail", "one")
        assert await rows(one, MESSAGES) == before
        assert len(await rows(one, PARTS)) > 3
        await bus.upkeep.tend_archives()


@pytest.mark.long
async def test_an_installation_with_archives_in_parts_is_dropped_whole(
    divided: list[TupleRow], conn: Connection, dsn: str
) -> None:
    await conn.execute("update commandbus.command_bus_command set status = 'CANCELED'")
    done = await run("db", "drop", "--dsn", dsn, "--yes-delete", "mail")
    assert done.exit_code == 0, done.stderr
    left = await rows(conn, "select relname from pg_class where relname ~ '^[aq]_mail'")
    assert left == []


@pytest.mark.long
async def test_parts_are_emptied_for_tests_of_django_and_work_on(
    divided: list[TupleRow], conn: Connection, bus: CommandBus
) -> None:
    await conn.execute(_EMPTY.replace("{schema}", "commandbus").encode())
    assert await rows(conn, MESSAGES) == []
    await archive(conn, 30, "40 days")
    await bus.upkeep.tend_archives()
    await archive(conn, 1, "1 day")
    assert len(await rows(conn, MESSAGES)) > 0
    assert len(await rows(conn, PARTS)) > 2


async def test_the_doctor_shows_an_archive_in_parts_as_one_table_and_finds_nothing(
    divided: list[TupleRow], conn: Connection, bus: CommandBus
) -> None:
    await conn.execute("analyze")
    found = await bus.upkeep.doctor()
    assert not {"QUEUE_PARTITIONED", "RIGHTS_MISSING"} & codes(found)
    sizes = {each["table"]: each["bytes"] for each in found.facts["largest_tables"]}
    assert not any("#" in name for name in sizes)
    assert sizes["pgmq.a_mail__commands"] > 0


async def test_the_chore_divides_and_drops_and_says_what_went(
    divided: list[TupleRow], conn: Connection, bus: CommandBus
) -> None:
    await conn.execute("update pgmq.a_mail__commands set archived_at = now() - interval '40 days'")
    await Tending(bus._store, Settings()).step()
    (told,) = await rows(
        conn,
        "select to_jsonb(c)::text from commandbus.command_bus_chore c"
        " where c.name = 'tend the archives'",
    )
    assert "archived messages dropped" in told[0]

"""`db drop`: an installation leaves a database whole or not at all, and nothing of others goes."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.cli.main import app
from commandbus.database import removal

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[tuple[object, ...]]


async def drop(dsn: str, *arguments: str) -> Any:
    words = ["db", "drop", "--dsn", dsn, *arguments]
    return await asyncio.to_thread(CliRunner().invoke, app, words)


async def has_schema(conn: Connection) -> bool:
    cursor = await conn.execute("select to_regnamespace('commandbus') is not null")
    return await cursor.fetchone() == (True,)


async def end_all(conn: Connection) -> None:
    await conn.execute("update commandbus.command_bus_command set status = 'CANCELED'")


async def test_drop_shows_what_would_go_and_changes_nothing(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    await bus.send("shop", "Sell", uuid4(), {})
    await bus.send("payments", "Pay", uuid4(), {})

    shown = await drop(dsn)
    document = json.loads((await drop(dsn, "--json")).stdout)

    assert shown.exit_code == 0
    assert "--yes-delete payments,shop" in shown.stdout
    assert "Nothing was changed" in shown.stdout
    assert document["is_dropped"] is False
    assert document["domains"][1] == {"domain": "shop", "commands": 1, "open": 1, "parked": 0}
    assert "shop__commands" in document["queues"]
    assert await has_schema(conn)


async def test_drop_takes_queues_archives_and_schema_and_leaves_the_rest(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    await bus.send("shop", "Sell", uuid4(), {}, reply_to="shop.replies")
    await conn.execute("select pgmq.create('mail__outgoing')")
    await conn.execute("select pgmq.create('mail__commands')")
    await conn.execute("create table public.mine (id int)")
    await end_all(conn)

    done = await drop(dsn, "--yes-delete", " shop ")

    assert done.exit_code == 0, done.stderr
    assert "which stay: mail__commands, mail__outgoing" in " ".join(done.stdout.split())
    assert not await has_schema(conn)
    cursor = await conn.execute("select tablename from pg_tables where schemaname = 'pgmq'")
    left = {str(name) for (name,) in await cursor.fetchall()}
    assert {"q_mail__outgoing", "a_mail__commands"} <= left
    assert not {name for name in left if "shop" in name}
    assert await (await conn.execute("select count(*) from public.mine")).fetchone() == (0,)
    assert (await drop(dsn)).exit_code == 3


async def test_drop_is_refused_while_commands_are_open_or_parked(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    await bus.send("shop", "Sell", uuid4(), {})
    refused = await drop(dsn, "--yes-delete", "shop")
    await conn.execute(
        "update commandbus.command_bus_command set status = 'IN_TROUBLESHOOTING_QUEUE'"
    )
    parked = await drop(dsn, "--yes-delete", "shop")

    assert (refused.exit_code, parked.exit_code) == (1, 1)
    assert "shop (1 open, 0 parked)" in refused.stderr
    assert "shop (0 open, 1 parked)" in parked.stderr
    assert await has_schema(conn)

    done = await drop(dsn, "--yes-delete", "shop", "--even-open", "--json")
    assert json.loads(done.stdout)["is_dropped"] is True
    assert not await has_schema(conn)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("shop", "all go: payments"),
        ("none", "payments, shop"),
        ("shop,payments,x", "no domain 'x'"),
    ],
)
async def test_drop_wants_exactly_the_names_that_there_are(
    bus: CommandBus, dsn: str, conn: Connection, typed: str, said: str
) -> None:
    for domain in ("shop", "payments"):
        await bus.send(domain, "Do", uuid4(), {})

    refused = await drop(dsn, "--yes-delete", typed, "--even-open")

    assert refused.exit_code == 2
    assert said in refused.stderr
    assert await has_schema(conn)


async def test_drop_of_an_unused_installation_wants_the_word_none(
    dsn: str, conn: Connection
) -> None:
    shown = await drop(dsn)
    assert "--yes-delete none" in shown.stdout
    assert (await drop(dsn, "--yes-delete", "")).exit_code == 2
    assert (await drop(dsn, "--yes-delete", "none")).exit_code == 0
    assert not await has_schema(conn)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("create table commandbus.mine (id int)", "not ours: mine"),
        (
            "create view public.mine as select domain from commandbus.command_bus_command",
            "view public.mine",
        ),
        ("create table public.mine (t text default commandbus.queue_mark())", "default value"),
        ("create table public.mine (x commandbus.command_bus_worker)", "mine"),
        (
            "create function public.mine() returns text language sql"
            " return commandbus.queue_mark()",
            "function public.mine()",
        ),
    ],
)
async def test_drop_is_refused_while_something_of_others_depends_on_the_schema(
    dsn: str, conn: Connection, made: Any, named: str
) -> None:
    await conn.execute(made)

    refused = await drop(dsn, "--yes-delete", "none")

    assert refused.exit_code == 1
    assert named in refused.stderr
    assert await has_schema(conn)


async def test_drop_gives_up_while_another_transaction_uses_the_tables(
    bus: CommandBus, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LOCK_SECONDS", 1)
    async with conn.transaction():
        await conn.execute("select count(*) from commandbus.command_bus_command")
        refused = await drop(dsn, "--yes-delete", "none")

    assert refused.exit_code == 1
    assert "stop senders, workers and services" in refused.stderr
    await bus.send("shop", "Sell", uuid4(), {})

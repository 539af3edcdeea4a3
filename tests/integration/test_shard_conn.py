"""A `conn=` of another database than the shard's: refused before anything is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from commandbus.bus import CommandBus
from commandbus.database.belonging import Belonging
from commandbus.errors import InvalidInputError
from commandbus.models import BatchCommand
from commandbus.names import new_id
from commandbus.shards import ShardedBus, ShardMap

pytestmark = pytest.mark.postgres

ELSEWHERE = "another database than that of shard 'one'"


@asynccontextmanager
async def two_shards(one: str, two: str) -> AsyncIterator[ShardedBus]:
    shards = ShardMap({"one": one, "two": two}, {"payments": "one", "mail": "two"})
    async with ShardedBus.connect(shards) as bus:
        yield bus


def url(dsn: str, driver: str) -> URL:
    parts = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}", str(parts["user"]), str(parts.get("password") or "") or None,
        str(parts["host"]), int(str(parts["port"])), str(parts["dbname"]),
    )  # fmt: skip


@asynccontextmanager
async def open_conn(kind: str, dsn: str) -> AsyncIterator[Any]:
    """A connection of this kind to a database, in a transaction that is rolled back."""
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            yield conn
            await conn.rollback()
    elif kind == "psycopg, blocking":
        with psycopg.connect(dsn) as blocking:
            yield blocking
            blocking.rollback()
    elif kind == "asyncpg":
        parts = url(dsn, "asyncpg")
        plain = await asyncpg.connect(
            host=parts.host, port=parts.port, user=parts.username, password=parts.password,
            database=parts.database,
        )  # fmt: skip
        try:
            transaction = plain.transaction()
            await transaction.start()
            yield plain
            await transaction.rollback()
        finally:
            await plain.close()
    elif kind == "sqlalchemy":
        engine = create_async_engine(url(dsn, "psycopg"), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield session
        await engine.dispose()
    else:
        plain_engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
        with Session(plain_engine) as blocking_session:
            yield blocking_session
        plain_engine.dispose()


KINDS = ["psycopg", "psycopg, blocking", "asyncpg", "sqlalchemy", "sqlalchemy, blocking"]


async def number_of_commands(bus: CommandBus) -> int:
    return len((await bus.search.commands()).items)


@pytest.mark.parametrize("kind", KINDS)
async def test_send_refuses_a_connection_of_another_shard_and_takes_one_of_its_own(
    dsn: str, empty_dsn: str, kind: str
) -> None:
    async with two_shards(dsn, empty_dsn) as bus:
        payments, mail = await bus.on("payments"), await bus.on("mail")
        async with open_conn(kind, empty_dsn) as conn:
            with pytest.raises(InvalidInputError, match=ELSEWHERE):
                await payments.send("payments", "Charge", new_id(), {}, conn=conn)
            # Its transaction is good to go on, where it leads to.
            await mail.send("mail", "Post", new_id(), {}, conn=conn)
        async with open_conn(kind, dsn) as conn:
            await payments.send("payments", "Charge", new_id(), {}, conn=conn)
            await payments.send("payments", "Charge", new_id(), {}, conn=conn)
        # All of it was rolled back: it was in the callers' transactions.
        assert (await number_of_commands(payments), await number_of_commands(mail)) == (0, 0)


async def test_all_verbs_with_conn_refuse_a_connection_of_another_shard(
    dsn: str, empty_dsn: str
) -> None:
    async with two_shards(dsn, empty_dsn) as bus:
        payments = await bus.on("payments")
        sent = await payments.send("payments", "Charge", new_id(), {})
        command = BatchCommand("Charge", new_id(), {})
        async with open_conn("psycopg", empty_dsn) as conn:
            for call in (
                payments.send_many("payments", [command], conn=conn),
                payments.send_many("payments", [command], on_duplicate="skip", conn=conn),
                payments.send("payments", "Charge", new_id(), {}, unique_key="a", conn=conn),
                payments.create_batch("payments", [command], conn=conn),
                payments.cancel("payments", sent, "void", conn=conn),
            ):
                with pytest.raises(InvalidInputError, match=ELSEWHERE):
                    await call
        assert await number_of_commands(payments) == 1
        async with (
            payments.consumer("payments") as consumer,
            open_conn("psycopg", empty_dsn) as conn,
        ):
            (leased,) = await consumer.receive()
            with pytest.raises(InvalidInputError, match=ELSEWHERE):
                await leased.complete(conn=conn)
            await leased.complete()


async def test_a_connection_is_looked_at_once_however_many_commands_it_sends(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = Belonging._is_elsewhere

    async def counted(self: Belonging, conn: Any) -> bool:
        nonlocal looks
        looks += 1
        return await look(self, conn)

    monkeypatch.setattr(Belonging, "_is_elsewhere", counted)
    async with two_shards(dsn, empty_dsn) as bus:
        payments = await bus.on("payments")
        for kind in KINDS:
            looks = 0
            async with open_conn(kind, dsn) as conn:
                for _ in range(3):
                    await payments.send("payments", "Charge", new_id(), {}, conn=conn)
            assert (kind, looks) == (kind, 1)
